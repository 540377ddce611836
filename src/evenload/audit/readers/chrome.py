"""Chrome traces as recordings: of torch's profiler (Kineto), of Ray's timeline, of JAX, Perfetto and others.

    events ──► columns, one row for each (process, thread, category) ──► what is a device, by who wrote it

Which rows are devices, and what their spans are:

    GPUs       kernels, copies and sets of torch's profiler: a GPU's streams are one device
    processes  operators of torch's profiler where no GPU was recorded: a process with its threads is one
    workers    tasks of Ray's timeline
    threads    spans of any other trace
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload.audit.readers.chrome_event import ChromeEvent, event_shape, number_of
from evenload.audit.readers.json_elements import JsonElements
from evenload.audit.readers.numbering import Numbering
from evenload.audit.readers.trace_file import TraceFile
from evenload.audit.recording import EXCHANGE, MOST_DEVICES, MOST_NAME, WORK, Recording, SpanColumns
from evenload.errors import FormatError, quoted

__all__ = ["MOST_NAMES", "MOST_ROWS", "read_chrome"]

GPU_WORK = ("kernel", "concurrent_kernel", "gpu_memset")
GPU_COPIES = ("gpu_memcpy",)
COLLECTIVES = ("nccl", "rccl", "gloo:", "c10d::", "mscclpp")
FRAME = 9  # a task with all of its parts: it gives its name to what ran in it
TASK_PARTS = {"task:execute": WORK, "task:deserialize_arguments": EXCHANGE, "task:store_outputs": EXCHANGE}
LAUNCH_GAP_NS = 100_000
TASK_GAP_NS = 10_000_000


@dataclass(frozen=True)
class RowRule:
    """A rule that says of a row's category whether its spans count, and which device the row belongs to.

    by  gpu | process | thread | worker
    """

    source: str
    by: str
    kinds: Mapping[str, int] | None
    gap_ns: int = LAUNCH_GAP_NS

    def kind(self, category: str, tid: Any) -> int | None:
        """What spans of a category are; None if they do not count."""
        if self.by == "worker":
            if not str(tid).startswith("worker:"):
                return None
            if category.startswith("task::"):
                return FRAME
        if self.kinds is None:
            return WORK
        return self.kinds.get(category)

    def key(self, pid: Any, tid: Any) -> Any:
        """What rows of one device have in common."""
        return pid if self.by in ("gpu", "process") else (pid, tid)

    def name(self, pid: Any, tid: Any, processes: Mapping[Any, str], threads: Mapping[Any, str]) -> str:
        """A name for a row's device, from what the trace calls its process and thread."""
        process = processes.get(pid, "")
        if self.by == "gpu":
            return f"gpu:{pid}"
        if self.by == "process":
            return f"{process} {pid}" if process and process != str(pid) else f"process {pid}"
        if self.by == "worker":
            return f"{pid} {str(tid)[:15]}"
        thread = threads.get((pid, tid), "") or f"thread {tid}"
        return f"{process or f'process {pid}'} / {thread}"

    def kind_by_name(self, kind: NDArray, name: NDArray, names: Sequence[str]) -> NDArray:
        """The kinds, with collectives told from other work by their names."""
        if self.by not in ("gpu", "process"):
            return kind
        is_collective = np.array([one.lower().startswith(COLLECTIVES) for one in names], bool)
        return np.where((kind == WORK) & is_collective[name], EXCHANGE, kind)

    def name_by_frame(
        self, start: NDArray, stop: NDArray, device: NDArray, kind: NDArray, name: NDArray
    ) -> NDArray:
        """The names, with that of the task for each span that ran in one; tasks turn into EXCHANGE.

        So of a task's time, what is not its execution is exchange.
        """
        if self.by != "worker":
            return name
        frames, parts = np.flatnonzero(kind == FRAME), np.flatnonzero(kind == WORK)
        frames = frames[np.lexsort((start[frames], device[frames]))]
        parts = parts[np.lexsort((start[parts], device[parts]))]
        name = name.copy()
        for one in np.unique(device[parts]):
            own, inside = frames[device[frames] == one], parts[device[parts] == one]
            at = np.searchsorted(start[own], start[inside], side="right") - 1
            known = at >= 0
            known[known] = stop[own[at[known]]] >= start[inside[known]]
            name[inside[known]] = name[own[at[known]]]
        kind[frames] = EXCHANGE
        return name


def is_window(row: tuple[Any, Any, str]) -> bool:
    """Whether a row's span is that from the start of torch's profiler to its end, which is no device's."""
    pid, _, category = row
    return (pid, category) == ("Spans", "Trace")


def rule_of(rows: Sequence[tuple[Any, Any, str]], by: str) -> RowRule:
    """The rule for a trace with these rows. ``by``: auto, thread or process."""
    categories = {category for _, _, category in rows}
    if categories & {*GPU_WORK, *GPU_COPIES}:
        kinds = {**dict.fromkeys(GPU_WORK, WORK), **dict.fromkeys(GPU_COPIES, EXCHANGE)}
        return RowRule("torch profiler", "gpu", kinds)
    if "cpu_op" in categories or any(is_window(row) for row in rows):
        return RowRule("torch profiler, CPU", "thread" if by == "thread" else "process", {"cpu_op": WORK})
    if any(category.startswith("task:") and str(tid).startswith("worker:") for _, tid, category in rows):
        return RowRule("Ray timeline", "worker", TASK_PARTS, TASK_GAP_NS)
    return RowRule("Chrome trace", "process" if by == "process" else "thread", None)


MOST_NAMES = 100_000  # distinct ones; the others are "other names"
MOST_ROWS = 50_000
MOST_SPANS = 200_000_000
MOST_OPEN = 1000  # begun spans of one row
ENDS = {"B", "E"}


@dataclass(slots=True)
class _Tables:
    """What the columns count: rows, names, and what rows are called."""

    rows: Numbering
    names: Numbering
    processes: dict[Any, str]
    labels: dict[Any, str]
    threads: dict[Any, str]


class _Collector:
    """Columns of the spans of a trace, filled block by block."""

    def __init__(self) -> None:
        self.columns = SpanColumns()
        self.tables = _Tables(Numbering(MOST_ROWS, -1), Numbering(MOST_NAMES, 0, [""]), {}, {}, {})
        self.open: dict[Any, list[ChromeEvent]] = {}
        self.n_spans = self.n_unpaired = 0

    def add(self, events: list[ChromeEvent]) -> None:
        """Take a block of events: spans, begins and ends, and what rows are called."""
        spans = [one for one in events if one.ph == "X"]
        if len(spans) < len(events):
            for one in events:
                if one.ph == "M":
                    self._name(one)
                elif one.ph in ENDS:
                    spans += self._paired(one)
        if not spans:
            return
        n = len(spans)
        self.n_spans += n
        if self.n_spans > MOST_SPANS:
            raise FormatError(f"more than {MOST_SPANS:,} spans", hint="cut the trace")
        rows, names = self.tables.rows, self.tables.names
        self.columns.add(
            np.fromiter((one.ts for one in spans), np.float64, n) * 1e3,
            np.fromiter((one.dur for one in spans), np.float64, n) * 1e3,
            np.fromiter((rows[one.pid, one.tid, one.cat] for one in spans), np.int32, n),
            0,
            np.fromiter((names[one.name] for one in spans), np.int32, n),
        )

    def _name(self, one: ChromeEvent) -> None:
        tables = self.tables
        found = {"process_name": tables.processes, "process_labels": tables.labels}.get(one.name)
        key: Any = one.pid
        if one.name == "thread_name":
            found, key = tables.threads, (one.pid, one.tid)
        text = one.args.labels if one.name == "process_labels" else one.args.name
        if found is not None and isinstance(text, str) and len(found) < MOST_ROWS:
            found[key] = text[: 4 * MOST_NAME]

    def _paired(self, one: ChromeEvent) -> Iterator[ChromeEvent]:
        """Yield the span that an end event closes."""
        key = (one.pid, one.tid)
        stack = self.open.get(key)
        if stack is None:
            stack = self.open[key] = [] if len(self.open) < MOST_ROWS else [one] * MOST_OPEN
        if one.ph == "B" and len(stack) < MOST_OPEN:
            stack.append(one)
        elif one.ph == "E" and stack:
            begun = stack.pop()
            yield ChromeEvent("X", begun.name, begun.cat, begun.ts, one.ts - begun.ts, one.pid, one.tid)
        else:
            self.n_unpaired += 1

    def faults(self) -> Iterator[str]:
        """Yield sentences on what was left out."""
        yield from self.columns.faults()
        n_open = self.n_unpaired + sum(len(stack) for stack in self.open.values())
        if n_open:
            yield f"{n_open} × a span that was begun and never ended, or the other way round: left out."
        if self.tables.rows.n_others:
            yield f"{self.tables.rows.n_others} spans were left out: of more than {MOST_ROWS} rows."


def read_chrome(file: TraceFile, *, rows: str = "auto") -> Recording:
    """The recording of a Chrome trace. ``rows``: auto, thread or process, what a device is where no GPU is.

    Raises FormatError for a file that is no trace.
    """
    elements = JsonElements(file, event_shape(), "traceEvents")
    collector = _Collector()
    for block in elements.blocks():
        collector.add(block)
    start, stop, row, _, name = collector.columns.take()
    tables = collector.tables
    rule = rule_of(tables.rows.known, rows)
    device_of, kind_of, devices = _devices(rule, tables, _rank(elements.head))
    own, kind = device_of[row], kind_of[row]
    kind = rule.kind_by_name(kind, name, tables.names.known)
    name = rule.name_by_frame(start, stop, own, kind, name)
    kept = (own >= 0) & (kind >= 0)
    base = _base_ns(elements.head)
    window = _window(collector, start, stop, row) if kept.any() else None
    faults = [*file.faults(), *collector.faults(), *_faults_of(elements, file)]
    return Recording(
        rule.source,
        tuple(devices),
        start[kept] + base,
        stop[kept] + base,
        own[kept].astype(np.int32),
        kind[kept].astype(np.int8),
        name[kept],
        tuple(tables.names.known),
        rule.gap_ns,
        window_ns=window and (window[0] + base, window[1] + base),
        is_excerpt=window is not None,
        faults=tuple(faults),
    )


def _window(collector: _Collector, start: NDArray, stop: NDArray, row: NDArray) -> tuple[int, int] | None:
    """When torch's profiler began to record and ended; None of other traces."""
    at = [n for n, one in enumerate(collector.tables.rows.known) if is_window(one)]
    chosen = np.isin(row, at)
    return (int(start[chosen].min()), int(stop[chosen].max())) if chosen.any() else None


def _devices(rule: RowRule, tables: _Tables, rank: str) -> tuple[NDArray, NDArray, list[str]]:
    """The device and the kind of each row (-1 for none), and the devices' names."""
    device_of = np.full(len(tables.rows.known) + 1, -1, np.int64)  # the last is for rows that were left out
    kind_of = np.full(len(tables.rows.known) + 1, -1, np.int64)
    numbers: dict[Any, int] = {}
    names: list[str] = []
    for at, (pid, tid, category) in enumerate(tables.rows.known):
        kind = rule.kind(category, tid)
        if kind is None:
            continue
        key = rule.key(pid, tid)
        if key not in numbers:
            if len(numbers) >= MOST_DEVICES:
                raise FormatError(f"more than {MOST_DEVICES} rows with spans", hint="use --rows process")
            numbers[key] = len(numbers)
            names.append(rank + rule.name(pid, tid, tables.processes, tables.threads))
        device_of[at], kind_of[at] = numbers[key], kind
    order = sorted(range(len(names)), key=lambda at: _natural(names[at]))
    place = np.empty(len(names) + 1, np.int64)
    place[-1] = -1
    place[order] = np.arange(len(names))
    return place[device_of], kind_of, [names[at] for at in order]


def _natural(name: str) -> list[Any]:
    """Sort key with gpu:2 before gpu:10."""
    words = name.replace(":", " ").split()
    return [(0, int(one), "") if one.isdecimal() and len(one) < 19 else (1, 0, one) for one in words]


def _rank(head: dict[str, Any]) -> str:
    found = head.get("distributedInfo")
    rank = found.get("rank") if isinstance(found, dict) else None
    return f"rank {rank} " if isinstance(rank, int) and 0 <= rank < 1 << 31 else ""


def _base_ns(head: dict[str, Any]) -> int:
    base = number_of(head.get("baseTimeNanoseconds"))
    return int(base) if 0 <= base < 4e18 else 0


def _faults_of(elements: JsonElements[Any], file: TraceFile) -> Iterator[str]:
    name = quoted(file.path.name)
    if elements.n_damaged:
        events = "event was" if elements.n_damaged == 1 else "events were"
        yield f"{name}: {elements.n_damaged} {events} damaged, and left out."
    if not elements.is_whole and not file.is_cut:
        yield f"{name} ends before its list of events does; what it has was read."
