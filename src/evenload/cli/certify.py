"""``evenload certify RUN``: a proof of how close to the best possible it came, which anyone can check."""

import contextlib
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from evenload._plain_text import number_text
from evenload._private_files import plain_file, write_named
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
from evenload.errors import ConfigError, FormatError, printable

MOST_NAMED = 8
CLOSE = 0.95  # a share of what it may be is as good as known
CANNOT_JUDGE = "this cannot be judged: the run does not show its devices' speeds, or what is in its chunks"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyRequest:
    """The options of ``evenload certify``."""

    source: Path = argument(metavar="RUN", type=PATH)
    output: Path | None = option("-o", "--output", type=FILE, help="Where to write the certificate.")
    require: float | None = option(
        "--require",
        type=NumberRange(0, 1),
        metavar="SHARE",
        help="Exit with 1 if the run reached less than this share of the best possible: 0.95, say. Where its"
        " events do not say how fast the devices are, so that this cannot be judged, exit with 0 and a note.",
    )
    used_only: bool = option(
        "--used-only",
        is_flag=True,
        help="For --require and --badge, leave out devices that did nothing: they were spare.",
    )
    badge: Path | None = option("--badge", type=FILE, help="Also write a badge (SVG) that says the share.")
    as_json: bool = shared(json_option)


@click.command()
@passed_as(CertifyRequest)
def certify(request: CertifyRequest) -> int:
    """Certify RUN, a run folder or its events.jsonl: what it did, and the proof of what no plan could beat.

    Or check RUN, a certificate (.json), or the folder of a training's chain: does each link follow
    from the one before? The root is printed, to be compared with one that you received in another way.

    Without -o it writes run.cert.json into the run folder and prints its path. Anyone can check that file
    with scripts/check_certificate.py alone, which is also `python -m evenload.certificate`.

    \b
    evenload certify runs/restore --require 0.95 --badge balance.svg
    evenload certify run.cert.json
    """
    from evenload.certificate import Refused, check, load
    from evenload.report.certificates import share_with_idle

    if _is_log(request.source):
        return _check_chain(request)
    is_certificate = request.source.is_file() and request.source.suffix == ".json"
    if is_certificate and request.output:
        raise ConfigError(f"{request.source} is a certificate already", hint="leave out -o")
    target, status = (request.source, "") if is_certificate else _certify_run(request)
    try:
        page: Any = load(target)
        achieved, bound = check(page)
    except Refused as error:
        raise FormatError(
            f"{printable(str(target))} proves nothing: {printable(str(error))}",
            hint="give a certificate as evenload wrote it, or a run folder to certify",
        ) from None
    share = Fraction(bound, achieved)
    counted = share if request.used_only else share_with_idle(page)
    if request.badge is not None:
        from evenload.report.certificates import badge

        write_named(request.badge, badge(counted), "--badge")
    _print(request, target, page, share)
    if status and request.require is not None:
        click.echo(
            f"error: --require is for runs whose work is done, and this one is not: {status}", err=True
        )
        return 1
    return _judge(request, page, share, counted)


def _is_log(folder: Path) -> bool:
    """Whether a folder has the leaves of a log, whole or damaged."""
    with contextlib.suppress(OSError), plain_file(folder / "leaves") as file:
        return file.read(13) == b"evenload-log-"
    return False


def _check_chain(request: CertifyRequest) -> int:
    """Check the links of a training's chain, print the root of its log, and say what that does not show."""
    from evenload.merkle.log.log import Log
    from evenload.training.chain_link import links_of

    if request.output or request.badge or request.require is not None:
        raise ConfigError("a training's chain has no share", hint="leave out -o, --require and --badge")
    with Log(request.source, is_writable=False) as log:
        links = list(links_of(log[k] for k in range(len(log))))
        root, n_signed, n_cut, origin = log.root.hex(), log.signed_size or 0, log.n_cut, printable(log.origin)
    folder, n = printable(str(request.source)), len(links)
    if n_cut:
        raise FormatError(
            f"{folder}: the last {n_cut} bytes are no whole link, behind {n} that hold together",
            hint="a kill leaves that, and the training that goes on cuts it off; else somebody changed it",
        )
    if not links:
        raise ConfigError(f"{folder} has no link yet", hint="give the log of a TrainingChain")
    first, last = links[0].stop, links[-1]
    if request.as_json:
        facts = {
            "schema": 1,
            "kind": "training",
            "origin": origin,
            "links": n,
            "signed": n_signed,
            "root": root,
        }
        click.echo(page_json(facts | {"first_step": first, "last_step": last.stop, "last": asdict(last)}))
        return 0
    click.echo(
        f"training {origin}: steps {first} to {last.stop}, {n} links, each behind the one before", err=True
    )
    if n_signed:
        how = f"evenload merkle log check {folder} --key KEY"
        click.echo(f"note: signed: {n_signed} of {n} links: {how}", err=True)
    if n_signed < n:
        why = "whoever holds the folder can write them anew, so compare the root with one from elsewhere"
        click.echo(f"note: not signed: {n - n_signed} of {n} links: {why}", err=True)
    click.echo("note: that it was trained so is shown by repeating: TrainingChain.repeat", err=True)
    click.echo(root)
    return 0


def _judge(request: CertifyRequest, page: Any, share: Fraction, counted: Fraction) -> int:
    """Return the exit code: 1 if the run is certainly worse than what is required."""
    from evenload.report.certificates import share_up_to

    if request.require is not None and counted < Fraction(str(request.require)):
        least, idle = f"{100 * request.require:g} %", " with the devices that did nothing"
        which = idle if counted < share else ""
        if share_up_to(page, with_idle=not request.used_only) >= Fraction(str(request.require)):
            click.echo(f"note: {CANNOT_JUDGE}", err=True)
            return 0
        said = f"{_percent(counted)} of the best possible{which}, less than the {least} required"
        click.echo(f"error: {said}", err=True)
        return 1
    return 0


def _certify_run(request: CertifyRequest) -> tuple[Path, str]:
    """Write the certificate of the run; return its path, and what the run has left undone ("" if nothing).

    What is left undone, and which part of the log could not be read, is said as well.
    """
    from evenload.balance.claim import text_of
    from evenload.report.certificates import run_certificate
    from evenload.report.source import open_run
    from evenload.report.tally import summarise

    reading = open_run(request.source)
    page = run_certificate(reading)
    run = summarise(reading)
    status = "" if run.status in ("done", "failures") else run.status
    if status or run.n_failed:
        share = f"{run.n_done:,} of {run.total:,} items" if run.total is not None else f"{run.n_done:,} items"
        status = status and f"{status}, {share} done"
        click.echo(
            f"note: {status or f'{run.n_failed:,} items failed'}: the share is of what was done", err=True
        )
    target = request.output or (reading.folder or Path()) / "run.cert.json"
    write_named(target, text_of(page))
    for fault in reading.faults():
        click.echo(f"note: {fault}", err=True)
    return target, status


def _print(request: CertifyRequest, target: Path, page: Any, share: Fraction) -> None:
    from evenload.report.certificates import share_up_to, share_with_idle

    kind, numbers, idle = page["kind"], page["claim"], _idle(page)
    if request.as_json:
        facts = {"schema": 1, "kind": kind, "name": page.get("name", ""), "share": float(share)}
        facts |= {name: float(numbers[name]) for name in ("achieved", "bound", "ratio")}
        files = [str(path) for path in (target, request.badge) if path is not None]
        unit = "ns" if _unit(kind)[0] == "s" else "load"
        facts |= {"unit": unit, "files": files, "idle_devices": idle}
        facts |= {"share_up_to": float(share_up_to(page, with_idle=False))}
        click.echo(page_json({**facts, "share_with_idle": float(share_with_idle(page))}))
        return
    unit, scale = _unit(kind)
    reached, least = (
        f"{number_text(float(numbers[name]) / scale, 4)} {unit}" for name in ("achieved", "bound")
    )
    name = printable(str(page.get("name", "")))
    close = f"{_percent(share)} of the best possible"
    click.echo(f"{kind} {name}: {reached}, nobody below {least}: {close}", err=True)
    most = share_up_to(page, with_idle=False)
    if share < CLOSE * most:
        text = "sizes of items (cost=) would tell how fast each device is, and what is in a chunk"
        click.echo(f"note: not known better, it may be up to {_percent(most)}: {text}", err=True)
    if idle:
        some = ", ".join(idle[:MOST_NAMED]) + (", ..." if len(idle) > MOST_NAMED else "")
        close = f"{_percent(share_with_idle(page))} of the best possible"
        click.echo(f"note: did nothing, and the bound is without: {some}", err=True)
        click.echo(f"note: had they been as fast as the fastest: {close}", err=True)
    for path in (target, request.badge):
        if path is not None:
            click.echo(path)


def _idle(page: Any) -> list[str]:
    """The names of the devices of a run that did nothing in any stage."""
    from evenload.report.certificates import idle_devices

    devices = page["evidence"].get("devices", [])
    return [printable(str(devices[at].get("name", "")))[:80] for at in idle_devices(page)]


def _unit(kind: str) -> tuple[str, float]:
    return ("s", 1e9) if kind in ("run", "plan") else ("load", 1.0)


def _percent(share: Fraction) -> str:
    return f"{int(share * 1000) / 10:g} %"
