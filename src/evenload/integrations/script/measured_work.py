"""What the pools of a script did, and when: for the words at its end.

A *stretch* is a time in which a pool had work. Of each task is kept who did it, when, and in which chunk the
script's own pool would have sent it; so the end can say how long that would have taken.
"""

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from evenload.balance.bound import StageWork, bound_together

MOST_TASKS = 200_000  # of a pool that are kept; of later ones only the seconds are counted


class Done(NamedTuple):
    """A task that was done: its function, the worker's place, its items and times, and its chunk.

    chunk  what the script's own pool would have sent as one
    put_s  when the script's pool had it
    """

    name: str
    slot: str
    n_items: int
    chunk: Any
    put_s: float
    begun_s: float
    over_s: float


@dataclass(slots=True)
class Stretch:
    """A time from a pool's first task to its last result."""

    begun_s: float
    over_s: float
    done: list[Done] = field(default_factory=list)


@dataclass(slots=True)
class MeasuredWork:
    """What one pool did. ``kind``: what the script calls it; ``slots``: the places of its workers.

    n_untold  items of tasks that are not kept, as ``n_kept`` are already
    """

    kind: str
    slots: Sequence[str]
    stretches: list[Stretch] = field(default_factory=list)
    n_items: int = 0
    n_deaths: int = 0
    names: Counter[str] = field(default_factory=Counter)
    busy_s: Counter[str] = field(default_factory=Counter)
    n_untold: int = 0
    n_kept: int = 0
    _open: Stretch | None = None

    def resume(self) -> None:
        """A task is sent: a stretch begins, unless one has."""
        if self._open is None:
            now = time.monotonic()
            self._open = Stretch(now, now)

    def pause(self) -> None:
        """Nothing is left to do: the stretch ends."""
        if self._open is not None and self._open.done:
            self.stretches.append(self._open)
        self._open = None

    def add(self, done: Done) -> None:
        """Count a task that is done."""
        self.n_items += done.n_items
        self.names[done.name] += done.n_items
        self.busy_s[done.slot] += done.over_s - done.begun_s
        if self._open is None or self.n_kept >= MOST_TASKS:
            self.n_untold += done.n_items
            return
        self.n_kept += 1
        self._open.begun_s = min(self._open.begun_s, done.put_s)
        self._open.over_s = max(self._open.over_s, done.over_s)
        self._open.done.append(done)


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds of stretches: that they took, the least possible, and as the script's own pools would deal."""

    wall_s: float = 0.0
    bound_s: float = 0.0
    plain_s: float = 0.0

    def __add__(self, other: "Figures") -> "Figures":
        return Figures(
            self.wall_s + other.wall_s, self.bound_s + other.bound_s, self.plain_s + other.plain_s
        )


def figures_of(stretch: Stretch, slots: Iterable[str]) -> Figures:
    """Judge one stretch by what its workers were measured to do in it."""
    slots = list(slots)
    likes = {slot: "cpu" for slot in slots if slot.startswith("cpu:")}
    stages: dict[str, StageWork] = {}
    for one in stretch.done:
        stage = stages.setdefault(one.name, StageWork(slots, likes=likes))
        stage.add(one.slot, one.over_s - one.begun_s, one.n_items)
    bound_s, _ = bound_together(list(stages.values()))
    speeds = {name: stage.bound().speeds for name, stage in stages.items()}
    wall_s = stretch.over_s - stretch.begun_s
    return Figures(wall_s, min(bound_s, wall_s), plain_seconds(stretch, slots, speeds))


def plain_seconds(
    stretch: Stretch, slots: Sequence[str], speeds: Mapping[str, Mapping[str, float]]
) -> float:
    """Return how long the stretch would have taken if a free worker took the next chunk, as pools do.

    speeds  function -> place -> items a second; a place of which nothing is known counts as the slowest
    """
    chunks: dict[Any, tuple[str, float, float]] = {}  # function, when it was put, items' worth of work
    for one in sorted(stretch.done, key=lambda one: one.put_s):
        name, put_s, work = chunks.get(one.chunk, (one.name, one.put_s, 0.0))
        speed = speeds[one.name].get(one.slot) or 1.0
        chunks[one.chunk] = name, put_s, work + (one.over_s - one.begun_s) * speed
    free = [(stretch.begun_s, place) for place in range(len(slots))]
    over_s = stretch.begun_s
    for name, put_s, work in chunks.values():
        free_s, place = heapq.heappop(free)
        known = speeds[name]
        speed = known.get(slots[place]) or min((one for one in known.values() if one), default=1.0)
        free_s = max(free_s, put_s) + work / speed
        over_s = max(over_s, free_s)
        heapq.heappush(free, (free_s, place))
    return over_s - stretch.begun_s
