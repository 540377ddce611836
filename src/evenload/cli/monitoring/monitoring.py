"""How a long command is followed: listed by ``evenload top``, on a live page, by metrics and spans."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenload.cli.options import option, passed_as

if TYPE_CHECKING:
    from evenload.devices import DevicePool
    from evenload.events import Event, EventLog


@dataclass(frozen=True, slots=True)
class Monitors:
    """Ways to follow a run that the command line asks for: live page, Prometheus, OpenTelemetry."""

    has_dash: bool = option("--dash", is_flag=True, help="Show the run in the browser; prints where.")
    metrics_port: str | None = option(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="Serve Prometheus metrics here, on this machine only unless a host is given.",
    )
    has_otel: bool = option("--otel", is_flag=True, help="Send OpenTelemetry spans (OTEL_EXPORTER_OTLP_...).")


monitor_options = passed_as(Monitors, "monitors")


@contextlib.contextmanager
def reporting(monitors: Monitors) -> "Iterator[list[Callable[[Event], None]]]":
    """The event sinks that ``--metrics-port`` and ``--otel`` ask for. Raises ConfigError, MissingExtra."""
    with contextlib.ExitStack() as stack:
        sinks: list[Callable[[Event], None]] = []
        if monitors.metrics_port is not None:
            from evenload._optional import require

            require("uvicorn", extra="watch", why="serving metrics")
            from evenload.dashboard.limited_server import parse_address
            from evenload.dashboard.metrics_server import MetricsServer

            hint = "write 9464, or 0.0.0.0:9464 for other machines"
            server = stack.enter_context(MetricsServer(*parse_address(monitors.metrics_port, hint)))
            click.echo(f"metrics: port {server.port}", err=True)
            sinks.append(server.sink)
        if monitors.has_otel:
            from evenload.report.spans import SpanSink

            sinks.append(stack.enter_context(SpanSink()))
        yield sinks


@contextlib.contextmanager
def watched(name: str, events: Path | None, *, has_dash: bool = False) -> Iterator[None]:
    """List the job ``name`` in ``evenload top``; with ``has_dash`` serve the live page of ``events``.

    The setting ``dash`` asks for the page as well. The events file need not exist yet. The page ends with the
    block. Raises MissingExtra without starlette or uvicorn.
    """
    from evenload.devices.jobs import announced

    with contextlib.ExitStack() as stack:
        if events is not None and (has_dash or _is_set()):
            from evenload._live_page import LivePage

            stack.callback(LivePage(events).close)
        stack.enter_context(announced(name, events=events))
        yield


@contextlib.contextmanager
def recorded(
    name: str, monitors: Monitors, *sinks: "Callable[[Event], None]", folder: Path | None = None
) -> "Iterator[EventLog]":
    """Open the event log of the command ``name``, with everything that ``monitors`` asks for.

    Events go to the run's ``folder``; without one, the live page reads them from a temporary folder.
    Raises ConfigError if a run is under way in ``folder``.
    """
    from evenload.events import EventFile, EventLog

    with contextlib.ExitStack() as stack:
        more = stack.enter_context(reporting(monitors))
        events = None if folder is None else folder / "events.jsonl"
        has_dash = monitors.has_dash or (events is None and _is_set())
        if has_dash and events is None:
            import tempfile

            passing = stack.enter_context(tempfile.TemporaryDirectory(prefix="evenload-"))
            events = Path(passing) / "events.jsonl"
        stack.enter_context(watched(name, events, has_dash=has_dash))
        file = []
        if events is not None:  # only now: a folder without events is no run to `evenload status`
            events.parent.mkdir(parents=True, exist_ok=True)
            file.append(stack.enter_context(EventFile(events, is_alone=True)))
        yield EventLog(*sinks, *more, *file)


@contextlib.contextmanager
def sampled(devices: "DevicePool", log: "EventLog", is_wanted: object) -> Iterator[None]:
    """Record the devices' load and memory as events, if ``is_wanted``."""
    if not is_wanted:
        yield
        return
    from evenload.devices.telemetry import Telemetry

    with Telemetry(devices, log):
        yield


def _is_set() -> bool:
    """Whether the setting ``dash`` asks for a page; that it cannot be served is no error then."""
    from evenload._optional import is_installed
    from evenload.settings import resolve

    if not resolve().dash:
        return False
    can_be = is_installed("starlette") and is_installed("uvicorn")
    if not can_be:
        click.echo("warning: there is no live page: pip install 'evenload[watch]'", err=True)
    return can_be
