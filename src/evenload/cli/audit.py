"""``evenload audit TRACE...``: where devices' time went in traces of others, and what would have helped."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenload.cli.options import (
    FILE,
    PATH,
    NumberRange,
    argument,
    json_option,
    option,
    page_json,
    passed_as,
    shared,
)
from evenload.errors import ConfigError

if TYPE_CHECKING:
    from evenload.audit.traces import AuditOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """The options of ``evenload audit``."""

    traces: tuple[Path, ...] = argument(type=PATH, nargs=-1, required=True)
    output: Path | None = option("-o", "--output", type=FILE, help="Also write an HTML report.")
    as_json: bool = shared(json_option)
    rows: str = option(
        "--rows",
        type=click.Choice(["auto", "process", "thread"]),
        default="auto",
        help="Whether a process or a thread is one device, in a Chrome trace without GPUs.",
    )
    aligned: bool = option("--align", is_flag=True, help="Clocks of the files differ: let each begin at 0.")
    n_devices: int = option(
        "--count",
        type=click.IntRange(1, 4096),
        default=None,
        help="How many devices there were; those that the traces do not show did nothing.",
    )
    gap_s: float | None = option(
        "--launch-gap",
        type=NumberRange(0, 86_400),
        metavar="SECONDS",
        help="Shorter gaps between spans are launch gaps (default: 0.0001 for kernels, 0.01 for tasks).",
    )
    collectives: tuple[str, ...] = option(
        "--collective",
        multiple=True,
        metavar="PART",
        help="Kernels with PART in their name are collectives, beside those that are known.",
    )
    before: tuple[Path, ...] = option(
        "--before",
        type=PATH,
        multiple=True,
        help="Compare with this trace, of an earlier run or another kind of device; several: of its ranks.",
    )


@click.command()
@passed_as(AuditRequest)
def audit(request: AuditRequest) -> int:
    """Say where the devices' time went in TRACE, and what other dealing would have reached.

    TRACE is a Chrome trace of torch's profiler, ray.timeline() or others (.json, .json.gz), a Dask task
    stream saved as JSON, an SQLite export of Nsight Systems, CSV of nvidia-smi or DCGM, or a run folder of
    evenload. Several are files of one run, such as one of each rank.

    \b
    evenload audit trace.json -o audit.html
    evenload audit rank*.json.gz
    evenload audit after.json --before before.json
    """
    from evenload.audit.audit import AuditParts, audit_of
    from evenload.audit.page import write_audit
    from evenload.audit.traces import AuditOptions, read_traces
    from evenload.cli.audit_text import audit_text

    options = AuditOptions(
        request.rows, request.aligned, request.n_devices or 0, request.gap_s, request.collectives
    )
    if request.before:
        return _compare(request, options)
    parts = AuditParts(read_traces(request.traces, options))
    found = audit_of(parts)
    if request.output:
        write_audit(parts, found, request.output)
    for fault in found.faults:
        click.echo(f"note: {fault}", err=True)
    if request.as_json:
        click.echo(page_json(found.to_json(), indent=2))
    else:
        click.echo("\n".join(audit_text(found)))
    if request.output:
        click.echo(f"report: {request.output}", err=True)
    return 0


def _compare(request: AuditRequest, options: "AuditOptions") -> int:
    """Print what changed between two runs."""
    from evenload.audit.compare import compare
    from evenload.audit.traces import read_traces
    from evenload.cli.audit_text import comparison_text

    if request.output:
        raise ConfigError("--before has no HTML report", hint="leave -o out, or use --json")
    options = replace(options, by_operator=True)
    found = compare(read_traces(request.before, options), read_traces(request.traces, options))
    for fault in dict.fromkeys((*found.before.faults, *found.after.faults)):
        click.echo(f"note: {fault}", err=True)
    click.echo(page_json(found.to_json(), indent=2) if request.as_json else "\n".join(comparison_text(found)))
    return 0
