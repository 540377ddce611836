"""A run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: one track per worker slot.

A process per device; in it a track per worker slot with a slice per chunk, and one for the policy's waits.
A process for the run holds the deals, from which arrows lead to the chunks, and the counters. Events are
written as they come; only two numbers per chunk are kept, for the counter of running chunks.

Format: "Trace Event Format", Google, JSON object form.
"""

import gzip
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from evenload._private_files import read_unpacked
from evenload._version import __version__
from evenload.balance.factors import kind_of_idle
from evenload.errors import ConfigError, quoted, reason_of
from evenload.events import (
    DeviceSample,
    Event,
    Idle,
    ItemFailed,
    Moved,
    Note,
    Queued,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
    WorkerExited,
    WorkerStarted,
    json_text,
)
from evenload.report.worker_tracks import WorkerTracks

__all__ = ["Guest", "read_guest"]

MAX_BYTES = 2 << 30
_KEPT = frozenset("XBEiICMsftbne")


@dataclass(frozen=True)
class Guest:
    """A trace of another tool: ``events`` of the Trace Event Format in microseconds, and the time of their
    zero (``base_unix_us``) if it is known."""

    name: str
    events: tuple[Mapping[str, Any], ...]
    base_unix_us: float | None

    def rows(self, run_unix_s: float | None, first_pid: int) -> Iterator[dict[str, Any]]:
        """The events on the run's clock, in processes numbered from ``first_pid``."""
        shift_us = 0.0
        if self.base_unix_us is not None and run_unix_s:
            shift_us = self.base_unix_us - run_unix_s * 1e6
        pids: dict[Any, int] = {}
        for event in self.events:
            pid = pids.get(event.get("pid", 0))
            if pid is None:
                pid = pids[event.get("pid", 0)] = first_pid + len(pids)
                label = f"{self.name}: process {event.get('pid', 0)}"
                yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": label}}
            if event["ph"] == "M" and event.get("name") == "process_name":
                continue
            row = {**event, "pid": pid}
            if isinstance(row.get("ts"), int | float):
                row["ts"] = row["ts"] + shift_us
            if "id" in row:  # arrows of different tools must not meet
                row["id"] = f"{first_pid}-{row['id']}"
            yield row


def read_guest(path: str | Path) -> Guest:
    """The trace in ``path``. Raises ConfigError if it is neither a Chrome trace nor rows of NVTX ranges."""
    path = Path(path)
    hint = "give what torch's profiler.export_chrome_trace wrote, or nsys stats --format json"
    try:
        found = json.loads(read_unpacked(path, MAX_BYTES))
    except OSError as error:
        why = reason_of(error)
        raise ConfigError(f"cannot read {quoted(str(path), 200)}: {why}", hint=hint) from error
    except MemoryError as error:
        said = f"{quoted(str(path), 200)} does not fit into this machine's memory"
        raise ConfigError(said, hint="record less of it") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{quoted(str(path), 200)} is no trace: {error}", hint=hint) from error
    if isinstance(found, list) and found and all(isinstance(row, dict) for row in found):
        if any("Start (ns)" in row for row in found):
            return Guest(f"NVTX {path.name}", tuple(_nvtx(found)), None)
        found = {"traceEvents": found}
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        raise ConfigError(f"{quoted(str(path), 200)} is no trace: it has no traceEvents", hint=hint)
    base = found.get("baseTimeNanoseconds")
    events = tuple(one for one in found["traceEvents"] if isinstance(one, dict) and one.get("ph") in _KEPT)
    return Guest(path.name, events, base / 1e3 if isinstance(base, int | float) else None)


def _nvtx(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        try:
            start, stop = float(row["Start (ns)"]), float(row["End (ns)"])
            pid, tid = int(row.get("PID", 0)), int(row.get("TID", 0))
        except (KeyError, TypeError, ValueError):
            continue
        name = str(row.get("Name", "range"))
        yield {
            "ph": "X",
            "name": name,
            "cat": "nvtx",
            "ts": start / 1e3,
            "dur": (stop - start) / 1e3,
            "pid": pid,
            "tid": tid,
        }


__all__ = ["TraceWriter", "write_trace"]

RUN_PID = 1
DEALS_TID = 1
DEALS, NOTES = (RUN_PID, DEALS_TID), (RUN_PID, 2)  # process and thread
WAITS_TID = 1_000
GUEST_PID = 100_000
MAX_ARROWS = 50_000
MAX_COUNTER_POINTS = 20_000
# Names Chrome knows as colours; Perfetto chooses its own from the slice's name.
_COLOURS = {"failed": "terrible", "lost": "black", "superseded": "grey"}
_LAYOUT = {"separators": (",", ":"), "ensure_ascii": True}


class TraceWriter:
    """A sink that writes ``out`` as events come; ``close()`` completes the file, but leaves ``out`` open."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_first = True
        self._tracks = WorkerTracks()
        self._pids: dict[str, int] = {}
        self._tids: set[tuple[int, int]] = set()
        self._starts, self._stops = array("d"), array("d")
        self._n_done = self._n_arrows = self._n_guests = 0
        self._unix_s: float | None = None
        self._stage_began: dict[str, float] = {}
        self._out.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        self._name("process_name", (RUN_PID, 0), "run")
        self._name("thread_name", DEALS, "deals")
        self._name("thread_name", NOTES, "stages and notes")

    def __call__(self, event: Event) -> None:
        match event:
            case Span():
                self._on_span(event)
            case Idle():
                self._on_idle(event)
            case WorkerStarted():
                self._on_worker(event)
            case WorkerExited():
                self._on_exit(event)
            case ItemFailed():
                args = {"stage": event.stage, "item": event.item, "message": event.message[:2000]}
                at = (self._pid(event.device), 1) if event.device else NOTES
                self._instant(event.t, at, f"failed: {event.error}", args)
            case Moved():
                name = f"moved {event.n_items}: {event.source} to {event.target}"
                self._instant(event.t, NOTES, name, {"imbalance": event.imbalance}, scope="g")
            case Queued():
                if event.waiting is not None:
                    self._counter(event.t, RUN_PID, "waiting items", {event.stage: event.waiting})
                self._counter(event.t, RUN_PID, "running items", dict(event.running))
            case DeviceSample():
                self._on_sample(event)
            case RunStarted():
                self._unix_s = self._unix_s or event.unix_s - event.t
                self._name("process_name", (RUN_PID, 0), f"run {event.name}")
                for device, facts in event.devices.items():
                    self._pid(device, str(facts.get("name", "")))
            case StageStarted():
                self._stage_began[event.stage] = event.t
            case StageFinished():
                self._on_stage_end(event)
            case Note() if event.level in ("warning", "error"):
                self._instant(event.t, NOTES, f"{event.level}: {event.text[:200]}")
            case RunFinished():
                self._instant(event.t, NOTES, f"run {event.status}", dict(event.facts), scope="g")

    def add_guest(self, guest: Guest) -> None:
        """Another tool's slices, in processes of their own; on the run's clock if both clocks are known."""
        for row in guest.rows(self._unix_s, first_pid=GUEST_PID + 1000 * self._n_guests):
            self._write(row)
        self._n_guests += 1

    def close(self) -> None:
        self._write_running()
        self._out.write(f'\n],"otherData":{json.dumps({"made_by": f"evenload {__version__}"})}}}\n')

    def _on_span(self, span: Span) -> None:
        at, items = self._track(span.device, span.worker), _items_text(span)
        args = {"items": items, "n_items": span.n_items, "busy_s": span.busy_s, "status": span.status}
        args |= {"why": span.why} if span.why else {}
        args |= {"duplicate": True} if span.duplicate else {}
        name = f"{span.stage} {items}" if span.status == "ok" else f"{span.stage} {items} ({span.status})"
        self._slice(span.start_s, span.stop_s, at, name, args, _COLOURS.get(span.status), span.stage)
        self._starts.append(span.start_s)
        self._stops.append(max(span.start_s, span.stop_s))
        if span.dealt_s is not None and self._n_arrows < MAX_ARROWS:
            self._arrow(span, at, name)
        if span.status in ("ok", "failed"):
            self._n_done += span.n_items
            self._counter(span.stop_s, RUN_PID, "items back", {"items": self._n_done})

    def _arrow(self, span: Span, at: tuple[int, int], name: str) -> None:
        """From the deal to the chunk. The deal is a slice of one microsecond, so that deals never overlap."""
        self._n_arrows += 1
        dealt_s = min(span.dealt_s or 0.0, span.start_s)
        args = {"to": span.device, "why": span.why}
        self._slice(dealt_s, dealt_s + 1e-6, DEALS, f"{name} → {span.device}", args)
        flow = {"cat": "deal", "name": "deal", "id": self._n_arrows}
        self._write({"ph": "s", "ts": _us(dealt_s), **_at(DEALS), **flow})
        self._write({"ph": "f", "bp": "e", "ts": _us(span.start_s), **_at(at), **flow})

    def _on_idle(self, idle: Idle) -> None:
        at, kind = (self._pid(idle.device), WAITS_TID), kind_of_idle(idle.why)
        self._name_once(at, "waits")
        self._slice(idle.start_s, idle.stop_s, at, idle.why or kind, {"counts as": kind}, "grey")

    def _on_worker(self, event: WorkerStarted) -> None:
        at, start_s = self._track(event.device, event.worker), max(0.0, event.t - event.startup_s)
        self._slice(start_s, event.t, at, "start-up", {"worker": event.worker, "process": event.pid}, "grey")

    def _on_exit(self, event: WorkerExited) -> None:
        self._tracks.see(event)
        if event.reason != "closed":
            at = self._pid(event.device), self._tracks.of(event.device, event.worker) + 1
            self._instant(event.t, at, f"worker lost: {event.reason}")

    def _on_stage_end(self, event: StageFinished) -> None:
        began_s, name = self._stage_began.pop(event.stage, event.t), f"stage {event.stage}"
        self._slice(began_s, event.t, NOTES, name, {"bound_s": event.bound_s})

    def _on_sample(self, sample: DeviceSample) -> None:
        pid = self._pid(sample.device)
        if sample.utilization is not None:
            self._counter(sample.t, pid, "utilisation %", {"%": round(100 * sample.utilization, 1)})
        if sample.memory_used_bytes is not None:
            self._counter(sample.t, pid, "memory MiB", {"MiB": round(sample.memory_used_bytes / 2**20, 1)})
        if sample.temperature_c is not None:
            self._counter(sample.t, pid, "temperature °C", {"°C": sample.temperature_c})

    def _write_running(self) -> None:
        """Chunks running at the same time, at no more than ``MAX_COUNTER_POINTS`` moments."""
        starts, stops = sorted(self._starts), sorted(self._stops)
        if not stops:
            return
        step_s = stops[-1] / MAX_COUNTER_POINTS
        i = j = 0
        written = -step_s
        while j < len(stops):
            t = min(starts[i], stops[j]) if i < len(starts) else stops[j]
            while i < len(starts) and starts[i] <= t:
                i += 1
            while j < len(stops) and stops[j] <= t:
                j += 1
            if t - written >= step_s or j == len(stops):
                self._counter(t, RUN_PID, "running chunks", {"chunks": i - j})
                written = t

    def _pid(self, device: str, name: str = "") -> int:
        if device not in self._pids:
            self._pids[device] = RUN_PID + 1 + len(self._pids)
            self._name("process_name", (self._pids[device], 0), f"{device} {name}".strip())
            sort = {"sort_index": self._pids[device]}
            self._write({"ph": "M", "name": "process_sort_index", "pid": self._pids[device], "args": sort})
        return self._pids[device]

    def _track(self, device: str, worker: str) -> tuple[int, int]:
        at = self._pid(device), self._tracks.of(device, worker) + 1
        self._name_once(at, f"worker {at[1]}")
        return at

    def _name_once(self, at: tuple[int, int], name: str) -> None:
        if at not in self._tids:
            self._tids.add(at)
            self._name("thread_name", at, name)

    def _name(self, kind: str, at: tuple[int, int], name: str) -> None:
        self._write({"ph": "M", "name": kind, **_at(at), "args": {"name": name}})

    def _slice(
        self, start_s: float, stop_s: float, at: tuple[int, int], name: str, args: dict[str, Any],
        colour: str | None = None, category: str = "evenload",
    ) -> None:  # fmt: skip
        # Both ends are rounded, not the length: slices that touch must not come to overlap.
        length = max(0, _us(stop_s) - _us(start_s))
        row = {"ph": "X", "name": name, "cat": category, "ts": _us(start_s), "dur": length, **_at(at)}
        self._write({**row, **({"cname": colour} if colour else {}), "args": args})

    def _instant(
        self, t: float, at: tuple[int, int], name: str, args: dict[str, Any] | None = None, scope: str = "t"
    ) -> None:
        self._write({"ph": "i", "s": scope, "name": name, "ts": _us(t), **_at(at), "args": args or {}})

    def _counter(self, t: float, pid: int, name: str, values: dict[str, float]) -> None:
        self._write({"ph": "C", "name": name, "ts": _us(t), "pid": pid, "args": values})

    def _write(self, row: dict[str, Any]) -> None:
        self._out.write(("" if self._is_first else ",\n") + json_text(row, **_LAYOUT))
        self._is_first = False


def _items_text(span: Span) -> str:
    if span.items:
        return ", ".join(map(str, span.items[:20])) + (", …" if len(span.items) > 20 else "")
    return f"{span.index}" if span.n_items <= 1 else f"{span.index}–{span.index + span.n_items - 1}"


def _at(at: tuple[int, int]) -> dict[str, int]:
    return {"pid": at[0], "tid": at[1]}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def write_trace(events: Iterable[Event], path: str | Path, merged: Iterable[str | Path] = ()) -> None:
    """Write the trace of ``events`` to ``path``; one ending in ``.gz`` is compressed (Perfetto opens both).

    merged  traces of other tools to put beside it: see ``report.merge``
    Raises ConfigError if ``path`` cannot be written, or one of ``merged`` is no such trace.
    """
    path = Path(path)
    guests = [read_guest(guest) for guest in merged]
    try:
        is_packed = path.suffix == ".gz"
        with gzip.open(path, "wt", 5, "utf-8") if is_packed else path.open("w", encoding="utf-8") as out:
            writer = TraceWriter(out)
            for event in events:
                writer(event)
            for guest in guests:
                writer.add_guest(guest)
            writer.close()
    except OSError as error:
        hint = "choose another place with --trace"
        raise ConfigError(f"cannot write {quoted(str(path), 200)}: {error.strerror}", hint=hint) from error
