"""What a trace says of devices, whatever its format: spans in columns, in whole nanoseconds.

Whole numbers, so that the seconds of all causes sum to the lost time exactly, and 17 bytes and some for a
span: ten million of them fit into a few hundred megabytes.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._plain_text import plain
from evenload.errors import FormatError, quoted


class Numbering(dict[Any, int]):
    """A dict that numbers the keys it is asked for: ``known`` lists them, in order.

    others  the number of all keys beyond ``n_most``; ``n_others`` counts how often one was asked for
    """

    def __init__(self, n_most: int, others: int, known: Iterable[Hashable] = ()) -> None:
        super().__init__()
        self.n_most = n_most
        self.others = others
        self.n_others = 0
        self.known: list[Any] = []
        for one in known:
            self[one]

    def __missing__(self, key: Hashable) -> int:
        if len(self.known) >= self.n_most:
            self.n_others += 1
            return self.others
        self.known.append(key)
        number = self[key] = len(self.known) - 1
        return number


# What a span's time went into. Where spans overlap on a device, the lowest number has the time.
# LATE is a collective's time until the last rank has come; HOLE is time of which nothing was recorded.
WORK, EXCHANGE, LATE, REPEAT, LOADING, PARTLY, HOLE = range(7)

MOST_DEVICES = 4096
MOST_NAME = 120  # characters
MOST_NS = 9_000_000_000_000_000_000  # years from the epoch to 2255
MOST_WINDOW_NS = 366 * 86_400_000_000_000  # a recording is not longer than a year


@dataclass(frozen=True, slots=True)
class ClockShift:
    """The lead of a file's clock: ``by_ns`` at ``at_ns``, and ``rate`` more for each nanosecond since."""

    by_ns: int = 0
    rate: float = 0.0
    at_ns: int = 0

    @property
    def is_any(self) -> bool:
        return bool(self.by_ns or self.rate)

    def applied(self, told_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the times that the clock should have told."""
        if not self.rate:
            return told_ns - self.by_ns
        return told_ns - self.by_ns - np.rint(self.rate * (told_ns - self.at_ns)).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Collectives:
    """Which spans of a recording are collectives, in columns, and what all their ranks call them.

    row    [collectives] rows of the recording
    key    [collectives] counts ``keys``: the group of ranks and the operation
    order  [collectives] the number that the group gave it; -1 where none is told
    match  [collectives] equal for the spans that are one collective on several devices; -1 for others
    """

    row: NDArray[np.int64]
    key: NDArray[np.int32]
    order: NDArray[np.int64]
    keys: tuple[str, ...] = ()
    match: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """The waits of devices within collectives for another to come: one for each row, by device and start.

    device, stop_ns  who waited, from ``start_ns`` until ``late`` had come
    late             the device that came last
    collective       counts the collectives that were matched over their ranks
    """

    device: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    stop_ns: NDArray[np.int64]
    late: NDArray[np.int32]
    collective: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HostSpans:
    """The spans of the program that gave the devices their work: one for each row of the columns.

    clock  the recording's file of each; ``name`` counts the recording's names
    kind   INPUT, SYNC, LAUNCH, OPERATE or STEP of ``audit.host``
    """

    start_ns: NDArray[np.int64]
    stop_ns: NDArray[np.int64]
    clock: NDArray[np.int32]
    kind: NDArray[np.int8]
    name: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A record of what devices did: one span for each row of the columns.

    source     the format that it came from, as a person calls it
    devices    names; also of those without a span
    start_ns, stop_ns, device, kind, name   [spans] columns; ``name`` counts ``names``
    gap_ns     idle stretches between two spans that are shorter are launch gaps
    window_ns  when the run began and ended, where that is known; else its spans say so
    is_excerpt the window was cut out of a longer run: what is idle at its ends is neither start-up nor tail
    has_items  whether spans are pieces of work
    is_movable whether a plan could have placed them on other devices
    faults     sentences on what was left out
    is_partial some of what the run exchanged cannot be told apart: see its faults
    file       the name of the file that it came from
    clock      the file of each device, by number: devices of one file have one clock
    """

    source: str
    devices: tuple[str, ...]
    start_ns: NDArray[np.int64]
    stop_ns: NDArray[np.int64]
    device: NDArray[np.int32]
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    names: tuple[str, ...] = ("",)
    gap_ns: int = 100_000
    window_ns: tuple[int, int] | None = None
    is_excerpt: bool = False
    has_items: bool = True
    is_movable: bool = True
    faults: tuple[str, ...] = ()
    is_partial: bool = False
    file: str = ""
    clock: tuple[int, ...] = ()
    collectives: Collectives | None = None
    host: HostSpans | None = None
    waits: Waits | None = None

    @property
    def n_spans(self) -> int:
        return len(self.start_ns)

    def shifted(self, by: ClockShift) -> "Recording":
        """Return the recording as a right clock would have told it."""
        if not by.is_any:
            return self
        window, host = self.window_ns, self.host
        if window is not None:
            first, last = by.applied(np.array(window, np.int64)).tolist()
            window = first, last
        if host is not None:
            host = replace(host, start_ns=by.applied(host.start_ns), stop_ns=by.applied(host.stop_ns))
        start, stop = by.applied(self.start_ns), by.applied(self.stop_ns)
        return replace(self, start_ns=start, stop_ns=stop, window_ns=window, host=host)

    def to_zero(self) -> "Recording":
        """Return the recording with its first span at 0."""
        return self.shifted(ClockShift(int(self.start_ns.min()))) if self.n_spans else self


class SpanColumns:
    """A growing table of spans; rows that cannot be true are counted and left out."""

    def __init__(self) -> None:
        self._blocks: list[tuple[NDArray, ...]] = []
        self.n_impossible = 0

    def add(
        self,
        start_ns: NDArray[np.float64] | NDArray[np.int64],
        length_ns: NDArray[np.float64] | NDArray[np.int64],
        row: Sequence[int] | NDArray,
        kind: Sequence[int] | NDArray | int,
        name: Sequence[int] | NDArray | int = 0,
    ) -> None:
        """Add spans of equal columns; ``kind`` and ``name`` may be one for all.

        Impossible are spans that have no finite time, end before they start, or last more than a year.
        """
        with np.errstate(invalid="ignore"):
            is_good = (np.abs(start_ns) <= MOST_NS) & (length_ns >= 0) & (length_ns <= MOST_WINDOW_NS)
        columns = [np.asarray(start_ns), np.asarray(length_ns), np.asarray(row, np.int32)]
        columns += [np.broadcast_to(np.asarray(kind, np.int8), len(columns[0]))]
        columns += [np.broadcast_to(np.asarray(name, np.int32), len(columns[0]))]
        n_bad = len(is_good) - int(np.count_nonzero(is_good))
        if n_bad:
            self.n_impossible += n_bad
            columns = [column[is_good] for column in columns]
        start = np.rint(columns[0]).astype(np.int64)
        stop = start + np.rint(columns[1]).astype(np.int64)
        self._blocks.append((start, stop, *columns[2:]))

    def add_rows(self, rows: Iterable[tuple[float, float, int, int, int]]) -> None:
        """Add spans of start and stop in seconds, row, kind and name."""
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        if columns:
            start, stop, *others = columns
            with np.errstate(over="ignore", invalid="ignore"):
                self.add(start * 1e9, (stop - start) * 1e9, *others)

    def take(self) -> tuple[NDArray, NDArray, NDArray, NDArray, NDArray]:
        """Return the columns start_ns, stop_ns, row, kind, name, without strays, and forget them.

        Strays lie more than a year away from the span in the middle: their clock was another.
        """
        kinds = (np.int64, np.int64, np.int32, np.int8, np.int32)
        columns = []
        for at, kind in enumerate(kinds):
            columns.append(np.concatenate([block[at] for block in self._blocks] or [np.empty(0, kind)]))
        self._blocks.clear()
        if len(columns[0]):
            middle = int(np.partition(columns[0], len(columns[0]) // 2)[len(columns[0]) // 2])
            near = (columns[0] >= middle - MOST_WINDOW_NS) & (columns[1] <= middle + MOST_WINDOW_NS)
            if not near.all():
                self.n_impossible += int(np.count_nonzero(~near))
                columns = [column[near] for column in columns]
        start, stop, row, kind, name = columns
        return start, stop, row, kind, name

    def faults(self) -> Iterator[str]:
        """Yield a sentence on what was left out, if anything was."""
        if self.n_impossible:
            spans = "span was" if self.n_impossible == 1 else "spans were"
            yield (
                f"{self.n_impossible} {spans} left out: no finite time, an end before the start, or a clock "
                "that is a year away from the others."
            )


def shown_name(text: object) -> str:
    """A stranger's name for a person: one line, without control characters, and cut."""
    words = plain(str(text)[: 4 * MOST_NAME]).replace("\n", " ").replace("\t", " ").strip()
    return words if len(words) <= MOST_NAME else words[: MOST_NAME - 1] + "…"


def joined(recordings: Sequence[Recording]) -> Recording:
    """One recording of several files of a run; devices of the same name get that of their file.

    Raises FormatError without recordings, or for more than MOST_DEVICES devices.
    """
    if not recordings:
        raise FormatError("there is no trace to audit", hint="name at least one file")
    devices = _named(recordings)
    if len(devices) > MOST_DEVICES:
        raise FormatError(
            f"{len(devices)} devices are more than the {MOST_DEVICES} that are audited at once",
            hint="give fewer traces, or --rows process",
        )
    clock = tuple(at for at, one in enumerate(recordings) for _ in one.devices)
    if len(recordings) == 1:
        return replace(recordings[0], devices=devices, clock=clock)
    at_device = np.cumsum([0, *(len(one.devices) for one in recordings)])
    numbers: dict[str, int] = {}
    number_of = [
        np.array([numbers.setdefault(name, len(numbers)) for name in one.names], np.int32)
        for one in recordings
    ]
    windows = [one.window_ns for one in recordings if one.window_ns]
    return Recording(
        " + ".join(dict.fromkeys(one.source for one in recordings)),
        devices,
        np.concatenate([one.start_ns for one in recordings]),
        np.concatenate([one.stop_ns for one in recordings]),
        np.concatenate([one.device + np.int32(at) for one, at in zip(recordings, at_device, strict=False)]),
        np.concatenate([one.kind for one in recordings]),
        np.concatenate([of[one.name] for one, of in zip(recordings, number_of, strict=True)]),
        tuple(numbers),
        max(one.gap_ns for one in recordings),
        (min(a for a, _ in windows), max(b for _, b in windows)) if windows else None,
        all(one.is_excerpt for one in recordings),
        all(one.has_items for one in recordings),
        all(one.is_movable for one in recordings),
        tuple(dict.fromkeys(fault for one in recordings for fault in one.faults)),
        clock=clock,
        collectives=_joined_collectives(recordings),
        host=_joined_host(recordings, number_of),
    )


def _joined_collectives(recordings: Sequence[Recording]) -> Collectives | None:
    keys: dict[str, int] = {}
    columns = []
    at = 0
    for one in recordings:
        if (own := one.collectives) is not None and len(own.row):
            number = np.array([keys.setdefault(key, len(keys)) for key in own.keys], np.int32)
            columns.append((own.row + at, number[own.key], own.order))
        at += one.n_spans
    if not columns:
        return None
    row, key, order = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Collectives(row, key, order, tuple(keys))


def _joined_host(recordings: Sequence[Recording], number_of: Sequence[NDArray]) -> HostSpans | None:
    columns = [
        (own.start_ns, own.stop_ns, np.full_like(own.clock, at), own.kind, of[own.name])
        for at, (one, of) in enumerate(zip(recordings, number_of, strict=True))
        if (own := one.host) is not None
    ]
    return HostSpans(*(np.concatenate(column) for column in zip(*columns, strict=True))) if columns else None


def _named(recordings: Sequence[Recording]) -> tuple[str, ...]:
    """The names of all devices; of those that several files have, with the file's."""
    found = [(at, shown_name(name)) for at, one in enumerate(recordings) for name in one.devices]
    n_seen = Counter(name for _, name in found)
    files = Counter(one.file for one in recordings)
    names: dict[str, None] = {}
    for at, name in found:
        file = recordings[at].file
        where = shown_name(file) if file and files[file] == 1 else str(at + 1)
        own = name if n_seen[name] == 1 else f"{where}: {name}"
        n = 2
        while own in names:
            own, n = f"{where}: {name} ({n})", n + 1
        names[own] = None
    return tuple(names)


def check_excerpts(recordings: Sequence[Recording]) -> None:
    """Refuse excerpts of the same devices that do not overlap: nobody recorded what lies between."""
    last: dict[tuple[str, ...], int] = {}
    excerpts = [one for one in recordings if one.is_excerpt and one.window_ns]
    for one in sorted(excerpts, key=lambda one: one.window_ns or (0, 0)):
        start_ns, stop_ns = one.window_ns or (0, 0)
        if start_ns >= last.get(one.devices, start_ns + 1):
            raise FormatError(
                f"two of the traces show {quoted(', '.join(one.devices))} at different times, and none what "
                "it did in between",
                hint="audit each by itself; if they are different devices whose clocks differ, use --align",
            )
        last[one.devices] = max(stop_ns, last.get(one.devices, stop_ns))


def apart(recordings: Iterable[Recording]) -> Iterator[str]:
    """Yield a sentence if a file ends before another begins."""
    ranges = [(int(one.start_ns.min()), int(one.stop_ns.max())) for one in recordings if one.n_spans]
    if ranges and max(start for start, _ in ranges) > min(stop for _, stop in ranges):
        yield "The traces do not overlap in time: if they are of one run, use --align."
