"""``evenload report RUN``: the HTML report, the trace and the numbers of a run folder; two runs compared."""

import shutil
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload._plain_text import number_text, seconds_text
from evenload.cli.options import FILE, PATH, argument, option, page_json, passed_as
from evenload.cli.terminal.table import format_table
from evenload.cli.terminal.text_charts import gantt_lines, has_blocks, histogram_lines

if TYPE_CHECKING:
    from evenload.report.source import RunEvents
    from evenload.report.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """The options of ``evenload report``."""

    run: Path = argument(type=PATH)
    other: Path | None = argument(type=PATH, required=False)
    output: Path | None = option("-o", "--output", type=FILE, help="Where to write the HTML.")
    trace: Path | None = option("--trace", type=FILE, help="Also write a trace for Perfetto; .gz compresses.")
    merged: tuple[Path, ...] = option(
        "--merge",
        multiple=True,
        type=FILE,
        help="Put this trace of the torch profiler, or NVTX ranges exported from Nsight (.json), into"
        " --trace.",
    )
    as_json: bool = option(
        "--json", is_flag=True, help="Print the numbers as JSON; HTML only if -o is given."
    )
    as_text: bool = option("--text", is_flag=True, help="Print it as text: timeline, histograms, failures.")
    is_opened: bool = option("--open", is_flag=True, help="Open the report in a browser.")

    @property
    def writes_html(self) -> bool:
        return not self.as_json or self.output is not None or self.is_opened


@click.command()
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
        click.echo(page_json({**summary.to_json(), "files": files, "faults": reading.faults()}, indent=2))
    else:
        click.echo(summary.headline(), err=True)
        if said := summary.error or (summary.advice and summary.advice.text()):
            click.echo(said, err=True)
        for path in written:
            click.echo(path)
    return 0


def _print_text(reading: "RunEvents") -> int:
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
        click.echo(page_json({"schema": 1, "runs": runs, "files": files}, indent=2))
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


MAX_ROWS = 64
MAX_SLICES = 4_000
MAX_FAILURES = 5
KINDS = {"ok": "work", "failed": "lost", "lost": "lost", "superseded": "copy", "start-up": "start"}


def text_report(reading: "RunEvents", width: int | None = None) -> list[str]:
    """Lines of the report of a run, as wide as the terminal, at most 100 columns."""
    from evenload.report.page.bars import Durations
    from evenload.report.page.timeline import Timeline
    from evenload.report.tally import Tally

    width = min(100, width or shutil.get_terminal_size((80, 24)).columns)
    ascii_only = not has_blocks()
    tally, timeline, durations = Tally(), Timeline(MAX_SLICES), Durations()
    for event in reading:
        for sink in (tally, timeline, durations):
            sink.add(event)
    summary, shown = tally.summary(), timeline.to_json()
    lines = [_plain(summary.name) or "run", _plain(summary.headline()), ""]
    if summary.error:
        lines += [*map(_plain, summary.error.splitlines()), ""]
    lines += _factor_lines(summary, width, ascii_only)
    picture = gantt_lines(_timeline_rows(shown), shown["end_s"], width, ascii_only=ascii_only)
    if picture:
        letters = "#= chunks, s start-up, c copy, x failed or lost, . without work" if ascii_only else ""
        said = letters or "█▓ chunks, ░ start-up, ▒ copy, x failed or lost, · without work"
        lines += [said, *picture, ""]
    rows = [
        [
            _plain(one.device),
            str(one.n_items),
            f"{one.utilisation:.0%}",
            number_text(one.items_per_s),
            f"{seconds_text(one.busy_s)}",
            f"{seconds_text(one.idle_s)}",
        ]
        for one in summary.devices[:MAX_ROWS]
    ]
    if rows:
        head = ["device", "items", "load", "items/s", "busy", "idle"]
        lines += [*format_table(head, rows, right=("items", "load", "busy", "idle", "items/s")), ""]
    for stage in durations.stages[:8]:
        bars = histogram_lines(durations.bins(stage), width, ascii_only=ascii_only)
        lines += [f"{_plain(stage)}: seconds per item, and how many took so long", *bars, ""]
    lines += [_plain(line) for line in _of_stages(summary)[:MAX_ROWS]]
    lines += _failures(summary)
    return lines if lines[-1] else lines[:-1]


def _of_stages(summary: "Summary") -> list[str]:
    """What was learned of stages, and how full their batches were."""
    from evenload.report.summary import batches_text

    learned = [f"learned of {stage.stage}: {stage.learned}" for stage in summary.stages if stage.learned]
    return [*learned, *(batches_text(stage) for stage in summary.stages if stage.n_batches)]


def _factor_lines(summary: "Summary", width: int, ascii_only: bool) -> list[str]:
    """The largest loss and what to do about it, then each factor, and the seconds that it took."""
    import textwrap

    factors, advice = summary.factors, summary.advice
    if factors is None:
        return []
    lines = [*textwrap.wrap(_plain(advice.text()), width), ""] if advice is not None else []
    rows = [
        [
            part.name,
            "not known" if part.value is None else f"{part.value:.3f}",
            "" if part.value is None else f"{seconds_text(part.lost_s)}",
        ]
        for part in factors.parts
    ]
    rows.append(["useful", f"{factors.share:.3f}", f"{seconds_text(factors.useful_s)}"])
    head = ["factor", "is", "took"]
    return [*lines, *format_table(head, rows, right=("is", "took")), ""]


def _failures(summary: "Summary") -> list[str]:
    lines = []
    for failure in summary.failures[:MAX_FAILURES]:
        first = failure.message.strip().splitlines()[:1]
        lines.append(_plain(f"failed: {failure.item or failure.index}: {failure.error}: {''.join(first)}"))
    if summary.n_failed > MAX_FAILURES:
        lines.append(f"... and {summary.n_failed - MAX_FAILURES} more failures")
    return lines


def _timeline_rows(shown: Mapping[str, Any]) -> dict[str, list[tuple[float, float, str]]]:
    rows = {}
    for row in shown["rows"][:MAX_ROWS]:
        lane = f"/{row['lane']}" if row["lane"] else ""
        slices, at = [], 0
        for delta, length, status in zip(row["start"], row["length"], row["status"], strict=True):
            at += delta
            kind = KINDS.get(shown["statuses"][status])
            if kind:
                slices.append((at / 1e6, (at + length) / 1e6, kind))
        rows[_plain(row["device"] + lane)[:24]] = slices
    return rows


def _plain(text: str) -> str:
    """``text`` without control characters, which could change the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
