"""What a trace says of devices, whatever its format: spans in columns, in whole nanoseconds.

Whole numbers, so that the seconds of all causes sum to the lost time exactly, and 17 bytes and some for a
span: ten million of them fit into a few hundred megabytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evenload._plain_text import plain
from evenload.errors import FormatError, quoted

__all__ = [
    "EXCHANGE",
    "LOADING",
    "MOST_DEVICES",
    "MOST_NAME",
    "PARTLY",
    "REPEAT",
    "WORK",
    "Recording",
    "SpanColumns",
    "joined",
    "shown_name",
]

# What a span's time went into. Where spans overlap on a device, the lowest number has the time.
WORK, EXCHANGE, REPEAT, LOADING, PARTLY = range(5)

MOST_DEVICES = 4096
MOST_NAME = 120  # characters
MOST_NS = 9_000_000_000_000_000_000  # years from the epoch to 2255
MOST_WINDOW_NS = 366 * 86_400_000_000_000  # a recording is not longer than a year


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A record of what devices did: one span for each row of the columns.

    source     the format that it came from, as a person calls it
    devices    names; also of those without a span
    start_ns, stop_ns, device, kind, name   [spans] columns; ``name`` counts ``names``
    gap_ns     idle stretches between two spans that are shorter are launch gaps
    window_ns  when the run began and ended, where that is known; else its spans say so
    is_excerpt the window was cut out of a longer run: what is idle at its ends is neither start-up nor tail
    has_items  whether spans are pieces of work that a plan could have placed elsewhere
    faults     sentences on what was left out
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
    faults: tuple[str, ...] = ()

    @property
    def n_spans(self) -> int:
        return len(self.start_ns)


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


def joined(recordings: Sequence[Recording], *, aligned: bool = False) -> Recording:
    """One recording of several files of a run; devices of the same name get the number of their file.

    aligned  the files' clocks differ: each is moved so that its first span starts at 0
    Raises FormatError without recordings, for more than MOST_DEVICES devices, or for excerpts of the same
    devices at different times.
    """
    if not recordings:
        raise FormatError("there is no trace to audit", hint="name at least one file")
    if aligned:
        recordings = [_moved_to_zero(one) for one in recordings]
    _check_excerpts(recordings)
    devices, names = _named(recordings), [name for one in recordings for name in one.names]
    if len(devices) > MOST_DEVICES:
        raise FormatError(
            f"{len(devices)} devices are more than the {MOST_DEVICES} that are audited at once",
            hint="give fewer traces, or --rows process",
        )
    if len(recordings) == 1:
        return replace(recordings[0], devices=devices)
    at_device = np.cumsum([0, *(len(one.devices) for one in recordings)])
    at_name = np.cumsum([0, *(len(one.names) for one in recordings)])
    windows = [one.window_ns for one in recordings if one.window_ns]
    return Recording(
        " + ".join(dict.fromkeys(one.source for one in recordings)),
        devices,
        np.concatenate([one.start_ns for one in recordings]),
        np.concatenate([one.stop_ns for one in recordings]),
        np.concatenate([one.device + np.int32(at) for one, at in zip(recordings, at_device, strict=False)]),
        np.concatenate([one.kind for one in recordings]),
        np.concatenate([one.name + np.int32(at) for one, at in zip(recordings, at_name, strict=False)]),
        tuple(names),
        max(one.gap_ns for one in recordings),
        (min(a for a, _ in windows), max(b for _, b in windows)) if windows else None,
        all(one.is_excerpt for one in recordings),
        all(one.has_items for one in recordings),
        (*_apart(recordings), *(fault for one in recordings for fault in one.faults)),
    )


def _named(recordings: Sequence[Recording]) -> tuple[str, ...]:
    found = [(at, shown_name(name)) for at, one in enumerate(recordings, 1) for name in one.devices]
    n_seen: dict[str, int] = {}
    for _, name in found:
        n_seen[name] = n_seen.get(name, 0) + 1
    names: dict[str, None] = {}
    for at, name in found:
        own = name if n_seen[name] == 1 else f"{at}: {name}"
        n = 2
        while own in names:
            own, n = f"{at}: {name} ({n})", n + 1
        names[own] = None
    return tuple(names)


def _moved_to_zero(one: Recording) -> Recording:
    if not one.n_spans:
        return one
    first = int(one.start_ns.min())
    window = None if one.window_ns is None else (one.window_ns[0] - first, one.window_ns[1] - first)
    return replace(one, start_ns=one.start_ns - first, stop_ns=one.stop_ns - first, window_ns=window)


def _check_excerpts(recordings: Sequence[Recording]) -> None:
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


def _apart(recordings: Iterable[Recording]) -> Iterator[str]:
    """Yield a sentence if a file ends before another begins."""
    ranges = [(int(one.start_ns.min()), int(one.stop_ns.max())) for one in recordings if one.n_spans]
    if ranges and max(start for start, _ in ranges) > min(stop for _, stop in ranges):
        yield "The traces do not overlap in time: if they are of one run, use --align."
