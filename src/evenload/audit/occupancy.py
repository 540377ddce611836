"""When devices were busy: the union of each one's spans, by what its time went into.

spans of any order and nesting ──► Occupancy: per device, busy stretches that do not touch
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evenload.audit.recording import HOLE, WORK, Recording

N_KINDS = HOLE + 1


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Two columns of times in order: stretches that do not overlap."""

    start_ns: NDArray[np.int64]
    stop_ns: NDArray[np.int64]

    @property
    def total_ns(self) -> int:
        return int((self.stop_ns - self.start_ns).sum())

    @staticmethod
    def none() -> "Stretches":
        return Stretches(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """A device's time in a window: busy stretches, and the seconds of each kind.

    busy      the union of all its spans
    first_ns  when its first work began; for a device without work, and in an excerpt, its first span
    later     of the busy time, what is from ``first_ns`` on
    kind_ns   [kinds] nanoseconds of ``later`` that went into each kind
    """

    busy: Stretches
    first_ns: int
    later: Stretches
    kind_ns: tuple[int, ...]


def union(start_ns: NDArray[np.int64], stop_ns: NDArray[np.int64]) -> Stretches:
    """The union of spans, sorted by start; those without length are left out, those that touch are one."""
    if len(start_ns):
        is_long = stop_ns > start_ns
        start_ns, stop_ns = start_ns[is_long], stop_ns[is_long]
    if not len(start_ns):
        return Stretches(start_ns, stop_ns)
    reach = np.maximum.accumulate(stop_ns)
    begins = np.empty(len(start_ns), bool)
    begins[0] = True
    np.greater(start_ns[1:], reach[:-1], out=begins[1:])
    first = np.flatnonzero(begins)
    last = np.append(first[1:] - 1, len(start_ns) - 1)
    return Stretches(start_ns[first], reach[last])


def closed(busy: Stretches, gap_ns: int) -> Stretches:
    """Return the stretches with the gaps below ``gap_ns`` filled."""
    is_long = busy.start_ns[1:] - busy.stop_ns[:-1] >= gap_ns
    ends = [bool(len(busy.start_ns))]
    return Stretches(
        busy.start_ns[np.concatenate([ends, is_long]).astype(bool)[: len(busy.start_ns)]],
        busy.stop_ns[np.concatenate([is_long, ends]).astype(bool)[: len(busy.stop_ns)]],
    )


def minus(one: Stretches, other: Stretches) -> Stretches:
    """What of ``one`` lies outside of ``other``."""
    times = np.concatenate([one.start_ns, one.stop_ns, other.start_ns, other.stop_ns])
    change = np.repeat([1, -1, -2, 2], [len(one.start_ns)] * 2 + [len(other.start_ns)] * 2)
    order = np.argsort(times, kind="stable")
    level = np.cumsum(change[order])  # 1 where only ``one`` is
    is_left = (level[:-1] == 1) & (np.diff(times[order]) > 0)
    return union(times[order][:-1][is_left], times[order][1:][is_left])


def both(one: Stretches, other: Stretches) -> Stretches:
    """What of ``one`` lies within ``other``."""
    return minus(one, minus(one, other))


def sorted_union(start_ns: NDArray[np.int64], stop_ns: NDArray[np.int64]) -> Stretches:
    """The union of spans in any order."""
    order = np.argsort(start_ns, kind="stable")
    return union(start_ns[order], stop_ns[order])


def together(many: Sequence[Stretches]) -> Stretches:
    """What lies within any of ``many``, of which there is at least one."""
    return sorted_union(
        np.concatenate([one.start_ns for one in many]), np.concatenate([one.stop_ns for one in many])
    )


def within(one: Stretches, t: NDArray) -> NDArray:
    """Nanoseconds of the stretches before each time: differences of it are those between two times."""
    if not len(one.start_ns):
        return np.zeros(len(t), np.int64)
    before = np.concatenate([[0], np.cumsum(one.stop_ns - one.start_ns)])
    at = np.searchsorted(one.start_ns, t, side="right")
    last = np.maximum(at - 1, 0)
    return before[at] - np.where(at > 0, np.maximum(one.stop_ns[last] - t, 0), 0)


def spans_by_device(recording: Recording) -> list[NDArray[np.int64]]:
    """Rows of each device's spans, by start; of equal starts the longest first."""
    order = np.argsort(recording.device, kind="stable")
    edges = np.searchsorted(recording.device[order], np.arange(len(recording.devices) + 1))
    rows = []
    for first, last in pairwise(edges):
        own = order[first:last]
        start = recording.start_ns[own]
        if len(own) and (start[1:] <= start[:-1]).any():
            own = own[np.lexsort((-recording.stop_ns[own], start))]
        rows.append(own)
    return rows


def occupancy_of(recording: Recording, rows: NDArray[np.int64], window_ns: tuple[int, int]) -> Occupancy:
    """A device's occupancy within a window, from its ``rows`` by start."""
    start = np.clip(recording.start_ns[rows], *window_ns)
    stop = np.clip(recording.stop_ns[rows], *window_ns)
    kind = recording.kind[rows]
    n_of_kind = np.bincount(kind, minlength=N_KINDS) if len(kind) else np.zeros(N_KINDS, int)
    busy = later = union(start, stop)
    works = np.flatnonzero((kind == WORK) & (stop > start))
    first_ns = window_ns[1] if not len(busy.start_ns) else int(busy.start_ns[0])
    if len(works) and not recording.is_excerpt and int(start[works[0]]) > first_ns:
        first_ns = int(start[works[0]])
        start, stop = np.maximum(start, first_ns), np.maximum(stop, first_ns)
        later = union(start, stop)
    kind_ns, before_ns = [], 0
    for most in range(N_KINDS):
        if n_of_kind[most] and not n_of_kind[most + 1 :].any():
            total_ns = later.total_ns
        elif n_of_kind[most]:
            chosen = kind <= most
            total_ns = union(start[chosen], stop[chosen]).total_ns
        else:
            total_ns = before_ns
        kind_ns.append(total_ns - before_ns)
        before_ns = total_ns
    return Occupancy(busy, first_ns, later, tuple(kind_ns))
