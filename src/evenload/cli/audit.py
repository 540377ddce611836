"""``evenload audit TRACE...``: where devices' time went in traces of others, and what would have helped."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenload._plain_text import seconds_text
from evenload.cli.options import FILE, PATH, NumberRange, json_option, passed_as
from evenload.cli.terminal.table import format_table

if TYPE_CHECKING:
    from evenload.audit.audit import Audit

__all__ = ["audit"]

MOST_DEVICES_SHOWN = 16


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """The options of ``evenload audit``."""

    traces: tuple[Path, ...]
    output: Path | None
    as_json: bool
    rows: str
    aligned: bool
    n_devices: int
    gap_s: float | None


@click.command()
@click.argument("traces", type=PATH, nargs=-1, required=True)
@click.option("-o", "--output", type=FILE, help="Also write an HTML report.")
@json_option
@click.option(
    "--rows",
    type=click.Choice(["auto", "process", "thread"]),
    default="auto",
    help="What a device is in a Chrome trace without GPUs.",
)
@click.option("--align", "aligned", is_flag=True, help="Clocks of the files differ: let each begin at 0.")
@click.option(
    "--count",
    "n_devices",
    type=click.IntRange(1, 4096),
    default=None,
    help="How many devices there were; those that the traces do not show did nothing.",
)
@click.option(
    "--launch-gap",
    "gap_s",
    type=NumberRange(0, 86_400),
    metavar="SECONDS",
    help="Shorter gaps between spans are launch gaps (default: 0.0001 for kernels, 0.01 for tasks).",
)
@passed_as(AuditRequest)
def audit(request: AuditRequest) -> int:
    """Say where the devices' time went in TRACE, and what other dealing would have reached.

    TRACE is a Chrome trace of torch's profiler, ray.timeline() or others (.json, .json.gz), a Dask task
    stream saved as JSON, an SQLite export of Nsight Systems, CSV of nvidia-smi or DCGM, or a run folder of
    evenload. Several are files of one run, such as one of each rank.

    \b
    evenload audit trace.json -o audit.html
    evenload audit rank*.json.gz --align
    """
    from evenload.audit.audit import AuditParts, audit_of
    from evenload.audit.page import write_audit
    from evenload.audit.traces import AuditOptions, read_traces

    options = AuditOptions(request.rows, request.aligned, request.n_devices or 0, request.gap_s)
    parts = AuditParts(read_traces(request.traces, options))
    found = audit_of(parts)
    if request.output:
        write_audit(parts, found, request.output)
    for fault in found.faults:
        click.echo(f"note: {fault}", err=True)
    if request.as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        click.echo("\n".join(_text(found)))
    if request.output:
        click.echo(f"report: {request.output}", err=True)
    return 0


def _text(found: "Audit") -> list[str]:
    """The audit as lines: what was lost to which cause, the bound, and what would have helped."""
    from evenload.audit.losses import CAUSES

    whole_ns = found.wall_ns * len(found.devices)
    lines = [
        f"{found.source}: {found.n_spans:,} spans on {_devices_text(found)}, {_time(found.wall_s)}",
        f"{found.share:.1%} of the devices' time was work; lost: {_time((whole_ns - found.work_ns) / 1e9)}",
        "",
    ]
    causes = [
        [cause, _time(ns / 1e9), f"{ns / whole_ns:.1%}", CAUSES[cause].says]
        for cause, ns in sorted(found.lost_ns.items(), key=lambda one: -one[1])
        if ns
    ]
    head = ["lost to", "device time", "share", ""]
    lines += format_table(head, causes, right=("device time", "share"))
    lines += ["", *_others(found), "", *_devices(found)]
    if found.gaps:
        lines += ["", "longest stretches with at most one device at work:"]
        lines += format_table(["from", "for", "device", "span"], [_gap(one) for one in found.gaps[:8]])
    lines += [""] * bool(found.findings) + list(found.findings)
    if found.largest and found.lost_ns[found.largest] > 0.01 * whole_ns:
        lines += ["", f"The largest loss: {found.largest}. {CAUSES[found.largest].remedy}"]
    return lines


def _others(found: "Audit") -> list[str]:
    rows = [["this run", _time(found.wall_s), "", ""]]
    rows += [
        [one.name, _time(one.wall_s), f"{one.wall_s / found.wall_s - 1:+.1%}", one.says]
        for one in found.what_ifs
    ]
    rows.append(["bound", _time(found.bound_s), "", "no plan for this work on these devices is faster"])
    return format_table(["", "takes", "change", ""], rows, right=("takes", "change"))


def _devices(found: "Audit") -> list[str]:
    shown = sorted(found.devices, key=lambda one: one.work_s)
    if len(shown) > MOST_DEVICES_SHOWN:
        shown = [*shown[: MOST_DEVICES_SHOWN // 2], *shown[-MOST_DEVICES_SHOWN // 2 :]]
    rows = []
    for one in shown:
        cause = max(one.lost_s, key=lambda name: one.lost_s[name])
        worst = f"{cause} {_time(one.lost_s[cause])}" if one.lost_s[cause] > 0 else ""
        rows.append([one.name, f"{one.work_s / found.wall_s:.1%}", f"{one.speed:.2f}", worst])
    left = len(found.devices) - len(shown)
    lines = format_table(["device", "work", "speed", "lost most to"], rows, right=("work", "speed"))
    return [*lines, f"... and {left} between them"] if left else lines


def _devices_text(found: "Audit") -> str:
    n = len(found.devices)
    return f"{n} device{'s' * (n != 1)}"


def _gap(one: object) -> list[str]:
    from evenload.audit.audit import AuditedGap

    assert isinstance(one, AuditedGap)
    return [_time(one.start_s), _time(one.stop_s - one.start_s), one.device or "none", one.span]


def _time(seconds: float) -> str:
    return seconds_text(seconds, 4)
