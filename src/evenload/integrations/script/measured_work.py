"""What the pools of a script did, and when: for the words at its end."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_TASKS = 200_000  # of a pool that are kept; later ones are only counted


class Done(NamedTuple):
    """A task that was done: its function, the worker's place, its items, and when it was put, begun and over.

    chunk  what the script's own pool would have sent as one
    """

    name: str
    slot: str
    n_items: int
    chunk: Any
    put_s: float
    begun_s: float
    over_s: float


@dataclass(slots=True)
class MeasuredWork:
    """The work of one pool, in pieces between which it had nothing to do.

    kind      what the script calls the pool
    slots     the places of its workers
    n_put     tasks that the script has given it
    n_untold  items of tasks that are not kept
    given_up_s  by piece, when the last task of it was given up
    """

    kind: str
    slots: Sequence[str]
    n_put: int = 0
    n_items: int = 0
    n_deaths: int = 0
    n_untold: int = 0
    names: Counter[str] = field(default_factory=Counter)
    busy_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    pieces: list[list[Done]] = field(default_factory=lambda: [[]])
    given_up_s: dict[int, float] = field(default_factory=dict)
    _n_kept: int = 0

    def pause(self) -> None:
        """Begin a new piece: nothing is left to do."""
        if self.pieces[-1]:
            self.pieces.append([])

    def give_up(self, now: float) -> None:
        """Note that a task was given up: until then there was work."""
        self.given_up_s[len(self.pieces) - 1] = now

    def add(self, done: Done) -> None:
        """Count a task that is done."""
        self.n_items += done.n_items
        self.names[done.name] += done.n_items
        self.busy_s[done.slot] += done.over_s - done.begun_s
        if self._n_kept < MOST_TASKS:
            self._n_kept += 1
            self.pieces[-1].append(done)
        else:
            self.n_untold += done.n_items

    def seconds(self) -> tuple[float, float, float]:
        """Return what the work took, the least that it could have, and what it would have as pools deal."""
        each = [
            _judged(piece, self.slots, self.given_up_s.get(number, 0.0))
            for number, piece in enumerate(self.pieces)
            if piece
        ]
        wall_s, bound_s, plain_s = zip((0.0,) * 3, *each, strict=True)
        return sum(wall_s), sum(bound_s), sum(plain_s)


def _judged(piece: Sequence[Done], slots: Sequence[str], given_up_s: float) -> tuple[float, float, float]:
    from evenload.balance.bound import StageWork, bound_together

    likes = {slot: "cpu" for slot in slots if slot.startswith("cpu:")}
    stages: dict[str, StageWork] = {}
    for one in piece:
        stage = stages.setdefault(one.name, StageWork(slots, likes=likes))
        stage.add(one.slot, one.over_s - one.begun_s, one.n_items)
    wall_s = max(given_up_s, *(one.over_s for one in piece)) - min(one.put_s for one in piece)
    bound_s, _ = bound_together(list(stages.values()))
    speeds = {name: stage.bound().speeds for name, stage in stages.items()}
    return wall_s, min(bound_s, wall_s), plain_seconds(piece, slots, speeds)


def plain_seconds(
    piece: Sequence[Done], slots: Sequence[str], speeds: Mapping[str, Mapping[str, float]]
) -> float:
    """Return how long a piece of work takes if whichever worker is free gets the next chunk, as in pools.

    speeds  function -> place -> items a second; a place of which nothing is known counts as the slowest
    """
    chunks: dict[Any, tuple[str, float, float]] = {}  # function, when it was put, items' worth of work
    for one in sorted(piece, key=lambda one: one.put_s):
        name, put_s, work = chunks.get(one.chunk, (one.name, one.put_s, 0.0))
        speed = speeds[one.name].get(one.slot) or 1.0
        chunks[one.chunk] = name, put_s, work + (one.over_s - one.begun_s) * speed
    begun_s = over_s = min(one.put_s for one in piece)
    free = [(begun_s, place) for place in range(len(slots))]
    for name, put_s, work in chunks.values():
        free_s, place = heapq.heappop(free)
        known = speeds[name]
        speed = known.get(slots[place]) or min(filter(None, known.values()), default=1.0)
        free_s = max(free_s, put_s) + work / speed
        over_s = max(over_s, free_s)
        heapq.heappush(free, (free_s, place))
    return over_s - begun_s
