"""``read_trace``: the recording of a trace file, by what its content is, whatever its name."""

from collections.abc import Sequence
from pathlib import Path

from evenload.audit.readers.chrome import read_chrome
from evenload.audit.readers.dask_stream import read_dask
from evenload.audit.readers.nsight import read_nsight
from evenload.audit.readers.own_run import read_own_run
from evenload.audit.readers.samples import is_bare, is_samples, read_samples
from evenload.audit.readers.trace_file import TraceFile
from evenload.audit.recording import Recording
from evenload.errors import FormatError, quoted

__all__ = ["read_trace"]

SQLITE = b"SQLite format 3\0"
TENSORRT = (b'"averageMs"', b'"startComputeMs"')
EVENT_LINE = b'{"event"'


def read_trace(
    path: Path, *, rows: str = "auto", collectives: Sequence[str] = (), by_operator: bool = False
) -> Recording:
    """The recording of a file or a run folder.

    rows         auto, process or thread: what a device is in a Chrome trace
    collectives  parts of the names of further collectives, in a Chrome trace
    by_operator  call kernels after the operators that launched them, in a Chrome trace
    Raises ConfigError for a file that cannot be read, FormatError for one of no known format.
    """
    if path.is_dir():
        return read_own_run(path)
    with TraceFile(path) as file:
        first = file.first.removeprefix(b"\xef\xbb\xbf").lstrip()
        if first.startswith(SQLITE):
            return read_nsight(file)
        if first.startswith(EVENT_LINE):
            return read_own_run(path)
        if first.startswith(b"[") and b'"startstops"' in first:
            return read_dask(file)
        if any(word in first for word in TENSORRT):
            raise FormatError(
                f"{quoted(str(path), 200)} is a profile of TensorRT's trtexec: it has no times of start",
                hint="record with nsys profile, and audit nsys export --type sqlite",
            )
        if first.startswith((b"[", b"{")):
            return read_chrome(file, rows=rows, collectives=collectives, by_operator=by_operator)
        if is_samples(first):
            return read_samples(file)
        if is_bare(first):
            raise FormatError(
                f"{quoted(str(path), 200)} has no head that names its columns",
                hint="leave noheader out of nvidia-smi's --format, or write the names of its query as the "
                "first line",
            )
    raise FormatError(
        f"{quoted(str(path), 200)} is no trace of a known format",
        hint="give a Chrome trace (torch's profiler, ray.timeline()), a Dask task stream as JSON, an SQLite "
        "export of Nsight Systems, CSV of nvidia-smi or DCGM, or a run folder of evenload",
    )
