"""``evenload upload RUN``: copy what a store lacks of a run's results."""

from dataclasses import asdict
from pathlib import Path

import click

from evenload.cli.options import PATH, json_option, no_progress_option, quiet_option
from evenload.cli.pipeline.upload_progress import UploadProgress
from evenload.events import json_text

__all__ = ["upload"]


@click.command()
@click.argument("run", type=PATH)
@click.option("--to", metavar="URL", help="The address of a folder; by default where it was copied last.")
@json_option
@quiet_option
@no_progress_option
def upload(run: Path, to: str | None, as_json: bool, quiet: bool, no_progress: bool) -> int:
    """Copy the results of the run in the folder RUN to a store, such as s3://bucket/folder.

    What is there already is not copied again. Exit code 1 if something could not be copied.

    \b
    evenload upload runs/pairs
    evenload upload runs/pairs --to s3://bucket/runs/pairs
    """
    from evenload.pipeline.run.ending.uploading import upload_run

    progress = UploadProgress("the same command goes on", shows=not quiet and not no_progress)
    outcome = upload_run(run.resolve(), to, progress)
    if as_json:
        click.echo(json_text({"schema": 1, **asdict(outcome)}, indent=2))
    else:
        click.echo(f"{outcome.n_files} files at {outcome.to}, {outcome.n_new} of them new")
    if outcome.n_left:
        click.echo(f"error: {outcome.n_left} files could not be copied: {outcome.why}", err=True)
    return 1 if outcome.n_left else 0
