"""What a long command does to be watched: it says that it runs, and starts the live page if asked for."""

import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from evenload.devices import DevicePool
    from evenload.events import Event, EventLog

__all__ = ["recorded", "reporting", "sampled", "watch_options", "watched"]

LAST_WORDS_S = 8.0

WATCHES = (
    click.option("--dash", "has_dash", is_flag=True, help="Show the run in the browser; prints where."),
    click.option(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="Serve Prometheus metrics here, on this machine only unless a host is given.",
    ),
    click.option(
        "--otel", "has_otel", is_flag=True, help="Send OpenTelemetry spans (OTEL_EXPORTER_OTLP_...)."
    ),
)


def watch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options ``--dash``, ``--metrics-port`` and ``--otel``, for a long command."""
    for option in reversed(WATCHES):
        command = option(command)
    return command


@contextlib.contextmanager
def reporting(metrics_port: str | None, has_otel: bool) -> "Iterator[list[Callable[[Event], None]]]":
    """The sinks that ``--metrics-port`` and ``--otel`` ask for. Raises ConfigError, MissingExtra."""
    with contextlib.ExitStack() as stack:
        sinks: list[Callable[[Event], None]] = []
        if metrics_port is not None:
            from evenload.report.metrics import MetricsServer, parse_address

            server = stack.enter_context(MetricsServer(*parse_address(metrics_port)))
            click.echo(f"metrics: port {server.port}", err=True)
            sinks.append(server.sink)
        if has_otel:
            from evenload.report.spans import SpanSink

            sinks.append(stack.enter_context(SpanSink()))
        yield sinks


@contextlib.contextmanager
def watched(
    name: str, events: Path | None, *, has_dash: bool = False, devices: Sequence[str] = ()
) -> Iterator[None]:
    """Announce the job ``name`` for ``evenload top``; serve the page of ``events``, a file that may come yet.

    The page has a process of its own: nothing that a viewer does can hold up the run. It ends with the block.
    Raises MissingExtra without starlette or uvicorn.
    """
    from evenload.devices.jobs import announced

    with contextlib.ExitStack() as stack:
        if has_dash and events is not None:
            stack.enter_context(_page(events))
        stack.enter_context(announced(name, devices=devices, events=events))
        yield


@contextlib.contextmanager
def recorded(
    name: str, has_dash: bool, *sinks: "Callable[[Event], None]", folder: Path | None = None
) -> "Iterator[EventLog]":
    """The log of a command; without a run ``folder``, its page reads the events from a temporary one."""
    from evenload.events import EventFile, EventLog

    with contextlib.ExitStack() as stack:
        events = None if folder is None else folder / "events.jsonl"
        if has_dash and events is None:
            passing = stack.enter_context(tempfile.TemporaryDirectory(prefix="evenload-"))
            events = Path(passing) / "events.jsonl"
        stack.enter_context(watched(name, events, has_dash=has_dash))
        file = [stack.enter_context(EventFile(events))] if events is not None else []
        yield EventLog(*sinks, *file)


@contextlib.contextmanager
def sampled(devices: "DevicePool", log: "EventLog", is_wanted: object) -> Iterator[None]:
    """Load and memory of the devices as events, if somebody will look at them."""
    if not is_wanted:
        yield
        return
    from evenload.devices.telemetry import Telemetry

    with Telemetry(devices, log):
        yield


@contextlib.contextmanager
def _page(events: Path) -> Iterator[None]:
    from evenload._optional import require

    for package in ("starlette", "uvicorn"):
        require(package, extra="dash", why="serving the live page")
    command = [sys.executable, "-m", "evenload", "dash", str(events.absolute()), "--until-eof"]
    # A session of its own: Ctrl-C is for the run, whose end the page still shows.
    page = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    teller = threading.Thread(target=_tell, args=(page,), daemon=True)
    teller.start()
    try:
        yield
    finally:
        if page.stdin is not None:
            page.stdin.close()
        try:
            page.wait(LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            page.kill()
            page.wait()
        teller.join(1.0)


def _tell(page: "subprocess.Popen[str]") -> None:
    if page.stdout is not None:
        with page.stdout as lines:
            for line in lines:
                click.echo(f"live page: {line.strip()}", err=True)
