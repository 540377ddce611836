"""Traces of other tools, to be seen beside a run's own: the torch profiler's, NVTX ranges from Nsight.

    torch:  profiler.export_chrome_trace("torch.json")                       (.json or .json.gz)
    NVTX:   nsys stats --report nvtx_pushpop_trace --format json run.nsys-rep > nvtx.json

The torch profiler says when its clock began (``baseTimeNanoseconds``), so its slices land where they belong.
NVTX ranges count from the start of their own recording: they are laid from the run's start.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload._private_files import read_unpacked
from evenload.errors import ConfigError, quoted, reason_of

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
