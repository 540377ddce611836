"""Tests time limits of items by a clock that is given."""

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from evenload.executor.loop.watchdog import LATE_S, LOOK_S, PACKING_S, Watchdog
from evenload.executor.run.run_account import SentChunk
from evenload.executor.transport.progress_cell import NOT_BEGUN

STEP_S = 0.02


class OneWorker:
    """A worker at an item, seen by a watchdog. Nothing is worked while all is stopped."""

    def __init__(self, limit_s: float, position: int = 0):
        self.position, self.loading = position, None
        self.clock_s = self.worked_s = 0.0
        self.watchdog = Watchdog(self, SimpleNamespace(note=print))  # type: ignore[arg-type]
        options = SimpleNamespace(timeout_s=limit_s)
        sizing = SimpleNamespace(longest_s=1e9, n_per_call=1)
        run: Any = SimpleNamespace(options=options, sizing=sizing, has_items_for=lambda slot: False)
        send: Any = SimpleNamespace(singly=True, items=[7], duplicate=False)
        self.chunk = SentChunk(1, run, send, "cpu:0/1", 0.0)
        self.chunks, self.slot, self.startup_s, self.killed_s = deque([self.chunk]), "cpu:0", 0.0, None

    def progress(self, worker: Any) -> tuple[int, float]:
        return self.position, self.clock_s if self.position >= 0 else 0.0

    def kill(self, worker: Any, why: str = "") -> None:
        self.killed_s = self.worked_s

    def is_ended_within(self, seconds: float, chance: random.Random, stops: float) -> bool:
        """Whether it is ended before it has worked for so long, with all stopped that often."""
        while self.worked_s < seconds and self.killed_s is None:
            now = self.clock_s
            if chance.random() < stops / 3:
                self.clock_s += chance.choice(
                    [0.5, 3.0, 1000.0]
                )  # between the reading of the clock and the look
            if now >= self.watchdog.due_s:
                self.watchdog.look([self], [], now)  # type: ignore[list-item]
            self.clock_s += STEP_S
            self.worked_s += STEP_S
            if chance.random() < stops:
                self.clock_s += chance.choice([LOOK_S + LATE_S + STEP_S, 3.0, 1000.0])
        return self.killed_s is not None


@pytest.mark.parametrize("seed", range(30))
def test_what_passes_while_the_program_is_stopped_counts_for_no_item(seed: int) -> None:
    chance = random.Random(seed)
    limit_s = chance.choice([0.3, 2.0, 10.0])
    stops = chance.choice([0.0, 0.002, 0.02])
    assert not OneWorker(limit_s).is_ended_within(limit_s - STEP_S, chance, stops)


@pytest.mark.parametrize("seed", range(30))
def test_an_item_over_its_limit_is_ended_whatever_is_stopped(seed: int) -> None:
    """Each stop costs it at most what it worked since the last look."""
    chance = random.Random(seed)
    limit_s = chance.choice([0.3, 2.0, 10.0])
    worker = OneWorker(limit_s)
    assert worker.is_ended_within(limit_s + 2 * STEP_S, chance, 0.0)
    assert OneWorker(limit_s).is_ended_within(20 * limit_s + 20, chance, 0.002)


@pytest.mark.parametrize("seed", range(10))
def test_a_worker_that_never_begins_what_it_was_sent_is_ended_too(seed: int) -> None:
    """It was stopped before it had read it, say; what it builds first has time."""
    chance = random.Random(seed)
    limit_s = chance.choice([0.3, 2.0, 10.0])
    most_s = limit_s + PACKING_S
    assert not OneWorker(limit_s, NOT_BEGUN).is_ended_within(most_s - STEP_S, chance, 0.01)
    assert OneWorker(limit_s, NOT_BEGUN).is_ended_within(most_s + LOOK_S + 2 * STEP_S, chance, 0.0)
    building: Any = OneWorker(limit_s, NOT_BEGUN)
    building.loading = "a task"
    assert not building.is_ended_within(5 * most_s, chance, 0.0)
