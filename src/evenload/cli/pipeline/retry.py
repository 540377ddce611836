"""``evenload retry --failed RUN``: try again what failed in a run, and go on with what is missing."""

from pathlib import Path

import click

from evenload.events import json_text

__all__ = ["retry"]


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--failed", is_flag=True, help="Items that failed are tried again.")
@click.option("--devices", help="all | cpu | cuda:0,1 | cpu*4 | a number; wins over the job.")
@click.option("--backend", default="process", show_default=True, help="process | inline (to debug with).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but the result.")
@click.option("--no-progress", is_flag=True, help="No progress on stderr.")
def retry(
    run: Path, failed: bool, devices: str | None, backend: str, as_json: bool, quiet: bool, no_progress: bool
) -> int:
    """Go on with the run in the folder RUN, as its job was; with --failed also with what failed.

    \b
    evenload retry --failed runs/pairs
    """
    from evenload.cli.pipeline.run import text_of
    from evenload.pipeline.pipeline import Pipeline
    from evenload.pipeline.run.interrupts import Interrupts
    from evenload.report.progress import make_progress

    pipeline = Pipeline.from_run(run)
    with Interrupts():
        with make_progress("never" if no_progress or quiet else "auto") as progress:
            result = pipeline.run(devices, backend=backend, out=run, retry_failed=failed, sinks=[progress])
        for fault in result.faults:
            click.echo(f"warning: {fault}", err=True)
        click.echo(json_text(result.to_json(), indent=2) if as_json else text_of(result))
    return result.exit_code
