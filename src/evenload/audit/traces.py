"""``audit_traces``: audit trace files, whatever their formats, as one run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evenload.audit.audit import Audit, AuditParts, audit_of, with_devices
from evenload.audit.collectives import resolved
from evenload.audit.readers.open_trace import read_trace
from evenload.audit.recording import Recording
from evenload.errors import ConfigError, quoted

__all__ = ["AuditOptions", "audit_traces", "read_traces"]


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
    read = [
        replace(
            read_trace(
                path,
                rows=options.rows,
                collectives=options.collectives,
                by_operator=options.by_operator,
            ),
            file=path.name,
        )
        for path in map(Path, paths)
    ]
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
