"""Schedules with planted idleness, written in every format that ``evenload audit`` reads, and a slow twin.

A schedule is, for each device, what it did in each tick: None, WORK or EXCHANGE. A tick is 0.4 of the gap
below which a format's gaps are launch gaps, so gaps of one or two ticks are such, and longer ones are not.
"""

import gzip
import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

from evenload.audit.losses import CAUSES
from evenload.audit.recording import EXCHANGE, WORK
from evenload.events import EventFile, RunFinished, RunStarted, Span

Schedule = list[list[int | None]]
KERNEL_S, TASK_S = 40e-6, 4e-3
BEGIN_S = 1_795_000_000.0


def stretches(row: list[int | None]) -> Iterator[tuple[int, int, int]]:
    """Yield (first tick, tick after the last, kind) of each stretch of one kind."""
    at = 0
    for kind, ticks in groupby(row):
        n = len(list(ticks))
        if kind is not None:
            yield at, at + n, kind
        at += n


def spans(schedule: Schedule) -> list[tuple[int, int, int, int]]:
    """(device, first tick, tick after the last, kind) of every span, by time."""
    found = [(d, *one) for d, row in enumerate(schedule) for one in stretches(row)]
    return sorted(found, key=lambda one: (one[1], one[0]))


def expected_losses(schedule: Schedule, short: int = 2, *, excerpt: bool = False) -> dict[str, int]:
    """Ticks lost to each cause, tick by tick: the slow twin.

    short    the longest launch gap
    excerpt  all ticks were recorded, from a run that was longer
    """
    used = [d for d, row in enumerate(schedule) if any(kind is not None for kind in row)]
    first = min(next(t for t, kind in enumerate(schedule[d]) if kind is not None) for d in used)
    last = max(max(t for t, kind in enumerate(schedule[d]) if kind is not None) for d in used)
    states = [_states(row, short) for row in schedule]
    if excerpt:
        first, last = 0, len(schedule[0]) - 1
        ends = ("start-up", "tail")
        states = [["gap" if one in ends else one for one in row] for row in states]
    lost = dict.fromkeys(CAUSES, 0)
    for t in range(first, last + 1):
        n_busy = sum(one[t] in ("busy", "launch gaps") for one in states)
        for d, row in enumerate(schedule):
            state = states[d][t]
            begun = schedule[d].index(WORK) if WORK in schedule[d] else 0
            if t < begun and state != "not used" and not excerpt:
                state = "start-up"
            if state == "busy":
                lost["exchange"] += row[t] == EXCHANGE
            elif state == "gap":
                lost[("no device works", "serial", "waiting")[min(n_busy, 2)]] += 1
            else:
                lost[state] += 1
    return lost


def _states(row: list[int | None], short: int) -> list[str]:
    busy = [t for t, kind in enumerate(row) if kind is not None]
    if not busy:
        return ["not used"] * len(row)
    states = []
    for t, kind in enumerate(row):
        if kind is not None:
            states.append("busy")
        elif t < busy[0] or t > busy[-1]:
            states.append("start-up" if t < busy[0] else "tail")
        else:
            n = min(b for b in busy if b > t) - max(b for b in busy if b < t) - 1
            states.append("launch gaps" if n <= short else "gap")
    return states


def torch_gpu(schedule: Schedule, path: Path) -> float:
    """A trace of torch's profiler with GPUs; kernels overlap on two streams."""
    events: list[dict] = [
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}}
    ]
    for n, (d, a, b, kind) in enumerate(spans(schedule)):
        name, cat = ("gemm<{}>", "kernel") if kind == WORK else ("Memcpy DtoH", "gpu_memcpy")
        if kind == EXCHANGE and n % 2 and d == 0:  # nobody shares in them, so that nobody waits
            name, cat = "ncclDevKernel_AllReduce_Sum_f32", "kernel"
        whole = {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": d,
            "tid": 7,
            "args": {"stream": 7, "grid": [1, 2, 3]},
        }
        events.append({**whole, "ts": a * 40.0, "dur": (b - a) * 40.0})
        events.append({**whole, "tid": 20, "ts": a * 40.0 + 10, "dur": 15.0})
        events.append(
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 99, "tid": 1, "ts": 0, "dur": 1e6}
        )
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0}],
        "baseTimeNanoseconds": 1_790_000_000_000_000_000,
    }
    text = json.dumps({**head, "traceEvents": events, "traceName": "x"}, indent=1)
    with gzip.open(path, "wt") as file:
        file.write(text)
    return KERNEL_S


def torch_cpu(schedule: Schedule, path: Path) -> float:
    """A trace of torch's profiler on CPUs alone: a process for each device, operators within operators."""
    events: list[dict] = []
    for d, a, b, _ in spans(schedule):
        row = {"ph": "X", "cat": "cpu_op", "pid": 1000 + d, "tid": 1000 + d}
        events.append({**row, "name": "aten::linear", "ts": a * 40.0, "dur": (b - a) * 40.0})
        events.append({**row, "name": "aten::addmm", "ts": a * 40.0 + 1, "dur": 20.0})
    window = {"cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler"}
    events.append({"ph": "X", **window, "ts": 0, "dur": len(schedule[0]) * 40.0})
    path.write_text(json.dumps({"traceEvents": events}))
    return KERNEL_S


def chrome_threads(schedule: Schedule, path: Path) -> float:
    """A Chrome trace as an array without its end, in which spans begin and end by events of their own."""
    events: list[dict] = []
    for d, a, b, _ in spans(schedule):
        row = {"pid": 1, "tid": d, "cat": "x", "name": "step"}
        events += [{**row, "ph": "B", "ts": a * 40}, {**row, "ph": "E", "ts": b * 40}]
    path.write_text(json.dumps(sorted(events, key=lambda one: (one["ts"], one["ph"] == "B")))[:-1])
    return KERNEL_S


def ray_timeline(schedule: Schedule, path: Path) -> float:
    """A timeline of Ray: workers' tasks with their parts, and the driver's calls."""
    events: list[dict] = []
    for d, a, b, _ in spans(schedule):
        row = {"ph": "X", "pid": f"10.0.0.{d % 2}", "tid": f"worker:{d:02x}{'ab' * 20}", "args": {}}
        times = {"ts": BEGIN_S * 1e6 + a * 4000, "dur": (b - a) * 4000.0}
        events.append({**row, "cat": "task:execute", "name": "task:execute", **times})
        events.append({**row, "cat": "task::edit", "name": "edit", **times})
        driver = {"pid": "10.0.0.0", "tid": "driver:0100", "cat": "submit_task", "name": "submit_task"}
        events.append({"ph": "X", **driver, "ts": BEGIN_S * 1e6, "dur": 1e9})
    path.write_text(json.dumps(events))
    return TASK_S


def dask_stream(schedule: Schedule, path: Path) -> float:
    """A task stream of Dask."""
    tasks = []
    for n, (d, a, b, kind) in enumerate(spans(schedule)):
        step = {"action": "compute" if kind == WORK else "transfer"}
        step |= {"start": BEGIN_S + a * TASK_S, "stop": BEGIN_S + b * TASK_S}
        task = {"worker": f"tcp://10.0.0.{d}:1", "thread": 7, "key": f"edit-{n:032x}", "status": "OK"}
        tasks.append({**task, "nbytes": 28, "type": "b'x'", "startstops": [step]})
    path.write_text(json.dumps(tasks))
    return TASK_S


def nsight_sqlite(schedule: Schedule, path: Path) -> float:
    """An export of Nsight Systems, by its documented schema."""
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    database.execute("INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_AllGather')")
    columns = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, globalPid INTEGER"
    database.execute("CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER)")
    for d in range(len(schedule)):  # each in a process that sees no other
        database.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (?, 0, ?)", (d, 100 + d))
    database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({columns}, graphId INTEGER)")
    database.execute(
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns}, demangledName INTEGER, shortName INTEGER)"
    )
    database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({columns}, copyKind INTEGER, bytes INTEGER)")
    for n, (d, a, b, kind) in enumerate(spans(schedule)):
        row = (a * 40_000, b * 40_000, 0, 7, (1 << 48) + (100 + d << 24))
        if kind == WORK and n % 2:
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, ?, ?, ?, ?, 3)", row)
        elif n % 2:
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?, ?, 1, 4096)", row)
        else:
            row += (1, 1 if kind == WORK else 2)
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    database.commit()
    database.close()
    return KERNEL_S


def own_events(schedule: Schedule, path: Path) -> float:
    """An events.jsonl of evenload."""
    first = min(a for _, a, _, _ in spans(schedule))
    last = max(b for _, _, b, _ in spans(schedule))
    with path.open("w") as file:
        file.write("")
    sink = EventFile(path)
    sink(RunStarted(0.0, "planted", 0.0, devices={f"cpu:{d}": {} for d in range(len(schedule))}))
    for n, (d, a, b, _) in enumerate(spans(schedule)):
        times = ((a - first) * TASK_S, (b - first) * TASK_S)
        sink(Span("edit", f"cpu:{d}", f"cpu:{d}", n, 1, *times, times[1] - times[0]))
    sink(RunFinished((last - first) * TASK_S, "done"))
    sink.close()
    return TASK_S


def smi_csv(schedule: Schedule, path: Path) -> float:
    """What ``nvidia-smi --query-gpu=timestamp,index,name,utilization.gpu --format=csv -l 1`` prints."""
    lines = ["timestamp, index, name, utilization.gpu [%]"]
    for t in range(min(a for _, a, _, _ in spans(schedule)), max(b for _, _, b, _ in spans(schedule))):
        at = datetime.fromtimestamp(BEGIN_S, UTC) + timedelta(seconds=t + 1)
        stamp = f"{at:%Y/%m/%d %H:%M:%S}.{at.microsecond // 1000:03}"
        for d, row in enumerate(schedule):
            lines.append(f"{stamp}, {d}, NVIDIA H200, {100 if row[t] is not None else 0} %")
    path.write_text("\r\n".join(lines))
    return 1.0


FORMATS: dict[str, Callable[[Schedule, Path], float]] = {
    "torch.json.gz": torch_gpu,
    "cpu.json": torch_cpu,
    "chrome.json": chrome_threads,
    "ray.json": ray_timeline,
    "dask.json": dask_stream,
    "nsight.sqlite": nsight_sqlite,
    "events.jsonl": own_events,
    "load.csv": smi_csv,
}
"""File names and what writes them: each returns the seconds of a tick."""

EXCERPTS = ("cpu.json",)
TELLS_EXCHANGE = ("torch.json.gz", "dask.json", "nsight.sqlite")
KNOWS_UNUSED = ("events.jsonl", "load.csv")
