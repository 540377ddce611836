"""Who came late to collectives, why, and what that cost whom: every nanosecond of waiting has one culprit.

A rank that comes late did more, since the collective before, than the rank that waits for it. What it did
more of is the reason: kernels, copies, or gaps, and these by what the program did in them (``audit.host``).
The time that a rank waited while nothing else ran on it is charged to the rank that came last, and to that
reason; waits that overlap are charged once, to the one that began first.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenload.audit.host import HOST_CAUSES, LAUNCH, OPERATE, DeviceTime
from evenload.audit.occupancy import Occupancy, minus, sorted_union, within
from evenload.audit.recording import EXCHANGE, LATE, WORK, HostSpans, Recording, Waits, shown_name

REASONS = ("kernels", "copies", "transfers", "late ranks", *HOST_CAUSES)
HELD_UP, UNKNOWN = REASONS.index("late ranks"), REASONS.index("not known")
MOST_LOOKED_AT = 64  # waits whose spans are compared, of each culprit and reason


@dataclass(frozen=True, slots=True)
class Culprit:
    """A device that others waited for in collectives, and one reason why it came late.

    reason   kernels | copies | transfers | late ranks (it was held up itself) | input | synchronisation |
             launching | other code | not known
    span     what it did more of than those that waited; "" if no span says it
    n_late   collectives to which it came last for this reason
    cost_ns  what others waited for it, each nanosecond of each
    victims  device -> nanoseconds of that
    """

    device: str
    reason: str
    span: str
    n_late: int
    cost_ns: int
    victims: dict[str, int]


def culprits_of(
    recording: Recording, rows: list[NDArray[np.int64]], occupancy: list[Occupancy], time: DeviceTime
) -> list[Culprit]:
    """Return who came late and why, what cost most first; what all of them cost is all waiting for ranks.

    rows       each device's spans, by start
    occupancy  each device's busy time
    time       what it went into
    """
    waits = recording.waits
    if waits is None or not len(waits.device):
        return []
    charged_ns = _charged(recording, waits, rows, occupancy)
    begun_ns = _begun(waits, recording)
    late_of, reason = _followed(waits, begun_ns, _reasons(waits, begun_ns, time))

    @functools.cache
    def spans_of(why: str, device: int) -> _NamedSpans:
        return _NamedSpans(recording, rows[device], device, why)

    found = []
    pairs = np.stack([late_of.astype(np.int64), reason], axis=1)
    for late, why in np.unique(pairs[charged_ns > 0], axis=0).tolist():
        own = np.flatnonzero((pairs[:, 0] == late) & (pairs[:, 1] == why) & (charged_ns > 0))
        victims: dict[str, int] = defaultdict(int)
        for device, ns in zip(waits.device[own].tolist(), charged_ns[own].tolist(), strict=True):
            victims[recording.devices[device]] += ns
        longest = own[np.argsort(-charged_ns[own], kind="stable")][:MOST_LOOKED_AT]
        spans = functools.partial(spans_of, REASONS[why])
        span = _span(recording, spans, waits, begun_ns, longest[waits.late[longest] == late])
        n_late = len(np.unique(waits.collective[own]))
        name = recording.devices[late]
        found.append(Culprit(name, REASONS[why], span, n_late, int(charged_ns[own].sum()), dict(victims)))
    return sorted(found, key=lambda one: -one.cost_ns)


def _charged(
    recording: Recording, waits: Waits, rows: list[NDArray[np.int64]], occupancy: list[Occupancy]
) -> NDArray[np.int64]:
    """Nanoseconds of each wait in which its device did nothing else: they sum to its time of kind LATE."""
    charged = np.zeros(len(waits.device), np.int64)
    for device in np.unique(waits.device).tolist():
        own = np.flatnonzero(waits.device == device)
        spans, first_ns = rows[device], occupancy[device].first_ns
        kind = recording.kind[spans]
        start = np.maximum(recording.start_ns[spans], first_ns)
        stop = np.maximum(recording.stop_ns[spans], first_ns)
        more = (kind == WORK) | (kind == EXCHANGE)
        late = sorted_union(start[kind == LATE], stop[kind == LATE])
        alone = minus(late, sorted_union(start[more], stop[more]))
        until = np.maximum.accumulate(waits.stop_ns[own])
        begin = np.maximum(waits.start_ns[own], np.concatenate([until[:1] * 0, until[:-1]]))
        begin[0] = waits.start_ns[own[0]]
        end = np.maximum(waits.stop_ns[own], begin)
        charged[own] = within(alone, end) - within(alone, begin)
    return charged


def _begun(waits: Waits, recording: Recording) -> NDArray[np.int64]:
    """When the stretch began whose work decided who came late [waits, 2]: of the late device, of the other.

    The end of the last collective before that both took part in, on each; else the start of the trace.
    """
    found = recording.collectives
    begun = np.full((len(waits.device), 2), int(recording.start_ns.min()), np.int64)
    if found is None or found.match is None:
        return begun
    is_matched = found.match >= 0
    rows, match = found.row[is_matched], found.match[is_matched]
    device, ends = recording.device[rows], recording.stop_ns[rows]
    own = {one: (match[device == one], ends[device == one]) for one in np.unique(device).tolist()}
    pairs = np.stack([waits.late, waits.device], axis=1)
    for late, other in np.unique(pairs, axis=0).tolist():
        _, first, second = np.intersect1d(own[late][0], own[other][0], return_indices=True)
        late_ns, other_ns = own[late][1][first], own[other][1][second]
        order = np.argsort(late_ns, kind="stable")
        here = np.flatnonzero((waits.late == late) & (waits.device == other))
        at = np.searchsorted(late_ns[order], waits.stop_ns[here], side="right") - 1
        known = here[at >= 0]
        begun[known, 0], begun[known, 1] = late_ns[order][at[at >= 0]], other_ns[order][at[at >= 0]]
    return begun


def _reasons(waits: Waits, begun_ns: NDArray[np.int64], time: DeviceTime) -> NDArray[np.int64]:
    """The reason of each wait: what the late device did most more of than the one that waited."""
    more = np.zeros((len(waits.device), len(REASONS)), np.int64)
    for column, devices, until, sign in (
        (0, waits.late, waits.stop_ns, 1),
        (1, waits.device, waits.start_ns, -1),
    ):
        for device in np.unique(devices).tolist():
            here = np.flatnonzero(devices == device)
            for at, reason in enumerate(REASONS):
                begun = np.minimum(begun_ns[here, column], until[here])
                more[here, at] += sign * time.between(device, reason, begun, until[here])
    return np.where(more.max(axis=1) > 0, more.argmax(axis=1), UNKNOWN)


def _followed(
    waits: Waits, begun_ns: NDArray[np.int64], reason: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The device and reason that a wait is charged to: who was held up itself passes it on to who held it up.

    Not back to the device that waited: what it did to itself by way of others stays with the last of these.
    """
    late, reason = waits.late.copy(), reason.copy()
    own = {one: np.flatnonzero(waits.device == one) for one in np.unique(waits.device).tolist()}
    for at in np.argsort(waits.stop_ns, kind="stable").tolist():
        if reason[at] != HELD_UP:
            continue
        here = own.get(int(waits.late[at]), np.empty(0, np.int64))
        begun = np.maximum(waits.start_ns[here], begun_ns[at, 0])
        took = np.minimum(waits.stop_ns[here], waits.stop_ns[at]) - begun
        if len(took) and took.max() > 0:
            before = here[int(took.argmax())]
            if before != at and late[before] != waits.device[at]:
                late[at], reason[at] = late[before], reason[before]
    return late, reason


class _NamedSpans:
    """The spans that a reason is about, of one device or its program, in order of their starts."""

    def __init__(self, recording: Recording, own: NDArray[np.int64], device: int, reason: str) -> None:
        columns: Recording | HostSpans | None = recording
        if reason in ("kernels", "copies"):
            chosen = own[recording.kind[own] == (WORK if reason == "kernels" else EXCHANGE)]
        else:
            columns, chosen = recording.host, np.empty(0, np.int64)
            if columns is not None and reason in HOST_CAUSES[:3]:
                kinds = (LAUNCH, OPERATE) if reason == "launching" else (HOST_CAUSES.index(reason),)
                is_own = (columns.clock == recording.clock[device]) & np.isin(columns.kind, kinds)
                chosen = np.flatnonzero(is_own)
                chosen = chosen[np.argsort(columns.start_ns[chosen], kind="stable")]
        self._start = np.empty(0, np.int64) if columns is None else columns.start_ns[chosen]
        self._stop = self._start if columns is None else columns.stop_ns[chosen]
        self._name = chosen if columns is None else columns.name[chosen]
        self._longest = int((self._stop - self._start).max(initial=0))

    def between(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Names and nanoseconds of the spans between two times."""
        first = int(np.searchsorted(self._start, begin - self._longest))
        last = int(np.searchsorted(self._start, end))
        start, stop = self._start[first:last], self._stop[first:last]
        took = np.minimum(stop, end) - np.maximum(start, begin)
        seen = np.flatnonzero(took > 0)
        return list(zip(self._name[first:last][seen].tolist(), took[seen].tolist(), strict=True))


def _span(
    recording: Recording,
    spans: Callable[[int], _NamedSpans],
    waits: Waits,
    begun_ns: NDArray[np.int64],
    chosen: NDArray[np.int64],
) -> str:
    """The name of which the late device had most more in the chosen waits."""
    more: Counter[str] = Counter()
    for at in chosen.tolist():
        sides = (
            (1, int(waits.late[at]), int(begun_ns[at, 0]), int(waits.stop_ns[at])),
            (-1, int(waits.device[at]), int(begun_ns[at, 1]), int(waits.start_ns[at])),
        )
        for sign, device, begin, end in sides:
            for name, ns in spans(device).between(begin, end):
                more[recording.names[name]] += sign * ns
    name, ns = max(more.items(), key=lambda one: one[1], default=("", 0))
    return shown_name(name) if ns > 0 else ""
