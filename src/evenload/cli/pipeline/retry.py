"""``evenload retry --failed RUN``: try again what failed in a run, and go on with what is missing."""

from pathlib import Path

import click

from evenload.cli.options import PATH, json_option, no_progress_option, quiet_option
from evenload.cli.pipeline.result_text import echo_result

__all__ = ["retry"]


@click.command()
@click.argument("run", type=PATH)
@click.option("--failed", is_flag=True, help="Items that failed are tried again.")
@click.option("--devices", help="all | cpu | cuda:0,1 | cpu*4 | a number; wins over the job.")
@click.option("--backend", default="process", show_default=True, help="process | inline (to debug with).")
@json_option
@quiet_option
@no_progress_option
def retry(
    run: Path, failed: bool, devices: str | None, backend: str, as_json: bool, quiet: bool, no_progress: bool
) -> int:
    """Go on with the run in the folder RUN, as its job was; with --failed also with what failed.

    \b
    evenload retry --failed runs/pairs
    """
    from evenload.pipeline.pipeline import Pipeline
    from evenload.pipeline.run.interrupts import Interrupts
    from evenload.report.progress import make_progress

    pipeline = Pipeline.from_run(run)
    with Interrupts():
        with make_progress("never" if no_progress or quiet else "auto") as progress:
            result = pipeline.run(devices, backend=backend, out=run, retry_failed=failed, sinks=[progress])
        echo_result(result, as_json)
    return result.exit_code
