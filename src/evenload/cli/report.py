"""``evenload report RUN``: the HTML report, the trace and the numbers of a run folder."""

import json
import webbrowser
from pathlib import Path

import click

__all__ = ["report"]


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Where to write the HTML."
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a trace for Perfetto; .gz compresses.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON; HTML only if -o is given.")
@click.option("--open", "is_opened", is_flag=True, help="Open the report in a browser.")
def report(run: Path, output: Path | None, trace: Path | None, as_json: bool, is_opened: bool) -> int:
    """Make the report of RUN, a run folder or its events.jsonl.

    Without options it writes report.html into the run folder and prints its path. A damaged run is shown as
    far as it can be read; what could not be read is said.
    """
    from evenload.report.html import write_report
    from evenload.report.source import open_run
    from evenload.report.summary import summarise
    from evenload.report.trace import write_trace

    reading = open_run(run)
    written: list[Path] = []
    if trace:
        write_trace(reading, trace)
        written.append(trace)
    if as_json and not output and not is_opened:
        summary = summarise(reading)
    else:
        target = output or (reading.folder or Path()) / "report.html"
        summary = write_report(reading, target)
        written.insert(0, target)
        if is_opened:
            webbrowser.open(target.resolve().as_uri())
    for fault in reading.faults():
        click.echo(f"note: {fault}", err=True)
    if as_json:
        files = [str(path) for path in written]
        click.echo(json.dumps({**summary.to_json(), "files": files, "faults": reading.faults()}, indent=2))
    else:
        click.echo(summary.headline(), err=True)
        for path in written:
            click.echo(path)
    return 0
