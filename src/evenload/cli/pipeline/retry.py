"""``evenload retry --failed RUN``: try again what failed in a run, and go on with what is missing."""

from dataclasses import dataclass
from pathlib import Path

import click

from evenload.cli.options import (
    PATH,
    json_option,
    no_progress_option,
    passed_as,
    quiet_option,
    set_option,
    skip_option,
)
from evenload.cli.pipeline.result_text import echo_result


@dataclass(frozen=True, slots=True)
class RetryRequest:
    """The options of ``evenload retry``."""

    run: Path
    failed: bool
    devices: str | None
    backend: str | None
    changes: tuple[str, ...]
    skipped: tuple[str, ...]
    as_json: bool
    quiet: bool
    no_progress: bool


@click.command()
@click.argument("run", type=PATH)
@click.option("--failed", is_flag=True, help="Items that failed or were stopped are tried again.")
@click.option("--devices", help="all | cpu | cuda:0,1 | cpu*4 | a number; wins over the job.")
@click.option("--backend", help="process | ray | inline (to debug with); wins over the job.")
@set_option
@skip_option
@json_option
@quiet_option
@no_progress_option
@passed_as(RetryRequest)
def retry(request: RetryRequest) -> int:
    """Go on with the run in the folder RUN, with the same job; with --failed, try failed items again.

    \b
    evenload retry --failed runs/pairs
    evenload retry --failed runs/pairs --set errors.timeout_s=600 --skip r7
    """
    from evenload.pipeline.pipeline import Pipeline
    from evenload.pipeline.run.interrupts import Interrupts
    from evenload.report.progress import make_progress

    pipeline = Pipeline.from_run(request.run, request.changes)
    with Interrupts():
        with make_progress("never" if request.no_progress or request.quiet else "auto") as progress:
            result = pipeline.run(
                devices=request.devices,
                backend=request.backend,
                out=request.run,
                retry_failed=request.failed,
                skip=request.skipped,
                sinks=[progress],
            )
        echo_result(result, request.as_json)
    return result.exit_code
