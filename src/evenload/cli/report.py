"""``evenload report RUN``: the HTML report, the trace and the numbers of a run folder; two runs compared."""

import json
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload._plain_text import number_text
from evenload.cli.options import FILE, PATH, passed_as
from evenload.cli.terminal.table import format_table

if TYPE_CHECKING:
    from evenload.report.source import RunEvents
    from evenload.report.summary import Summary


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """The options of ``evenload report``."""

    run: Path
    other: Path | None
    output: Path | None
    trace: Path | None
    merged: tuple[Path, ...]
    as_json: bool
    as_text: bool
    is_opened: bool

    @property
    def writes_html(self) -> bool:
        return not self.as_json or self.output is not None or self.is_opened


@click.command()
@click.argument("run", type=PATH)
@click.argument("other", type=PATH, required=False)
@click.option("-o", "--output", type=FILE, help="Where to write the HTML.")
@click.option(
    "--trace",
    type=FILE,
    help="Also write a trace for Perfetto; .gz compresses.",
)
@click.option(
    "--merge",
    "merged",
    multiple=True,
    type=FILE,
    help="Put this trace of the torch profiler, or NVTX ranges exported from Nsight (.json), into --trace.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON; HTML only if -o is given.")
@click.option("--text", "as_text", is_flag=True, help="Print it as text: timeline, histograms, failures.")
@click.option("--open", "is_opened", is_flag=True, help="Open the report in a browser.")
@passed_as(ReportRequest)
def report(request: ReportRequest) -> int:
    """Make the report of RUN, a run folder or its events.jsonl; or compare it with OTHER.

    Without options it writes report.html into the run folder and prints its path. A damaged run is shown as
    far as it can be read; the report lists what could not be read. Two runs get one page, compare.html in
    OTHER.

    \b
    evenload report runs/restore
    evenload report runs/yesterday runs/today
    """
    from evenload.report.source import open_run

    if request.merged and not request.trace:
        raise click.UsageError("--merge needs --trace, the trace to put it into.")
    if request.other is not None:
        if request.trace or request.as_text:
            raise click.UsageError("--trace and --text are of one run; leave OTHER out.")
        return _compare([open_run(request.run), open_run(request.other)], request)
    reading = open_run(request.run)
    return _print_text(reading) if request.as_text else _write(reading, request)


def _write(reading: "RunEvents", request: ReportRequest) -> int:
    """Write the HTML report and the trace, as far as they are asked for; print where they are."""
    from evenload.report.html import write_report
    from evenload.report.tally import summarise
    from evenload.report.trace import write_trace

    written: list[Path] = []
    if request.trace:
        write_trace(reading, request.trace, request.merged)
        written.append(request.trace)
    if request.writes_html:
        target = request.output or (reading.folder or Path()) / "report.html"
        summary = write_report(reading, target)
        written.insert(0, target)
        _open(target, request.is_opened)
    else:
        summary = summarise(reading)
    _echo_faults(reading)
    if request.as_json:
        files = [str(path) for path in written]
        click.echo(json.dumps({**summary.to_json(), "files": files, "faults": reading.faults()}, indent=2))
    else:
        click.echo(summary.headline(), err=True)
        if summary.advice is not None:
            click.echo(summary.advice.text(), err=True)
        for path in written:
            click.echo(path)
    return 0


def _print_text(reading: "RunEvents") -> int:
    from evenload.cli.terminal.text_report import text_report

    lines = text_report(reading)
    click.echo("\n".join(lines))
    _echo_faults(reading)
    return 0


def _echo_faults(reading: "RunEvents", name: str = "") -> None:
    for fault in reading.faults():
        click.echo(f"note: {name}{fault}", err=True)


def _compare(readings: "list[RunEvents]", request: ReportRequest) -> int:
    from evenload.report.html import write_comparison
    from evenload.report.tally import summarise

    target = None
    if request.writes_html:
        target = request.output or (readings[1].folder or Path()) / "compare.html"
        summaries = write_comparison(readings, target)
        _open(target, request.is_opened)
    else:
        summaries = [summarise(reading) for reading in readings]
    for name, reading in zip("AB", readings, strict=True):
        _echo_faults(reading, f"{name}: ")
    if request.as_json:
        runs = [
            {**summary.to_json(), "path": str(reading.folder or reading.path), "faults": reading.faults()}
            for summary, reading in zip(summaries, readings, strict=True)
        ]
        files = [str(target)] if target else []
        click.echo(json.dumps({"schema": 1, "runs": runs, "files": files}, indent=2))
        return 0
    for line in format_table(["", "A", "B", "B / A"], _rows(*summaries), right=("A", "B")):
        click.echo(line, err=True)
    click.echo(target)
    return 0


def _rows(a: "Summary", b: "Summary") -> list[list[str]]:
    """The headline numbers of two runs and their quotient."""
    rows = []
    for label, name, unit in (
        ("useful share of the time", "factors.share", ""),
        ("of the best possible", "ratio", "x"),
        ("the work took", "work_s", " s"),
        ("best possible", "bound_s", " s"),
        ("time in all", "wall_s", " s"),
        ("items per second", "items_per_s", ""),
        ("imbalance", "imbalance", ""),
        ("utilisation", "utilisation", ""),
        ("done", "n_done", ""),
        ("failed", "n_failed", ""),
    ):
        x, y = (_figure(one, name) for one in (a, b))
        texts = ["–" if one is None else f"{number_text(one, 4)}{unit}" for one in (x, y)]
        rows.append([label, *texts, f"{y / x:.3f}" if x and y is not None else ""])
    return rows


def _figure(summary: "Summary", name: str) -> float | None:
    """The figure of a summary, None where there is none: ``ratio``, or ``factors.share`` of a part."""
    value: Any = summary
    for one in name.split("."):
        value = None if value is None else getattr(value, one)
    return value


def _open(path: Path, is_opened: bool) -> None:
    if is_opened:
        webbrowser.open(path.resolve().as_uri())
