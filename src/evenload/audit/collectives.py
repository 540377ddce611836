"""Collectives over their ranks: which spans are one, what their common ends say of clocks, and who came late.

    spans of collectives ──► the n-th of each group on every rank ──► clocks aligned by common ends
                         ──► of each rank's span: waiting until the last rank has come, then transfer

A collective begins on a rank when the rank calls it, and ends on all when the last has come and the data are
there. So what lies between a rank's beginning and the last rank's is no transfer: it is a wait for that rank.
A rank whose span ends before the last has come (the source of a broadcast) did not wait for it, but for the
last of those that had come by then.

Without a number in the trace, spans of a group go by their order. Traces of one run may be cut differently:
where ranks have unequal counts, the shorter list is moved along the longer one to where ends agree best.
Groups whose ends do not agree even so are no collectives of these ranks together, and stay exchange.
"""

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evenload.audit.recording import LATE, Recording, Waits, apart, check_excerpts, joined

__all__ = ["resolved"]

MOST_SHIFTS = 2000  # places that a shorter list of collectives is tried at
AGREE = 0.5  # of a group's usual length: ends that differ by more are of different collectives
AGREE_NS = 20_000
FEWEST = 3  # collectives that align two clocks: the ends of fewer agree wherever they are


@dataclass(frozen=True, slots=True, eq=False)
class _Match:
    """Collectives of one group on its devices: ``rows`` [collectives, devices] of a recording."""

    devices: tuple[int, ...]
    rows: NDArray[np.int64]


def resolved(recordings: Sequence[Recording], *, aligned: bool = False) -> Recording:
    """Join recordings of one run, with clocks aligned by collectives and waits within these told apart.

    aligned  the clocks differ: each is moved so that its first span starts at 0, before anything else
    Raises as ``joined``, and FormatError for excerpts of the same devices at different times.
    """
    if aligned:
        recordings = [one.moved(-int(one.start_ns.min())) if one.n_spans else one for one in recordings]
    whole = joined(recordings)
    matches = _agreeing(whole, _matched(whole))
    offsets, error_ns = _clock_offsets(whole, matches)
    said = []
    if any(offsets):
        recordings = [one.moved(-by) for one, by in zip(recordings, offsets, strict=True)]
        whole = joined(recordings)
        worst = max(range(len(offsets)), key=lambda at: abs(offsets[at]))
        said.append(
            f"Clocks were aligned by the common ends of {sum(len(one.rows) for one in matches)} collectives: "
            f"that of {recordings[worst].file or f'trace {worst + 1}'} by {offsets[worst] / 1e6:.4g} ms; "
            f"95 of 100 ends agree within {error_ns / 1e3:.3g} µs then."
        )
    check_excerpts(recordings)
    said += apart(recordings)
    said += _unmatched(whole, matches)
    return _with_waits(replace(whole, faults=(*said, *whole.faults)), matches)


def _matched(whole: Recording) -> list[_Match]:
    """Pair the spans of each group over the devices that have some; groups of one device have no pairs."""
    found = whole.collectives
    if found is None:
        return []
    matches = []
    order = np.lexsort((whole.start_ns[found.row], whole.device[found.row], found.key))
    rows, key, number = found.row[order], found.key[order], found.order[order]
    device = whole.device[rows]
    borders = np.flatnonzero((np.diff(key) != 0) | (np.diff(device) != 0)) + 1
    lists: dict[int, dict[int, tuple[NDArray, NDArray]]] = defaultdict(dict)
    for part in np.split(np.arange(len(rows)), borders) if len(rows) else ():
        lists[int(key[part[0]])][int(device[part[0]])] = rows[part], number[part]
    for by_device in lists.values():
        if len(by_device) > 1:
            devices = tuple(by_device)
            told = all((numbers >= 0).all() for _, numbers in by_device.values())
            paired = _by_number if told else _by_order
            matched = paired(whole, [by_device[one] for one in devices])
            if len(matched):
                matches.append(_Match(devices, matched))
    return matches


def _by_number(_: Recording, lists: Sequence[tuple[NDArray, NDArray]]) -> NDArray[np.int64]:
    """Rows [collectives, devices] of the numbers that every device has, each once."""
    each = []
    for _rows, numbers in lists:
        own, counts = np.unique(numbers, return_counts=True)
        each.append(own[counts == 1])
    common = functools.reduce(np.intersect1d, each)
    columns = []
    for rows, numbers in lists:
        order = np.argsort(numbers, kind="stable")
        columns.append(rows[order][np.searchsorted(numbers[order], common)])
    return np.stack(columns, axis=1)


def _by_order(whole: Recording, lists: Sequence[tuple[NDArray, NDArray]]) -> NDArray[np.int64]:
    """Rows [collectives, devices]: the n-th of each device, the longer lists cut to where ends agree best."""
    shortest = min(lists, key=lambda one: len(one[0]))[0]
    ends = whole.stop_ns[shortest]
    columns = []
    for rows, _ in lists:
        n_more = len(rows) - len(shortest)
        shifts = range(min(n_more, MOST_SHIFTS) + 1)
        at = 0 if n_more == 0 else min(shifts, key=lambda by: _unlike(ends, whole.stop_ns[rows[by:]]))
        columns.append(rows[at : at + len(shortest)])
    return np.stack(columns, axis=1)


def _unlike(ends: NDArray[np.int64], others: NDArray[np.int64]) -> tuple[float, float]:
    """How much the differences of ends vary, and how large they are: least where two lists fit."""
    difference = others[: len(ends)] - ends
    middle = np.median(difference)
    return float(np.median(np.abs(difference - middle))), abs(float(middle))


def _ends(whole: Recording, one: _Match) -> NDArray[np.int64]:
    """The ends [collectives, devices], the clocks of other files moved to where they agree best."""
    ends = whole.stop_ns[one.rows]
    by = np.rint(np.median(ends - ends[:, :1], axis=0)).astype(np.int64)
    clock = np.array([whole.clock[device] for device in one.devices])
    may_move = (clock != clock[0]) & (len(ends) >= FEWEST)
    return ends - np.where(may_move, by, 0)


def _agreeing(whole: Recording, matches: Sequence[_Match]) -> list[_Match]:
    """The groups whose spans end together."""
    kept = []
    for one in matches:
        ends = _ends(whole, one)
        longest = (whole.stop_ns[one.rows] - whole.start_ns[one.rows]).max(axis=1)
        apart_ns = float(np.median(ends.max(axis=1) - ends.min(axis=1)))
        if apart_ns <= AGREE * float(np.median(longest)) + AGREE_NS:
            kept.append(one)
    return kept


def _unmatched(whole: Recording, matches: Sequence[_Match]) -> list[str]:
    """A sentence if collectives of several devices could not be told apart."""
    found = whole.collectives
    if found is None or len(whole.devices) < 2:
        return []
    n_alone = len(found.row) - sum(one.rows.size for one in matches)
    if not n_alone:
        return []
    return [
        f"{n_alone} of {len(found.row)} collectives have no equal on other devices of these traces: how much "
        "of them was waiting is not known, and all of it counts as exchange."
    ]


def _clock_offsets(whole: Recording, matches: Sequence[_Match]) -> tuple[list[int], float]:
    """How far the clock of each file is ahead of the first's, by common ends; and within what they agree.

    0 where that is less than twice the error, or nothing connects two files.
    """
    n_clocks = max(whole.clock, default=-1) + 1
    pairs: dict[tuple[int, int], list[NDArray[np.int64]]] = defaultdict(list)
    for one in [one for one in matches if len(one.rows) >= FEWEST]:
        ends = whole.stop_ns[one.rows]
        clocks = [whole.clock[device] for device in one.devices]
        for at, clock in enumerate(clocks):
            if clock != clocks[0]:
                pairs[clocks[0], clock].append(ends[:, at] - ends[:, 0])
                pairs[clock, clocks[0]].append(ends[:, 0] - ends[:, at])
    offsets: dict[int, int] = {}
    left: list[float] = []
    for root in range(n_clocks):
        if root in offsets:
            continue
        offsets[root], todo = 0, [root]
        while todo:
            here = todo.pop()
            for there in [b for a, b in pairs if a == here and b not in offsets]:
                difference = np.concatenate(pairs[here, there])
                by = float(np.median(difference))
                error = float(np.quantile(np.abs(difference - by), 0.95))
                left.append(error)
                offsets[there] = offsets[here] + (round(by) if abs(by) > 2 * error + 1 else 0)
                todo.append(there)
    return [offsets[one] for one in range(n_clocks)], max(left, default=0.0)


def _with_waits(whole: Recording, matches: Sequence[_Match]) -> Recording:
    """Cut what each rank waited for the last one out of its span, as a span of kind LATE."""
    columns: list[tuple[NDArray, ...]] = []
    first = 0
    start_ns = whole.start_ns.copy()
    for one in matches:
        starts, ends = whole.start_ns[one.rows], whole.stop_ns[one.rows]
        devices = np.array(one.devices, np.int32)
        for at in range(len(devices)):
            came = np.where(starts <= ends[:, at : at + 1], starts, np.iinfo(np.int64).min)
            late = came.argmax(axis=1)
            until = came.max(axis=1)
            waited = np.flatnonzero(until > starts[:, at])
            rows = one.rows[waited, at]
            start_ns[rows] = until[waited]
            own = np.full(len(waited), devices[at], np.int32)
            begun = starts[waited, at]
            columns.append(
                (own, begun, until[waited], devices[late[waited]], first + waited, whole.name[rows])
            )
        first += len(one.rows)
    if not columns:
        return whole
    device, start, stop, late, number, name = (np.concatenate(one) for one in zip(*columns, strict=True))
    order = np.lexsort((stop, start, device))
    return replace(
        whole,
        start_ns=np.concatenate([start_ns, start]),
        stop_ns=np.concatenate([whole.stop_ns, stop]),
        device=np.concatenate([whole.device, device]),
        kind=np.concatenate([whole.kind, np.full(len(start), LATE, np.int8)]),
        name=np.concatenate([whole.name, name.astype(np.int32)]),
        waits=Waits(device[order], start[order], stop[order], late[order], number[order]),
    )
