"""``evenload map module:function items.jsonl -o out.jsonl``: a function over the lines of a file."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.map.function_loader import load_function
from evenload.cli.map.row_collector import RowCollector
from evenload.cli.monitoring.monitoring import Monitors, monitor_options, recorded, sampled
from evenload.cli.options import FILE, FOLDER, PATH, no_progress_option, passed_as
from evenload.cli.terminal.item_files import FORMATS, count_items, stream_items
from evenload.errors import ConfigError
from evenload.settings import resolve

if TYPE_CHECKING:
    from evenload.events import EventLog
    from evenload.executor import Executor, Results
    from evenload.settings import Settings

__all__ = ["map_items"]


@dataclass(frozen=True, slots=True)
class MapRequest:
    """The options of ``evenload map``."""

    target: str
    items: str
    out: Path | None
    devices: str | None
    policy: str | None
    backend: str | None
    ordered: bool
    batch: int | None
    timeout_s: float | None
    retries: int
    seed: int | None
    once: bool
    fresh: int
    journal: Path | None
    folder: Path | None
    resume: bool
    on_change: str
    on_error: str
    format_: str
    as_json: bool
    quiet: bool
    no_progress: bool

    def settings(self) -> "Settings":
        flags = {"devices": self.devices, "policy": self.policy, "backend": self.backend}
        return resolve({**flags, "progress": False if self.no_progress or self.quiet else None})

    def with_journal(self) -> "MapRequest":
        """The same with the journal that ``--resume`` means.

        Raises ConfigError if neither a run folder nor an output file says which one.
        """
        if not self.resume or self.journal is not None:
            return self
        if self.folder is not None:
            return replace(self, journal=self.folder / "journal")
        if self.out is None:
            raise ConfigError(
                "--resume does not know which run to go on with",
                hint="give -o FILE, whose journal is FILE.journal, or --run FOLDER, or --journal FOLDER",
            )
        return replace(self, journal=self.out.with_name(f"{self.out.name}.journal"))

    def start(
        self, executor: "Executor", function: Callable[..., Any], items: Iterator[Any], total: int | None
    ) -> "Results":
        return executor.map(
            function,
            items,
            ordered=self.ordered,
            batch=self.batch,
            repeatable=not self.once,
            timeout_s=self.timeout_s,
            retries=self.retries,
            seed=self.seed,
            on_error="return",
            total=total,
            journal=self.journal,
            on_change=self.on_change,
            fresh=self.fresh or False,
            progress=False,  # the command shows its own
        )


@click.command("map")
@click.argument("target")
@click.argument("items", metavar="ITEMS")
@click.option("-o", "--out", type=FILE, help="Write the rows here.")
@click.option("--devices", help="all | cpu | cuda:0,1 | cpu*4 | a number.")
@click.option("--policy", help="How items are dealt: measured, pull, pull:4, static, ...")
@click.option("--backend", help="process | ray (a cluster) | inline (to debug with).")
@click.option(
    "--ordered/--unordered", default=True, help="Rows in input order (the default), or as completed."
)
@click.option("--batch", type=click.IntRange(1), help="Call the function with lists of up to so many items.")
@click.option("--timeout", "timeout_s", type=float, metavar="SECONDS", help="Give up an item after so long.")
@click.option("--retries", type=click.IntRange(0), default=0, help="Try an item that fails so often again.")
@click.option("--seed", type=click.IntRange(0), help="Random numbers depend on it and the item alone.")
@click.option("--once", is_flag=True, help="Never run an item twice, not even after a crash.")
@click.option(
    "--fresh",
    type=click.IntRange(0),
    default=0,
    metavar="ITEMS",
    help="Renew a worker process after so many items; 1: none runs two.",
)
@click.option("--journal", type=PATH, help="Keep results in this folder, and do none again.")
@click.option(
    "--run",
    "folder",
    metavar="FOLDER",
    type=FOLDER,
    help="A folder for the run: its events, and by which `evenload devices drain|add` reaches it.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with an earlier run: as --journal, in the folder of --run or beside --out.",
)
@click.option(
    "--on-change",
    type=click.Choice(["refuse", "rerun", "keep"]),
    default="refuse",
    show_default=True,
    help="If the function or an item is another than the journal's.",
)
@click.option(
    "--on-error",
    type=click.Choice(["continue", "stop"]),
    default="continue",
    show_default=True,
    help="After an item has failed.",
)
@click.option("--format", "format_", type=click.Choice(FORMATS), default="auto", help="Of ITEMS.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: summary, failures, and rows.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
@no_progress_option
@monitor_options
@passed_as(MapRequest)
def map_items(request: MapRequest, monitors: Monitors) -> int:
    """Run the function TARGET (module:function or file.py:function) on all ITEMS, on every device.

    ITEMS is a file, or - for standard input: a line each (text, or JSON in .jsonl), a row each (.csv), or a
    list (.json). Each row of the output is {"index": ..., "result": ...}, with "error" in place of "result"
    for an item that failed.

    \b
    evenload map words.py:count texts.txt -o counts.jsonl
    cat urls.txt | evenload map mymodule:Fetcher - --devices cpu*8 | jq .result
    evenload map words.py:count texts.txt -o counts.jsonl --resume     (again, until it is done)
    """
    settings, function = request.settings(), load_function(request.target)
    items, request = stream_items(request.items, request.format_), request.with_journal()
    if request.folder is not None:
        request.folder.mkdir(parents=True, exist_ok=True)
    from evenload.report.progress import make_progress

    with (
        make_progress("auto" if settings.progress else "never") as progress,
        recorded(request.target, monitors, progress, folder=request.folder) as log,
    ):
        rows = _map(function, items, request, settings, monitors, log)
    for error in log.sink_errors:
        click.echo(f"warning: progress stopped early: {type(error).__name__}: {error}", err=True)
    rows.report(request.quiet)
    return rows.exit_code


def _map(
    function: Callable[..., Any],
    items: Iterator[Any],
    request: MapRequest,
    settings: "Settings",
    monitors: Monitors,
    log: "EventLog",
) -> RowCollector:
    """Start workers, map, and write the rows; events go to ``log``."""
    from evenload.events import RunFinished, RunStarted
    from evenload.executor import Executor

    chosen = {"policy": settings.policy, "backend": settings.backend}
    with Executor(settings.devices, events=log, **chosen) as executor:
        total = count_items(request.items, request.format_)
        facts = {**chosen, "pid": os.getpid()}
        devices = executor.devices.facts()
        log.emit(RunStarted(log.now(), request.target, time.time(), total, devices, facts))
        rows = RowCollector(request.start(executor, function, items, total), request.out, request.as_json)
        with (
            _controlled(request.folder, executor),
            rows.interruptible(request.quiet),
            sampled(executor.devices, log, monitors.has_dash or monitors.metrics_port),
        ):
            rows.write_all(stops_on_error=request.on_error == "stop")
        log.emit(RunFinished(log.now(), rows.status))
    return rows


def _controlled(folder: Path | None, executor: "Executor") -> AbstractContextManager[Any]:
    """Obey ``evenload devices drain|add --run FOLDER`` while the block runs."""
    if folder is None:
        return nullcontext()
    from evenload.executor.loop.control import Control

    return Control(folder, executor)
