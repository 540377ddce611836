"""Chrome traces as recordings: of torch's profiler (Kineto), of Ray's timeline, of JAX, Perfetto and others.

    events ──► columns, one row for each (process, thread, category) ──► what is a device, by who wrote it

Which rows are devices, and what their spans are: ``chrome_rules``.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload.audit.collective_names import key_of, operation_of
from evenload.audit.host import host_kind
from evenload.audit.readers.chrome_rules import GPU_KINDS, OPERATORS, Labels, RowRule, is_window, rule_of
from evenload.audit.readers.json_elements import JsonElements, Shape, number_of
from evenload.audit.readers.trace_file import TraceFile
from evenload.audit.recording import (
    MOST_DEVICES,
    MOST_NAME,
    Collectives,
    HostSpans,
    Numbering,
    Recording,
    SpanColumns,
)
from evenload.errors import FormatError, quoted


@dataclass(frozen=True, slots=True)
class EventArguments:
    """The arguments of an event that matter: the name that a metadata event gives, and of a collective its
    group of ranks, these, its number in the group and its own name; and what operators and their kernels
    have in common.
    """

    name: Any = None
    labels: Any = None
    group: Any = field(default=None, metadata={"name": "Process Group Name"})
    ranks: Any = field(default=None, metadata={"name": "Process Group Ranks"})
    order: Any = field(default=None, metadata={"name": "Seq"})
    collective: Any = field(default=None, metadata={"name": "Collective name"})
    external: Any = field(default=None, metadata={"name": "External id"})


NO_ARGUMENTS = EventArguments()


@dataclass(slots=True)
class ChromeEvent:
    """One event of a trace: phase, name, category, microseconds, and the rows that it belongs to."""

    ph: str = field(default="", metadata={"needed": True})
    name: str = ""
    cat: str = ""
    ts: float = math.nan
    dur: float = math.nan
    pid: int | str = ""
    tid: int | str = ""
    args: EventArguments = NO_ARGUMENTS


MOST_NAMES = 100_000  # distinct ones; the others are "other names"
MOST_ROWS = 50_000
MOST_SPANS = 200_000_000
MOST_COLLECTIVES = 2_000_000
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
    """Columns of the spans of a trace, filled block by block.

    more         as ``operation_of``
    collectives  row and start of a span that is one -> its group of ranks, operation, and number in the group
    """

    def __init__(self, more: Sequence[str] = (), *, by_operator: bool = False) -> None:
        self.columns = SpanColumns()
        self.collectives: dict[tuple[int, int], tuple[str, int]] = {}
        self._operations: dict[str, str] = {}
        self._unknown: Counter[str] = Counter()  # kernels of collectives that their names do not show
        self._more = more
        self._operators: dict[Any, str] | None = {} if by_operator else None
        self._launched: dict[tuple[int, int], Any] = {}
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
        for one in spans:
            if self._operation(one.name):
                self._note(one)
            elif one.cat == "kernel" and one.args.collective and len(self._unknown) < MOST_NAMES:
                self._unknown[one.name] += 1
            if self._operators is not None:
                self._note_operator(one, self._operators)
        with np.errstate(over="ignore"):  # endless times are impossible spans, which the columns count
            start_ns = np.fromiter((one.ts for one in spans), np.float64, n) * 1e3
            length_ns = np.fromiter((one.dur for one in spans), np.float64, n) * 1e3
        self.columns.add(
            start_ns,
            length_ns,
            np.fromiter((rows[one.pid, one.tid, one.cat] for one in spans), np.int32, n),
            0,
            np.fromiter((names[one.name] for one in spans), np.int32, n),
        )

    def _operation(self, name: str) -> str:
        """The operation of a collective that ranks do together; "" of a call that only asks for one."""
        if name not in self._operations and len(self._operations) < MOST_NAMES:
            self._operations[name] = "" if name.startswith("c10d::") else operation_of(name, self._more)
        return self._operations.get(name, "")

    def _note(self, one: ChromeEvent) -> None:
        """Remember what the trace says of a collective: its group, and which of the group's it is."""
        start = one.ts * 1e3
        if not math.isfinite(start) or len(self.collectives) >= MOST_COLLECTIVES:
            return
        told = one.args
        group = f"{told.group} {told.ranks}" if isinstance(told.ranks, str) and told.ranks else ""
        order = told.order if isinstance(told.order, int) and 0 <= told.order < 1 << 62 else -1
        key = key_of(group[: 4 * MOST_NAME], self._operation(one.name))
        self.collectives[self.tables.rows[one.pid, one.tid, one.cat], round(start)] = key, order

    def _note_operator(self, one: ChromeEvent, operators: dict[Any, str]) -> None:
        """Remember by which operator a kernel was launched."""
        number, start = one.args.external, one.ts * 1e3
        if not isinstance(number, int) or not math.isfinite(start):
            return
        if one.cat in OPERATORS:
            operators[number] = one.name
        elif one.cat in GPU_KINDS:
            self._launched[self.tables.rows[one.pid, one.tid, one.cat], round(start)] = number

    def names_of(self, row: NDArray, start: NDArray, name: NDArray) -> NDArray:
        """The names of spans, those of kernels by operator if that was asked for and is known."""
        if not self._operators:
            return name
        names, name = self.tables.names, name.copy()
        for at, key in enumerate(zip(row.tolist(), start.tolist(), strict=True)):
            operator = self._operators.get(self._launched.get(key))
            if operator is not None:
                name[at] = names[operator]
        return name

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
        for name, _ in self._unknown.most_common(1):
            yield (
                f"{self._unknown.total()} kernels are of collectives by the trace, and not by their names: "
                f"counted as work; if they exchange data, use --collective, most of all for {quoted(name)}."
            )
        for part in self._more:
            if not any(part.lower() in name.lower() for name in self._operations):
                yield f"A trace has no span with {quoted(part)} in its name, as --collective says."


def read_chrome(
    file: TraceFile, *, rows: str = "auto", collectives: Sequence[str] = (), by_operator: bool = False
) -> Recording:
    """The recording of a Chrome trace.

    rows         auto, thread or process: what a device is where the trace shows no accelerator
    collectives  parts of the names of further collectives
    by_operator  call kernels after the operators that launched them, where the trace tells these
    Raises FormatError for a file that is no trace.
    """
    elements = JsonElements(file, Shape(ChromeEvent), "traceEvents")
    collector = _Collector(collectives, by_operator=by_operator)
    for block in elements.blocks():
        collector.add(block)
    start, stop, row, _, name = collector.columns.take()
    tables = collector.tables
    labels = Labels(tables.processes, tables.threads, bool(elements.head.get("deviceProperties")))
    rule = rule_of(tables.rows.known, rows, labels)
    device_of, kind_of, devices = _devices(rule, tables, labels, _rank(elements.head))
    own, kind = device_of[row], kind_of[row]
    kind = rule.kind_by_name(kind, name, tables.names.known, collectives)
    name = rule.name_by_frame(start, stop, own, kind, collector.names_of(row, start, name))
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
        is_movable=rule.is_movable,
        faults=tuple(faults),
        collectives=_collectives(collector, row[kept], start[kept]),
        host=_host(tables, row, start + base, stop + base, name) if rule.by in ("gpu", "process") else None,
    )


def _collectives(collector: _Collector, row: NDArray, start: NDArray) -> Collectives | None:
    """Which of the spans that are kept are collectives, and what the trace says of them."""
    if not collector.collectives:
        return None
    rows = np.unique([one for one, _ in collector.collectives])
    keys: dict[str, int] = {}
    at_rows = np.flatnonzero(np.isin(row, rows)).tolist()
    known = ((at, collector.collectives.get((int(row[at]), int(start[at])))) for at in at_rows)
    found = [(at, keys.setdefault(told[0], len(keys)), told[1]) for at, told in known if told is not None]
    if not found:
        return None
    columns = np.array(found, np.int64)
    return Collectives(columns[:, 0], columns[:, 1].astype(np.int32), columns[:, 2], tuple(keys))


def _host(tables: _Tables, row: NDArray, start: NDArray, stop: NDArray, name: NDArray) -> HostSpans | None:
    """The spans of the program that say what it did while devices waited."""
    categories: dict[str, int] = {}
    of_row = np.array([categories.setdefault(one[2], len(categories)) for one in tables.rows.known] + [-1])
    category = of_row[row]
    known = list(categories)
    pairs, which = np.unique(category * np.int64(len(tables.names.known)) + name, return_inverse=True)
    n_names = len(tables.names.known)
    kinds = [
        host_kind(known[at // n_names], tables.names.known[at % n_names]) if at >= 0 else -1 for at in pairs
    ]
    kind = np.array(kinds, np.int8)[which] if len(kinds) else np.empty(0, np.int8)
    kept = kind >= 0
    if not kept.any():
        return None
    clock = np.zeros(int(kept.sum()), np.int32)
    return HostSpans(start[kept], stop[kept], clock, kind[kept], name[kept])


def _window(collector: _Collector, start: NDArray, stop: NDArray, row: NDArray) -> tuple[int, int] | None:
    """When torch's profiler began to record and ended; None of other traces."""
    at = [n for n, one in enumerate(collector.tables.rows.known) if is_window(one)]
    chosen = np.isin(row, at)
    return (int(start[chosen].min()), int(stop[chosen].max())) if chosen.any() else None


def _devices(rule: RowRule, tables: _Tables, labels: Labels, rank: str) -> tuple[NDArray, NDArray, list[str]]:
    """The device and the kind of each row (-1 for none), and the devices' names."""
    device_of = np.full(len(tables.rows.known) + 1, -1, np.int64)  # the last is for rows that were left out
    kind_of = np.full(len(tables.rows.known) + 1, -1, np.int64)
    numbers: dict[Any, int] = {}
    names: list[str] = []
    for at, (pid, tid, category) in enumerate(tables.rows.known):
        kind = rule.kind((pid, tid, category), labels)
        if kind is None:
            continue
        key = rule.key(pid, tid)
        if key not in numbers:
            if len(numbers) >= MOST_DEVICES:
                raise FormatError(f"more than {MOST_DEVICES} rows with spans", hint="use --rows process")
            numbers[key] = len(numbers)
            names.append(rank + rule.name(pid, tid, labels))
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
