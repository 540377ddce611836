"""Dask's task stream as a recording: what ``distributed.get_task_stream`` lists, saved as JSON.

Each element is a task with ``worker``, ``thread``, ``key``, ``status`` and ``startstops``, a list of what was
done for it: compute, transfer, disk-read, disk-write, deserialize, in seconds since the epoch. A thread of a
worker is a device.
"""

from dataclasses import dataclass

from evenload.audit.readers.json_elements import JsonElements, Shape
from evenload.audit.readers.trace_file import TraceFile
from evenload.audit.recording import EXCHANGE, MOST_DEVICES, REPEAT, WORK, Numbering, Recording, SpanColumns
from evenload.errors import FormatError, quoted

GAP_NS = 10_000_000
MOST_NAMES = 100_000


@dataclass(slots=True)
class StartStop:
    """A stretch of time that went into one action for a task."""

    action: str = ""
    start: float = 0.0
    stop: float = -1.0


@dataclass(slots=True)
class DaskTask:
    """One task of the stream: where it ran, how it ended, and what was done when."""

    startstops: list[StartStop]
    worker: str = ""
    thread: int | str = ""
    key: str = ""
    status: str = "OK"


def read_dask(file: TraceFile) -> Recording:
    """The recording of a task stream. Raises FormatError for a file that is none."""
    elements = JsonElements(file, Shape(DaskTask), "startstops")
    devices, names = Numbering(MOST_DEVICES, -1), Numbering(MOST_NAMES, 0, [""])
    columns = SpanColumns()
    for block in elements.blocks():
        columns.add_rows(
            (step.start, step.stop, devices[task.worker, task.thread], _kind(step, task), names[_name(task)])
            for task in block
            for step in task.startstops
        )
    if devices.n_others:
        raise FormatError(f"{quoted(str(file.path), 200)}: more than {MOST_DEVICES} threads of workers")
    spans = columns.take()
    faults = [*file.faults(), *columns.faults()]
    if elements.n_damaged:
        faults.append(f"{quoted(file.path.name)}: {elements.n_damaged} × a task that is damaged: left out.")
    return Recording(
        "Dask task stream",
        tuple(_device_name(*one) for one in devices.known),
        *spans,
        tuple(names.known),
        GAP_NS,
        faults=tuple(faults),
    )


def _device_name(worker: str, thread: int | str) -> str:
    return f"{worker} / {thread}" if thread != "" else worker


def _name(task: DaskTask) -> str:
    """The name of a task's function: its key without what makes it unique."""
    key = task.key[2 : task.key.find("'", 2)] if task.key.startswith("('") else task.key
    name, _, unique = key.rpartition("-")
    return name if len(unique) >= 16 and name else key


def _kind(step: StartStop, task: DaskTask) -> int:
    if step.action != "compute":
        return EXCHANGE
    return WORK if task.status.upper() == "OK" else REPEAT
