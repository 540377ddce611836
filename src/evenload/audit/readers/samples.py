"""Samples of GPUs' load as a recording: CSV of nvidia-smi, of DCGM's fields, and the table of ``dcgmi dmon``.

    nvidia-smi --query-gpu=timestamp,index,utilization.gpu --format=csv -l 1 > load.csv

A sample tells of the time since the sample before. Of that, the share that the GPU was busy is work, at its
beginning; when in that time it was busy is not known, so the rest of a sample with some work is a cause of
its own (PARTLY). A sample of 0 is idle.
"""

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evenload.audit.readers.trace_file import TraceFile
from evenload.audit.recording import HOLE, MOST_DEVICES, PARTLY, WORK, Numbering, Recording, SpanColumns
from evenload.errors import FormatError, quoted

TIMES = ("timestamp", "time", "unix_time", "ts")
DEVICES = ("index", "gpu", "gpu_id", "gpu index", "entity", "pci.bus_id", "uuid", "gpu_uuid")
PERCENTS = ("utilization.gpu", "dcgm_fi_dev_gpu_util", "gpu_util", "gputl")
SHARES = ("dcgm_fi_prof_gr_engine_active", "gr_engine_active", "gract", "dcgm_fi_prof_sm_active", "smact")
NUMBER = re.compile(r"[-+]?\d{1,20}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?")
MOST_LINE = 1 << 16
MOST_SECONDS = 9e9  # from the epoch to 2255
MOST_SAMPLES = 50_000_000
ENTITIES = ("GPU", "GPU-I", "GPU-CI")  # GPUs, and their MIG instances
DMON_S = 1.0
LEAST_SAMPLES = 6
HOLE_TIMES = 10  # the usual time between two samples: nobody knows what was in a longer one
BARE_LINE = re.compile(rb"\s*\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d")
BLOCK = 1 << 20
HINT = "record with: nvidia-smi --query-gpu=timestamp,index,utilization.gpu --format=csv -l 1"


def is_samples(first: bytes) -> bool:
    """Whether a file begins like samples: a head that names a GPU's load."""
    head = first[:MOST_LINE].decode("utf-8", "replace").lower()
    return any(name in head for name in (*PERCENTS, *SHARES))


def is_bare(first: bytes) -> bool:
    """Whether a file begins with a time, as samples do whose head was left out."""
    return BARE_LINE.match(first) is not None


def read_samples(file: TraceFile) -> Recording:
    """The recording of samples. Raises FormatError for a file that has none."""
    lines = _lines(file)
    head = next((line for line in lines if line.strip()), "")
    is_dmon = head.lstrip().startswith("#")
    rows = _dmon_rows(head, lines, file.path) if is_dmon else _csv_rows(head, lines, file.path)
    devices = Numbering(MOST_DEVICES, -1)
    times: dict[int, list[float]] = {}
    loads: dict[int, list[float]] = {}
    n_bad = n_good = 0
    for row in rows:
        if row is None:
            n_bad += 1
            continue
        device, seconds, load = row
        n_good += 1
        if n_good > MOST_SAMPLES:
            raise FormatError(f"more than {MOST_SAMPLES:,} samples", hint="cut the file")
        at = devices[device]
        times.setdefault(at, []).append(seconds)
        loads.setdefault(at, []).append(load)
    if not n_good:
        raise FormatError(
            f"{quoted(str(file.path), 200)} has no sample that can be read: each needs a time and a load",
            hint=HINT,
        )
    said = [f"{quoted(file.path.name)}: {n_bad} × a line that is no sample: left out."] if n_bad else []
    return _recording(devices, times, loads, (*file.faults(), *said))


def _recording(
    devices: Numbering, times: dict[int, list[float]], loads: dict[int, list[float]], faults: tuple[str, ...]
) -> Recording:
    columns = SpanColumns()
    first_ns, last_ns, n_holes = [], [], 0
    for at in range(len(devices.known)):
        order = np.argsort(times[at], kind="stable")
        t_ns = np.rint(np.array(times[at])[order] * 1e9).astype(np.int64)
        _check_one_gpu(t_ns, devices.known[at])
        load = np.array(loads[at])[order]
        usual_ns = int(np.median(np.diff(t_ns))) if len(t_ns) > 1 else 1_000_000_000
        begin = np.concatenate([[t_ns[0] - usual_ns], t_ns[:-1]])
        hole = np.flatnonzero(t_ns - begin > HOLE_TIMES * max(usual_ns, 1))
        columns.add(begin[hole], t_ns[hole] - usual_ns - begin[hole], np.full(len(hole), at), HOLE)
        begin[hole] = t_ns[hole] - usual_ns
        n_holes += len(hole)
        length = t_ns - begin
        busy = np.rint(length * load).astype(np.int64)
        columns.add(begin, busy, np.full(len(begin), at), WORK)
        part = (load > 0) & (load < 1)
        columns.add((begin + busy)[part], (length - busy)[part], np.full(int(part.sum()), at), PARTLY)
        first_ns.append(int(begin[0]))
        last_ns.append(int(t_ns[-1]))
    return Recording(
        "samples of GPU load",
        tuple(_device_name(one) for one in devices.known),
        *columns.take(),
        window_ns=(min(first_ns), max(last_ns)),
        has_items=False,
        faults=(*faults, *columns.faults(), *_holes_told(n_holes)),
    )


def _holes_told(n_holes: int) -> Iterator[str]:
    if n_holes:
        yield (
            f"{n_holes} × more than {HOLE_TIMES} times the usual time between two samples: not recorded, so "
            "neither work nor idle."
        )


def _check_one_gpu(t_ns: NDArray[np.int64], device: str) -> None:
    """Refuse samples of several GPUs that nothing tells apart: one of them would hide the others."""
    step_ns = np.diff(t_ns)
    least_ns = 0
    if not device and len(t_ns) >= LEAST_SAMPLES:  # one query asks GPU after GPU, within milliseconds
        least_ns = int(np.quantile(step_ns, 0.95, method="lower")) // 20
    if len(t_ns) > 1 and np.count_nonzero(step_ns <= least_ns) > 0.4 * len(step_ns):
        raise FormatError(
            f"{quoted(_device_name(device))} has several samples of the same time: of several GPUs?",
            hint=f"write which GPU a sample is of; {HINT.removeprefix('record with: ')}",
        )


def _device_name(text: str) -> str:
    return f"gpu:{text}" if text.isdecimal() else text or "gpu"


def _lines(file: TraceFile) -> Iterator[str]:
    """Yield lines, cut to MOST_LINE characters."""
    rest = b""
    while block := file.read(BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line[:MOST_LINE].decode("utf-8", "replace")
        rest = rest[:MOST_LINE]
    if rest:
        yield rest.decode("utf-8", "replace")


def _cells(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line.replace("\r", "")]), [])]
    except csv.Error:
        return []


def _csv_rows(head: str, lines: Iterator[str], path: Path) -> Iterator[tuple[str, float, float] | None]:
    """Yield device, seconds and load of each line; None for one that is no sample."""
    names = [re.sub(r"\s*\[.*\]", "", cell).lower() for cell in _cells(head.removeprefix("\ufeff"))]
    time, device = _column(names, TIMES), _column(names, DEVICES)
    percent, share = _column(names, PERCENTS), _column(names, SHARES)
    load = percent if percent is not None else share
    if time is None or load is None:
        missing = "a time" if time is None else "a load"
        raise FormatError(
            f"{quoted(str(path), 200)}: no column with {missing} among {quoted(', '.join(names))}", hint=HINT
        )
    for line in lines:
        cells = _cells(line)
        if len(cells) <= max(time, load, device or 0):
            if line.strip():
                yield None
            continue
        seconds, busy = _seconds(cells[time]), _share(cells[load], is_percent=percent is not None)
        is_good = seconds is not None and busy is not None
        yield (cells[device] if device is not None else "", seconds, busy) if is_good else None  # type: ignore


def _dmon_rows(head: str, lines: Iterator[str], path: Path) -> Iterator[tuple[str, float, float] | None]:
    """Rows as of ``_csv_rows``, for the table of ``dcgmi dmon``, whose samples are DMON_S apart."""
    names = head.replace("#", " ").lower().split()
    known = [at for at, name in enumerate(names) if name in PERCENTS or name in SHARES]
    if not known:
        raise FormatError(f"{quoted(str(path), 200)}: no column with a load among {quoted(' '.join(names))}")
    at, is_percent = known[0] - len(names), names[known[0]] in PERCENTS
    n_seen: dict[str, int] = {}
    for line in lines:
        words = line.split()
        if len(words) < len(names) + 1 or words[0].upper() not in ENTITIES:
            if line.strip() and not line.lstrip().startswith(("#", "ID", "Id", "Entity")):
                yield None
            continue
        busy = _share(words[at], is_percent=is_percent)
        device = words[1][:40] if words[0].upper() == "GPU" else f"{words[0]} {words[1]}"[:40]
        n_seen[device] = n_seen.get(device, 0) + 1
        yield None if busy is None else (device, n_seen[device] * DMON_S, busy)


def _column(names: list[str], wanted: tuple[str, ...]) -> int | None:
    return next((names.index(name) for name in wanted if name in names), None)


def _share(text: str, *, is_percent: bool) -> float | None:
    """The share of its time that a GPU was busy; None of a text that is no load."""
    match = NUMBER.match(text)
    if not match or text[match.end() :].strip() not in ("", "%"):
        return None
    share = float(match[0]) / (100 if is_percent else 1)
    return min(1.0, share) if 0 <= share <= 1.001 else None


def _seconds(text: str) -> float | None:
    """Seconds of a time as nvidia-smi writes it, an ISO time, or a number of seconds or milliseconds."""
    if NUMBER.fullmatch(text):
        number = float(text)
        number = number / 1e3 if number > 1e11 else number
        return number if 0 <= number <= MOST_SECONDS else None
    try:
        found = datetime.fromisoformat(text[:40].replace("/", "-"))
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
