"""Runs to report on and to show: events as an executor would emit them, from a small greedy simulation."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from evenload.events import (
    DeviceSample,
    Event,
    Idle,
    ItemFailed,
    ItemFinished,
    Moved,
    Note,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
    WorkerExited,
    WorkerStarted,
)

TRACEBACK = """Traceback (most recent call last):
  File "worker.py", line 88, in run_chunk
    result = task(item)
  File "restore.py", line 41, in __call__
    return self.net(picture)
ValueError: picture has 2 channels, 1 or 3 expected
"""


@dataclass
class SampleRun:
    """``stages`` maps a name to seconds per item at speed 1; ``fails`` are items whose first stage raises."""

    n_items: int = 24
    speeds: Mapping[str, float] = field(
        default_factory=lambda: {"cuda:0": 4.0, "cuda:1": 3.0, "cpu:0": 1.0, "cpu:1": 1.0}
    )
    stages: Mapping[str, float] = field(default_factory=lambda: {"restore": 1.2, "score": 0.3})
    chunk: int = 1
    jitter: float = 0.15
    gap_s: float = 0.002
    fails: tuple[int, ...] = ()
    loses: tuple[int, ...] = ()
    duplicates: bool = True
    moves: int = 0
    samples: bool = True
    outputs: Callable[[int, str], dict] | None = None
    names: Callable[[int], str] = "picture-{:03d}.png".format
    seed: int = 0
    is_cut: bool = False

    def __iter__(self) -> Iterator[Event]:
        self._random = random.Random(self.seed)
        kinds = {name: "Sample GPU" if "cuda" in name else "Sample CPU" for name in self.speeds}
        facts = {name: {"name": kind, "kind": "cpu"} for name, kind in kinds.items()}
        yield RunStarted(
            0.0, "restore sample pictures", 1_750_000_000.0, self.n_items, facts, {"policy": "measured"}
        )
        now = 0.0
        for position, (stage, seconds) in enumerate(self.stages.items()):
            rows = sorted(self._stage(stage, seconds, now, position), key=_time_of)
            now = max(map(_time_of, rows)) + 0.05
            yield from rows
        if not self.is_cut:
            status = "failures" if self.fails else "done"
            yield RunFinished(now, status, {"psnr_gain_db": 4.2})

    def _stage(self, stage: str, seconds: float, began: float, position: int) -> list[Event]:
        rows: list[Event] = [StageStarted(began, stage, self.n_items)]
        free: dict[str, float] = {}
        workers = {name: f"{name}-{position}" for name in self.speeds}
        for i, name in enumerate(self.speeds):
            startup_s = 0.6 + 0.25 * i if not position else 0.1
            free[name] = began + startup_s
            rows.append(WorkerStarted(free[name], name, workers[name], 1000 + i, startup_s))
        item = 0
        while item < self.n_items:
            if position and item in self.fails:
                item += 1
                continue
            device = min(free, key=lambda name: free[name])
            n = min(self.chunk, self.n_items - item)
            busy_s = n * seconds / self.speeds[device]
            busy_s *= self._random.uniform(1 - self.jitter, 1 + self.jitter)
            start_s, stop_s = free[device] + self.gap_s, free[device] + 2 * self.gap_s + busy_s
            fails = not position and any(index in self.fails for index in range(item, item + n))
            if not position and item in self.loses:
                rows += self._lost(stage, device, workers, item, n, start_s, start_s + busy_s / 2)
                free[device] = start_s + busy_s / 2 + 0.4
                self.loses = tuple(one for one in self.loses if one != item)
                continue
            place = (stage, device, workers[device], item, n)
            dealt_s = start_s - self.gap_s
            status = "failed" if fails else "ok"
            rows.append(Span(*place, start_s, stop_s, busy_s, status, "fair share", dealt_s))
            rows += [self._item(stage, index, stop_s, device, position) for index in range(item, item + n)]
            free[device] = stop_s
            item += n
        return rows + self._tail(stage, free, workers, began)

    def _item(self, stage: str, index: int, t: float, device: str, position: int) -> Event:
        if not position and index in self.fails:
            message = "picture has 2 channels, 1 or 3 expected"
            return ItemFailed(t, stage, index, self.names(index), "ValueError", message, device, TRACEBACK)
        outputs = self.outputs(index, stage) if self.outputs else {}
        return ItemFinished(t, stage, index, self.names(index), outputs)

    def _lost(self, stage, device, workers, item, n, start_s, stop_s) -> list[Event]:
        old = workers[device]
        workers[device] = f"{old}-again"
        return [
            Span(stage, device, old, item, n, start_s, stop_s, 0.0, "lost", "fair share", start_s),
            WorkerExited(stop_s, device, old, "killed by signal 9"),
            Note(
                stop_s, "warning", "executor", f"{device}: worker lost (signal 9), its items are dealt again"
            ),
            WorkerStarted(stop_s + 0.4, device, workers[device], 4711, 0.4),
        ]

    def _tail(self, stage: str, free: dict[str, float], workers: dict[str, str], began: float) -> list[Event]:
        end = max(free.values())
        rows: list[Event] = []
        for i, (name, t) in enumerate(sorted(free.items(), key=lambda one: one[1])):
            if end - t > 0.05 and self.duplicates and i == 0:
                place = (stage, name, workers[name], self.n_items - 1, 1)
                copy = ("superseded", "copy of the longest", t, True)
                rows.append(Span(*place, t + 0.002, end - 0.01, 0.0, *copy))
            elif end > t:
                rows.append(Idle(name, t, end, "tail guard: others finish it sooner"))
        if self.samples:
            n = 40
            for i in range(n):
                t = began + (end - began) * i / n
                for name in self.speeds:
                    used = int((2 + i / 20 + self._random.random() / 8) * 2**30)
                    share = self._random.uniform(0.8, 1.0)
                    rows.append(DeviceSample(t, name, share, used, 24 * 2**30, 50 + i / 4, 0))
        names = list(self.speeds)
        rows += [
            Moved(began + (end - began) * (i + 1) / (self.moves + 1), names[-1], names[0], 3 + i, 0.4)
            for i in range(self.moves)
        ]
        rows += [WorkerExited(end, name, worker) for name, worker in workers.items()]
        return [*rows, StageFinished(end, stage)]


def _time_of(event: Event) -> float:
    return getattr(event, "stop_s", None) or getattr(event, "t", 0.0)
