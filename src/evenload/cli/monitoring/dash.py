"""``evenload dash RUN``: the live page of a run, while it runs or after."""

import contextlib
import os
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path

import click

from evenload._bounded_json import parse_json
from evenload._private_files import open_own, read_plain
from evenload.cli.monitoring.monitoring import Monitors, reporting
from evenload.cli.options import PATH, argument, option, passed_as
from evenload.errors import ConfigError, FormatError

MOST_REPLAY_BYTES = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class DashRequest:
    """The options of ``evenload dash``."""

    run: Path | None = argument(type=PATH, required=False)
    is_live: bool = option("--live", is_flag=True, help="Show the run that was started last on this machine.")
    host: str = option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        help="Address to serve on; any other requires a token.",
    )
    port: int | None = option(
        "--port", type=click.IntRange(0, 65535), help="Default: the first free one from 8642; 0: any."
    )
    token: str | None = option(
        "--token", help="Ask for this token (default: a new one, where one is needed)."
    )
    is_opened: bool = option("--open", is_flag=True, help="Open the page in a browser.")
    has_control: bool = option(
        "--control", is_flag=True, help="Let the page drain and add devices; it asks for a token."
    )
    metrics_port: str | None = option(
        "--metrics-port", metavar="[HOST:]PORT", help="Also serve the run as Prometheus metrics."
    )
    until_eof: bool = option(
        "--until-eof", is_flag=True, hidden=True, help="End with standard input; RUN may come later."
    )
    is_passing: bool = option("--passing", is_flag=True, hidden=True, help="At the end, delete RUN.")

    def tell(self, url: str) -> None:
        """Print the page's address, and open it in a browser if that is asked for."""
        click.echo(url)
        sys.stdout.flush()
        if self.is_opened:
            webbrowser.open(url)

    def events(self) -> Path:
        """The events file to show."""
        return newest() if self.run is None else events_of(self.run, may_come=self.until_eof)


@click.command()
@passed_as(DashRequest)
def dash(request: DashRequest) -> int:
    """Serve the live page of RUN, a run folder or its events.jsonl, until Ctrl-C.

    RUN may also be a replay of expert routing, what `evenload moe replay --json` wrote.
    Without RUN, or with --live, it is the run that was started last here. The page reads what the run writes:
    it shows a finished run as well, and watching never slows one. It prints the page's address on stdout.

    \b
    evenload dash runs/restore
    evenload run job.yaml --dash
    """
    if request.run is not None and request.is_live:
        raise click.UsageError("RUN and --live exclude each other.")
    if request.token is not None and len(request.token) < 8:
        raise ConfigError("the token is shorter than 8 characters", hint="leave --token out: one is made up")
    from evenload.dashboard import Address, serve, serve_page

    address = Address(request.host, request.port, request.token)
    replay = replay_in(request.run) if request.run is not None else None
    if replay is not None:
        serve_page(replay, address, tell=request.tell)
        return 0
    with contextlib.ExitStack() as stack:
        if request.is_passing and request.run is not None:
            stack.callback(_delete, request.run)
        sinks = stack.enter_context(reporting(Monitors(metrics_port=request.metrics_port)))
        serve(
            request.events(),
            address,
            tell=request.tell,
            ends_with=sys.stdin if request.until_eof else None,
            sinks=sinks,
            has_control=request.has_control,
        )
    return 0


def _delete(events: Path) -> None:
    """Delete an events file, and its folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        events.unlink()
        events.parent.rmdir()


def replay_in(path: Path) -> str | None:
    """The page of a replay of expert routing, if that is what ``path`` holds."""
    if path.suffix != ".json" or not path.is_file():
        return None
    from evenload.moe.replay.page import page_of

    try:
        found = parse_json(read_plain(path, MOST_REPLAY_BYTES), str(path), MOST_REPLAY_BYTES)
    except FormatError as error:
        raise ConfigError(error.message, hint="give a run folder, or a replay") from error
    return page_of(found if isinstance(found, dict) else {})


def events_of(run: Path, *, may_come: bool) -> Path:
    """The events file of a run folder, or ``run`` itself; it need not be there yet if it ``may_come``."""
    if may_come:
        return run if run.suffix == ".jsonl" else run / "events.jsonl"
    from evenload.report.source import open_run

    return open_run(run).path


def newest() -> Path:
    """The events of the job that was started last and still runs. Raises ConfigError if there is none."""
    from evenload.devices.jobs import running_jobs

    jobs = [job for job in running_jobs() if job.events is not None]
    if not jobs:
        raise ConfigError(
            "no job of yours that keeps its events runs on this machine",
            hint="name a run folder: evenload dash runs/restore; or start one: evenload run job.yaml --dash",
        )
    path = Path(str(max(jobs, key=lambda job: job.unix_s).events))
    with contextlib.suppress(OSError):  # it may still come
        os.close(open_own(path, "events of a job", is_trusted=False))
    return path
