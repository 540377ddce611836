"""``evenload upload RUN``: copy what a store lacks of a run's results."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import click

from evenload.cli.options import PATH, json_option, no_progress_option, page_json, quiet_option


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
        click.echo(page_json({"schema": 1, **asdict(outcome)}, indent=2))
    else:
        click.echo(f"{outcome.n_files} files at {outcome.to}, {outcome.n_new} of them new")
    if outcome.n_left:
        click.echo(f"error: {outcome.n_left} files could not be copied: {outcome.why}", err=True)
    return 1 if outcome.n_left else 0


class UploadProgress:
    """A line on a terminal that says how many files are still to be copied; called again and again.

    hint  what ending it means, in words
    """

    def __init__(self, hint: str, *, shows: bool = True, stream: TextIO | None = None):
        self._stream = sys.stderr if stream is None else stream
        self._hint, self._shows, self._width = hint, shows and self._stream.isatty(), 0

    def __call__(self, n_left: int, n_files: int) -> None:
        if not self._shows or not n_files:
            return
        text = (
            f"copying results: {max(0, n_files - n_left)} of {n_files} files ({self._hint})" if n_left else ""
        )
        self._stream.write("\r" + text.ljust(self._width) + ("" if text else "\r"))
        self._stream.flush()
        self._width = len(text)
