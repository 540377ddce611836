"""``audit_traces``: audit trace files, whatever their formats, as one run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evenload.audit.audit import Audit, AuditParts, audit_of, with_devices
from evenload.audit.collectives import resolved
from evenload.audit.readers.chrome import read_chrome
from evenload.audit.readers.dask_stream import read_dask
from evenload.audit.readers.nsight import read_nsight
from evenload.audit.readers.own_run import read_own_run
from evenload.audit.readers.samples import is_bare, is_samples, read_samples
from evenload.audit.readers.trace_file import TraceFile
from evenload.audit.recording import Recording
from evenload.errors import ConfigError, FormatError, quoted


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The options of an audit.

    rows       what a device is in a Chrome trace without GPUs: auto, process or thread
    aligned    the files' clocks differ: each begins at 0
    n_devices  how many devices there were, if the trace does not show those that did nothing; else 0
    gap_s      idle stretches below are launch gaps; None: 100 µs for kernels, 10 ms for tasks
    collectives  parts of the names of kernels that are collectives, beside those that are known
    by_operator  kernels are called after the operators that launched them
    """

    rows: str = "auto"
    aligned: bool = False
    n_devices: int = 0
    gap_s: float | None = None
    collectives: tuple[str, ...] = ()
    by_operator: bool = False


def read_traces(paths: Sequence[str | Path], options: AuditOptions = AuditOptions()) -> Recording:
    """Read files of one run into one recording.

    Raises ConfigError for a file that cannot be read or an option that cannot be, FormatError for a file of
    no known format.
    """
    if options.gap_s is not None and not 0 <= options.gap_s <= 86_400:
        raise ConfigError(f"a launch gap of {options.gap_s} s", hint="give seconds, such as 0.0001")
    seen: set[Path] = set()
    for path in map(Path, paths):
        if path.resolve() in seen:
            raise ConfigError(f"{quoted(str(path), 200)} is given twice", hint="name each trace once")
        seen.add(path.resolve())
    read = [replace(read_trace(path, options), file=path.name) for path in map(Path, paths)]
    recording = resolved(read, aligned=options.aligned)
    if options.gap_s is not None:
        recording = replace(recording, gap_ns=round(options.gap_s * 1e9))
    return with_devices(recording, options.n_devices)


def audit_traces(paths: Sequence[str | Path], options: AuditOptions = AuditOptions()) -> Audit:
    """Audit trace files of one run: where the time of its devices went, and what would have helped.

    paths  Chrome traces (torch's profiler, Ray's timeline), Dask task streams, SQLite exports of Nsight
           Systems, CSV of nvidia-smi or DCGM, run folders of evenload
    Raises as ``read_traces``, and FormatError for traces in which nothing happened.
    """
    return audit_of(AuditParts(read_traces(paths, options)))


SQLITE = b"SQLite format 3\0"
TENSORRT = (b'"averageMs"', b'"startComputeMs"')
EVENT_LINE = b'{"event"'


def read_trace(path: Path, options: AuditOptions = AuditOptions()) -> Recording:
    """The recording of a file or a run folder, as ``options`` say of Chrome traces.

    Raises ConfigError for a file that cannot be read, FormatError for one of no known format.
    """
    if path.is_dir():
        return read_own_run(path)
    with TraceFile(path) as file:
        first = file.first.removeprefix(b"\xef\xbb\xbf").lstrip()
        if not first and file.is_cut:
            raise FormatError(
                f"{quoted(str(path), 200)} is damaged, or cut so early that nothing can be unpacked",
                hint="copy it again, or record again and let the profiler finish",
            )
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
            told = {"collectives": options.collectives, "by_operator": options.by_operator}
            return read_chrome(file, rows=options.rows, **told)
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
