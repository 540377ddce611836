"""evenload's own runs as recordings: a run folder, or its events.jsonl."""

from pathlib import Path

from evenload.audit.recording import LOADING, MOST_DEVICES, REPEAT, WORK, Numbering, Recording, SpanColumns
from evenload.errors import FormatError
from evenload.events import RunFinished, RunStarted, Span, WorkerStarted
from evenload.report.source import open_run

GAP_NS = 10_000_000
MOST_NAMES = 10_000
N_ROWS = 10_000


def read_own_run(path: Path) -> Recording:
    """The recording of a run. Raises ConfigError if there is none, FormatError for too many devices."""
    run = open_run(path)
    devices, names = Numbering(MOST_DEVICES, -1), Numbering(MOST_NAMES, 0, [""])
    columns = SpanColumns()
    waiting: list[tuple[float, float, int, int, int]] = []
    end_s = 0.0
    for event in run:
        if isinstance(event, RunStarted):
            for device in event.devices:
                devices[device]
        elif isinstance(event, Span):
            kind = WORK if event.status in ("ok", "failed") else REPEAT
            waiting.append((event.start_s, event.stop_s, devices[event.device], kind, names[event.stage]))
        elif isinstance(event, WorkerStarted):
            at = devices[event.device]
            waiting.append((event.t - event.startup_s, event.t, at, LOADING, names["start of a worker"]))
        elif isinstance(event, RunFinished):
            end_s = max(end_s, event.t)
        if len(waiting) >= N_ROWS:
            columns.add_rows(waiting)
            waiting.clear()
    columns.add_rows(waiting)
    if devices.n_others:
        raise FormatError(f"more than {MOST_DEVICES} devices")
    return Recording(
        "evenload run",
        tuple(devices.known),
        *columns.take(),
        names=tuple(names.known),
        gap_ns=GAP_NS,
        window_ns=(0, round(end_s * 1e9)) if end_s > 0 else None,
        faults=(*run.faults(), *columns.faults()),
    )
