"""Collectives over their ranks: which spans are one, what their common ends say of clocks, and who came late.

    spans of collectives ──► the n-th of each group on every rank ──► clocks aligned by common ends
                         ──► of each rank's span: waiting until the last rank has come, then transfer

A collective begins on a rank when the rank calls it, and ends on all when the last has come and the data are
there. So what lies between a rank's beginning and the last rank's is no transfer: it is a wait for that rank.
A rank whose span ends before the last has come (the source of a broadcast) did not wait for it, but for the
last of those that had come by then. Sends and receives are between two: they stay exchange.

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

from evenload._plain_text import number_text, seconds_text
from evenload.audit.collective_names import PAIRWISE, UNEVEN, operation_in
from evenload.audit.recording import LATE, ClockShift, Recording, Waits, apart, check_excerpts, joined

MOST_SHIFTS = 2000  # places that a shorter list of collectives is tried at
AGREE = 0.5  # of a group's usual length: ends that differ by more are of different collectives
AGREE_NS = 20_000
FEWEST = 3  # collectives that align two clocks: the ends of fewer agree wherever they are
FEWEST_DRIFT = 10  # that say how fast one clock runs beside another
DRIFT_PAYS = 3.0  # times smaller must the differences be with it


@dataclass(frozen=True, slots=True, eq=False)
class _Match:
    """Collectives of one group on its devices: ``rows`` [collectives, devices] of a recording."""

    key: str
    devices: tuple[int, ...]
    rows: NDArray[np.int64]

    @property
    def has_common_end(self) -> bool:
        """Whether all ranks leave it together, whichever they are."""
        return operation_in(self.key) not in UNEVEN


def resolved(recordings: Sequence[Recording], *, aligned: bool = False) -> Recording:
    """Join recordings of one run, with clocks aligned by collectives and waits within these told apart.

    aligned  the clocks differ: each is moved so that its first span starts at 0, before anything else
    Raises as ``joined``, and FormatError for excerpts of the same devices at different times.
    """
    if aligned:
        recordings = [one.to_zero() for one in recordings]
    whole = joined(recordings)
    matches = _matched(whole)
    shifts, error_ns = _clock_shifts(whole, matches)
    said = []
    if any(one.is_any for one in shifts):
        worst = max(range(len(shifts)), key=lambda at: abs(shifts[at].by_ns))
        recordings = [one.shifted(by) for one, by in zip(recordings, shifts, strict=True)]
        whole = joined(recordings)
        said.append(_alignment_told(recordings[worst].file or f"trace {worst + 1}", shifts, worst, error_ns))
    matches = [one for one in matches if _agrees(whole, one)]
    check_excerpts(recordings)
    missing = _missing_told(whole, matches)
    faults = (*said, *apart(recordings), *missing, *whole.faults)
    return _with_waits(replace(whole, faults=faults, is_partial=bool(missing)), matches)


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
    for at, by_device in lists.items():
        if len(by_device) > 1 and operation_in(found.keys[at]) not in PAIRWISE:
            devices = tuple(by_device)
            told = all((numbers >= 0).all() for _, numbers in by_device.values())
            paired = _by_number if told else _by_order
            matched = paired(whole, [by_device[one] for one in devices])
            if len(matched):
                matches.append(_Match(found.keys[at], devices, matched))
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


def _usual_ns(whole: Recording, one: _Match) -> float:
    """How long a collective of the group usually is on the rank that is longest in it."""
    return float(np.median((whole.stop_ns[one.rows] - whole.start_ns[one.rows]).max(axis=1)))


def _agrees(whole: Recording, one: _Match) -> bool:
    """Whether the group's spans end together; where one rank may leave early, whether the others do."""
    ends = np.sort(whole.stop_ns[one.rows], axis=1)
    first = 0 if one.has_common_end or len(one.devices) == 2 else 1
    apart_ns = float(np.median(ends[:, -1] - ends[:, first]))
    return apart_ns <= AGREE * _usual_ns(whole, one) + AGREE_NS


def _alignment_told(file: str, shifts: Sequence[ClockShift], worst: int, error_ns: float) -> str:
    runs = f", and {number_text(shifts[worst].rate * 1e6)} µs more each second" if shifts[worst].rate else ""
    within = f"; 95 of 100 agree within {seconds_text(error_ns / 1e9)} then" if error_ns else ""
    return (
        f"Clocks were aligned by the common ends of collectives: that of {file} by "
        f"{seconds_text(abs(shifts[worst].by_ns) / 1e9)}{runs}{within}."
    )


def _missing_told(whole: Recording, matches: Sequence[_Match]) -> list[str]:
    """Sentences on collectives that were not found on other devices, and on ranks whose trace is not here."""
    found, said = whole.collectives, []
    if found is None:
        return []
    is_pairwise = np.array([operation_in(key) in PAIRWISE for key in found.keys], bool)[found.key]
    n_alone = len(found.row) - int(is_pairwise.sum()) - sum(one.rows.size for one in matches)
    if n_alone:
        said.append(
            f"{n_alone} of {len(found.row)} collectives have no equal on other devices of these traces: how "
            "much of them was waiting is not known, and all of it counts as exchange."
        )
    lacking = [one for one in matches if len(one.devices) < _n_ranks(one.key)]
    if lacking:
        most = max(lacking, key=lambda one: _n_ranks(one.key) - len(one.devices))
        n_ranks = _n_ranks(most.key)
        said.append(
            f"{n_ranks - len(most.devices)} of the {n_ranks} ranks of a group are not in these traces: what "
            "was waited for them counts as exchange."
        )
    return said


def _n_ranks(key: str) -> int:
    """How many ranks the group of a key has, as the trace says; 0 if it does not, or not in full."""
    _, bracket, rest = key.partition("[")
    listed, closed, _ = rest.partition("]")
    numbers = [one.strip() for one in listed.split(",")]
    return len(numbers) if bracket and closed and all(one.isdecimal() for one in numbers) else 0


def _clock_shifts(whole: Recording, matches: Sequence[_Match]) -> tuple[list[ClockShift], float]:
    """How far each file's clock is ahead of the first's, by common ends; and within what they agree then.

    None where that is less than twice the error, where clocks would not agree within half of a collective's
    usual length even so, or where nothing connects two files.
    """
    n_clocks = max(whole.clock, default=-1) + 1
    pairs: dict[tuple[int, int], list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = defaultdict(list)
    usual_ns: dict[tuple[int, int], list[float]] = defaultdict(list)
    for one in matches:
        if len(one.rows) < FEWEST or not one.has_common_end:
            continue
        ends, usual = whole.stop_ns[one.rows], _usual_ns(whole, one)
        clocks = [whole.clock[device] for device in one.devices]
        for at, clock in enumerate(clocks):
            if clock != clocks[0]:
                for a, b, first, second in ((clocks[0], clock, 0, at), (clock, clocks[0], at, 0)):
                    pairs[a, b].append((ends[:, first], ends[:, second]))
                    usual_ns[a, b].append(usual)
    shifts: dict[int, ClockShift] = {}
    left: list[float] = []
    for root in range(n_clocks):
        if root in shifts:
            continue
        shifts[root], todo = ClockShift(), [root]
        while todo:
            here = todo.pop()
            for there in [b for a, b in pairs if a == here and b not in shifts]:
                ends = zip(*pairs[here, there], strict=True)
                here_ns, there_ns = (np.concatenate(column) for column in ends)
                found, error = _shift_between(shifts[here].applied(here_ns), there_ns)
                is_sound = error <= AGREE * float(np.median(usual_ns[here, there])) + AGREE_NS
                shifts[there] = found if is_sound else ClockShift()
                left += [error] * (is_sound and found.is_any)
                todo.append(there)
    return [shifts[one] for one in range(n_clocks)], max(left, default=0.0)


def _shift_between(true_ns: NDArray[np.int64], told_ns: NDArray[np.int64]) -> tuple[ClockShift, float]:
    """By how much a clock is ahead, with its rate if that explains much more; and the error."""
    ahead = told_ns - true_ns
    by = int(np.median(ahead))
    error = float(np.quantile(np.abs(ahead - by), 0.95))
    found = ClockShift(by) if abs(by) > 2 * error + 1 else ClockShift()
    if len(ahead) >= FEWEST_DRIFT:
        since = told_ns - told_ns[0]
        half = np.argsort(since, kind="stable")
        early, late = half[: len(half) // 2], half[len(half) // 2 :]
        run = float(np.median(since[late]) - np.median(since[early]))
        rate = float(np.median(ahead[late]) - np.median(ahead[early])) / run if run > 0 else 0.0
        rest = ahead - rate * since
        start = float(np.median(rest))
        with_rate = float(np.quantile(np.abs(rest - start), 0.95))
        if with_rate * DRIFT_PAYS < error and abs(rate) * run > 2 * with_rate:
            return ClockShift(round(start), rate, int(told_ns[0])), with_rate
    return found, error


def _with_waits(whole: Recording, matches: Sequence[_Match]) -> Recording:
    """Cut what each rank waited for the last one out of its span, as a span of kind LATE."""
    columns: list[tuple[NDArray, ...]] = []
    first = 0
    start_ns, match = whole.start_ns.copy(), np.full(whole.n_spans, -1, np.int64)
    for one in matches:
        starts, ends = whole.start_ns[one.rows], whole.stop_ns[one.rows]
        devices = np.array(one.devices, np.int32)
        match[one.rows] = first + np.arange(len(one.rows))[:, None]
        for at in range(len(devices)):
            came = np.where(starts <= ends[:, at : at + 1], starts, np.iinfo(np.int64).min)
            late = came.argmax(axis=1)
            until = came.max(axis=1)
            waited = np.flatnonzero(until > starts[:, at])
            rows = one.rows[waited, at]
            start_ns[rows] = until[waited]
            own = np.full(len(waited), devices[at], np.int32)
            begun = starts[waited, at]
            who, number = devices[late[waited]], first + waited
            columns.append((own, begun, until[waited], who, number, whole.name[rows]))
        first += len(one.rows)
    if not columns:
        return whole
    assert whole.collectives is not None
    collectives = replace(whole.collectives, match=match[whole.collectives.row])
    device, start, stop, late, number, name = (np.concatenate(one) for one in zip(*columns, strict=True))
    order = np.lexsort((stop, start, device))
    return replace(
        whole,
        start_ns=np.concatenate([start_ns, start]),
        stop_ns=np.concatenate([whole.stop_ns, stop]),
        device=np.concatenate([whole.device, device]),
        kind=np.concatenate([whole.kind, np.full(len(start), LATE, np.int8)]),
        name=np.concatenate([whole.name, name.astype(np.int32)]),
        collectives=collectives,
        waits=Waits(device[order], start[order], stop[order], late[order], number[order]),
    )
