"""``--detach``: a command that goes on when its terminal closes; ``evenload attach RUN`` follows it."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import click

from evenload._private_files import open_plain
from evenload.cli.options import PATH, no_progress_option
from evenload.errors import ConfigError, reason_of
from evenload.events import RunFinished, RunStarted

EVERY_S = 0.2
MOST_SAID = 1 << 16  # bytes of what a command said before it ended
CODES = {"done": 0, "interrupted": 130}
detach_option = click.option(
    "--detach", "is_detached", is_flag=True, help="Go on when the terminal closes: `evenload attach` follows."
)


def start_detached(folder: Path) -> int:
    """Start this command again, without ``--detach``, in a session of its own, which says all in FOLDER.log.

    Returns 0 when it works at the run in ``folder``; if it ends before, what it said is printed, and its exit
    code returned. Raises ConfigError if the log cannot be written.
    """
    from evenload.report.source import Follower

    log = folder.with_name(f"{folder.name}.log")
    command = [sys.executable, "-m", "evenload", *(one for one in sys.argv[1:] if one != "--detach")]
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as said:
            start = said.tell()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
    except OSError as error:
        raise ConfigError(
            f"{log} cannot be written: {reason_of(error)}", hint="name another folder"
        ) from error
    follower, has_begun = Follower(folder / "events.jsonl"), False
    while not has_begun and process.poll() is None:
        time.sleep(EVERY_S)
        begun = [event for event in follower.read() or () if isinstance(event, RunStarted)]
        has_begun = any(event.facts.get("pid") == process.pid for event in begun)
    if not has_begun:
        with open(open_plain(log), "rb") as said:
            said.seek(start)
            click.echo(said.read(MOST_SAID).decode("utf-8", "replace"), err=True, nl=False)
        return process.returncode
    click.echo(str(folder))
    click.echo(f"process {process.pid} goes on; what it says is in {log}", err=True)
    click.echo(f"follow it: evenload attach {folder}; end it: evenload stop {folder}", err=True)
    return 0


@click.command()
@click.argument("run", type=PATH)
@no_progress_option
def attach(run: Path, no_progress: bool) -> int:
    """Follow the run in the folder RUN until it ends. Ctrl-C leaves the run alone.

    Exit code 0: all is done, 1: some failed, or the process is gone, 130: it was interrupted, or you left;
    that of the run, such as 3, where an error ended it.
    """
    from evenload.dashboard.board import is_alive
    from evenload.pipeline.store.run_folder import is_of_other_kind
    from evenload.report.progress import make_progress
    from evenload.report.source import Follower, open_run
    from evenload.report.tally import summarise

    began: RunStarted | None = None
    ended: RunFinished | None = None
    path = open_run(run).path
    is_left, follower = True, Follower(path)
    with (
        contextlib.suppress(KeyboardInterrupt),
        make_progress("never" if no_progress else "auto") as progress,
    ):
        while True:
            is_gone = began is not None and not is_alive(began.facts.get("pid"), began.unix_s)
            for event in follower.read() or ():
                progress(event)
                if isinstance(event, RunStarted):
                    began, ended = event, None
                elif isinstance(event, RunFinished):
                    ended = event
            if not follower.is_behind and (ended or is_gone):
                is_left = False
                break
            if not follower.is_behind:
                time.sleep(EVERY_S)
    if is_left:
        click.echo(f"left; it goes on: evenload attach {run}", err=True)
        return 130
    summary = summarise(open_run(run))
    if ended is not None:
        click.echo(f"{ended.status}: {summary.headline()}")
        if summary.error:
            click.echo(f"error: {summary.error}", err=True)
        return ended.exit_code or CODES.get(ended.status, 1)
    click.echo(f"the process is gone: {summary.headline()}", err=True)
    is_job = not is_of_other_kind(path.parent)
    by = f"evenload retry {run}" if is_job else "the same command with --resume"
    click.echo(f"  hint: go on: {by}", err=True)
    return 1
