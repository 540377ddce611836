"""Nsight Systems' exported SQLite as a recording, by NVIDIA's documented schema.

    nsys export --type sqlite report.nsys-rep

Kernels, CUDA graphs, copies and sets of a GPU's streams are one device. A process numbers the GPUs that it
sees; which they are, ``TARGET_INFO_CUDA_DEVICE`` tells. The file is a stranger's: it is opened for reading
alone, its views and triggers are not used, and what it returns is checked as everything else.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from evenload.audit.collective_names import operation_of
from evenload.audit.readers.trace_file import TraceFile
from evenload.audit.recording import (
    EXCHANGE,
    MOST_DEVICES,
    MOST_NAME,
    WORK,
    Numbering,
    Recording,
    SpanColumns,
)
from evenload.errors import FormatError, quoted

TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": WORK,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": WORK,  # whole CUDA graphs: their kernels are not listed
    "CUPTI_ACTIVITY_KIND_MEMSET": WORK,
    "CUPTI_ACTIVITY_KIND_MEMCPY": EXCHANGE,
}
MOST_NAMES = 100_000
N_ROWS = 10_000
N_INSTRUCTIONS = 20_000_000_000
STEP = 1_000_000
MOST_VALUE = 1 << 20  # bytes


def read_nsight(file: TraceFile) -> Recording:
    """The recording of an export. Raises FormatError for a file that is none."""
    path = file.path
    try:
        with contextlib.closing(_opened(path)) as database:
            return _read(database, path)
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{quoted(str(path), 200)} is no SQLite export of Nsight Systems: {quoted(str(error))}",
            hint="make one with: nsys export --type sqlite report.nsys-rep",
        ) from None


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA query_only = ON")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE)
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    left = [N_INSTRUCTIONS // STEP]

    def go_on() -> bool:
        left[0] -= 1
        return left[0] < 0

    database.set_progress_handler(go_on, STEP)
    return database


def _read(database: sqlite3.Connection, path: Path) -> Recording:
    known = {str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    found = [name for name in TABLES if name in known]
    if not found:
        raise FormatError(
            f"{quoted(str(path), 200)} has no table of kernels or copies",
            hint="record with: nsys profile --trace cuda",
        )
    devices, names = Numbering(MOST_DEVICES, -1), Numbering(MOST_NAMES, 0, [""])
    texts = dict(_texts(database)) if "StringIds" in known else {}
    gpu_of = _gpus(database) if "TARGET_INFO_CUDA_DEVICE" in known else {}
    columns = SpanColumns()
    n_wrong = 0
    for table in found:
        for rows in _blocks(database, table):
            good = [one for one in rows if all(type(value) is int for value in one[:3])]
            n_wrong += len(rows) - len(good)
            if good:
                own = [devices[gpu_of.get((_pid(one[4]), one[2]), one[2])] for one in good]
                _add(columns, good, TABLES[table], own, names, texts)
    faults = [*columns.faults()]
    if n_wrong:
        faults.append(f"{quoted(path.name)}: {n_wrong} × a row without whole numbers: left out.")
    start, stop, device, kind, name = columns.take()
    kept = device >= 0
    return Recording(
        "Nsight Systems",
        tuple(f"gpu:{one}" for one in devices.known),
        *(column[kept] for column in (start, stop, device, kind, name)),
        names=tuple(names.known),
        is_movable=False,
        faults=tuple(faults),
    )


def _add(
    columns: SpanColumns,
    rows: list[Any],
    kind: int,
    devices: list[int],
    names: Numbering,
    texts: dict[int, str],
) -> None:
    said = [
        texts.get(one[3], "") if isinstance(one[3], int) else str(one[3] or "")[:MOST_NAME] for one in rows
    ]
    kinds = [EXCHANGE if kind == WORK and operation_of(one) else kind for one in said]
    start = np.array([float(one[0]) for one in rows])
    length = np.array([float(one[1] - one[0]) for one in rows])
    columns.add(start, length, devices, kinds, [names[one] for one in said])


def _blocks(database: sqlite3.Connection, table: str) -> Iterator[list[Any]]:
    """Yield rows of start, end, device, name or its number, process. A missing column is an error."""
    has = {str(row[1]) for row in database.execute(f'PRAGMA table_info("{table}")')}
    name = next((one for one in ("shortName", "demangledName") if one in has), "NULL")
    if "graphId" in has and table.endswith("GRAPH_TRACE"):
        name = "'CUDA graph ' || graphId"
    process = "globalPid" if "globalPid" in has else "NULL"
    cursor = database.execute(f'SELECT start, "end", deviceId, {name}, {process} FROM "{table}"')
    while rows := cursor.fetchmany(N_ROWS):
        yield rows


def _pid(global_pid: object) -> int:
    """The process of a serialised identifier: its bits 24 to 47."""
    return global_pid >> 24 & 0xFFFFFF if isinstance(global_pid, int) else -1


def _gpus(database: sqlite3.Connection) -> dict[tuple[int, int], int]:
    """The GPU that each process knows by each number."""
    has = {str(row[1]) for row in database.execute("PRAGMA table_info(TARGET_INFO_CUDA_DEVICE)")}
    if not has >= {"pid", "cudaId", "gpuId"}:
        return {}
    rows = database.execute("SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE LIMIT ?", (MOST_NAMES,))
    return {
        (pid & 0xFFFFFF, number): gpu
        for pid, number, gpu in rows
        if isinstance(pid, int) and isinstance(number, int) and isinstance(gpu, int)
    }


def _texts(database: sqlite3.Connection) -> Iterator[tuple[int, str]]:
    cursor = database.execute(
        "SELECT id, substr(value, 1, ?) FROM StringIds LIMIT ?", (MOST_NAME, MOST_NAMES * 10)
    )
    for number, text in cursor:
        if isinstance(number, int) and isinstance(text, str):
            yield number, text
