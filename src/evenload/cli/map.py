"""``evenload map module:function items.jsonl -o out.jsonl``: a function over the lines of a file."""

import importlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.monitoring.attach import detach_option, start_detached
from evenload.cli.monitoring.monitoring import Monitors, monitor_options, recorded, sampled
from evenload.cli.options import FILE, FOLDER, PATH, argument, no_progress_option, option, passed_as, shared
from evenload.cli.terminal.item_files import FORMATS, RowWriter, count_items, row_json, row_of, stream_items
from evenload.errors import ConfigError, ResultNotSendable, UnknownName, quoted
from evenload.settings import resolve

if TYPE_CHECKING:
    from evenload.events import EventLog
    from evenload.executor import Executor, Results, Summary
    from evenload.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRequest:
    """The options of ``evenload map``."""

    target: str = argument()
    items: str = argument(metavar="ITEMS")
    out: Path | None = option("-o", "--out", type=FILE, help="Write the rows here.")
    devices: str | None = option("--devices", help="all | cpu | cuda:0,1 | cpu*4 | a number.")
    policy: str | None = option("--policy", help="How items are dealt: measured, pull, pull:4, static, ...")
    backend: str | None = option("--backend", help="process | ray (a cluster) | inline (to debug with).")
    ordered: bool = option(
        "--ordered/--unordered", default=True, help="Rows in input order (the default), or as completed."
    )
    batch: int | None = option(
        "--batch", type=click.IntRange(1), help="Call the function with lists of up to so many items."
    )
    timeout_s: float | None = option(
        "--timeout", type=float, metavar="SECONDS", help="Give up an item after so long."
    )
    retries: int = option(
        "--retries", type=click.IntRange(0), default=0, help="Try an item that fails so often again."
    )
    seed: int | None = option(
        "--seed", type=click.IntRange(0), help="Random numbers depend on it and the item alone."
    )
    once: bool = option("--once", is_flag=True, help="Never run an item twice, not even after a crash.")
    fresh: int = option(
        "--fresh",
        type=click.IntRange(0),
        default=0,
        metavar="ITEMS",
        help="Renew a worker process after so many items; 1: a new one for each item.",
    )
    journal: Path | None = option(
        "--journal",
        type=PATH,
        help="Keep results in this folder; items with a result there are not run again.",
    )
    folder: Path | None = option(
        "--run",
        metavar="FOLDER",
        type=FOLDER,
        help="A folder for the events; `evenload devices drain|add` takes it to change the devices.",
    )
    resume: bool = option(
        "--resume",
        is_flag=True,
        help="Go on with an earlier run: as --journal, in the folder of --run or beside --out.",
    )
    on_change: str = option(
        "--on-change",
        type=click.Choice(["refuse", "rerun", "keep"]),
        default="refuse",
        show_default=True,
        help="What to do if the function or an item has changed since the journal.",
    )
    on_error: str = option(
        "--on-error",
        type=click.Choice(["continue", "stop"]),
        default="continue",
        show_default=True,
        help="After an item has failed.",
    )
    format_: str = option("--format", type=click.Choice(FORMATS), default="auto", help="The format of ITEMS.")
    is_detached: bool = shared(detach_option)
    as_json: bool = option("--json", is_flag=True, help="Print one JSON object: summary, failures, and rows.")
    quiet: bool = option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
    no_progress: bool = shared(no_progress_option)

    def settings(self) -> "Settings":
        flags = {"devices": self.devices, "policy": self.policy, "backend": self.backend}
        return resolve({**flags, "progress": False if self.no_progress or self.quiet else None})

    def with_journal(self) -> "MapRequest":
        """The request with the journal that ``--resume`` means.

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
    if request.is_detached:
        return _detached(request)
    settings, function = request.settings(), load_function(request.target)
    items, request = stream_items(request.items, request.format_), request.with_journal()
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


def _detached(request: MapRequest) -> int:
    """Start the command in a session of its own. Raises ConfigError if it would miss this terminal."""
    if request.folder is None or request.out is None:
        raise ConfigError(
            "--detach leaves this terminal, and its output",
            hint="give --run FOLDER, by which the run can be followed, and -o FILE for its rows",
        )
    if request.items == "-":
        raise ConfigError("--detach leaves this terminal, and its input", hint="write the items to a file")
    return start_detached(request.folder)


MOST_LISTED = 10


class RowCollector:
    """The rows of one map: written as results come, with the failures collected for the end.

    results    what the executor returns, as it comes
    out        the file for the rows; None: standard output
    as_json    print one JSON object at the end, with the rows in it if there is no ``out``
    unwritten  of the failures, results that are no JSON: the executor counts them as done
    """

    def __init__(self, results: "Results", out: Path | None, as_json: bool):
        self.failures: list[dict[str, Any]] = []
        self.unwritten: list[dict[str, Any]] = []
        self.is_interrupted = False
        self._results = results
        self._out = out
        self._as_json = as_json
        self._rows: list[dict[str, Any]] = []

    def write_all(self, stops_on_error: bool) -> None:
        """Write a row for every result. What is finished is written first, whatever happens."""
        writer = RowWriter(self._out, is_mute=self._as_json)
        try:
            for block in self._results.blocks():
                for index, value in zip(block.items, block.values, strict=True):
                    writer.write(self._line(index, value))
                writer.flush()
                if stops_on_error and self.failures:
                    self._results.stop()
        except KeyboardInterrupt:
            self.is_interrupted = True
        except BrokenPipeError:  # the reader has left: what failed until then is told all the same
            if not self.failures:
                raise
        finally:
            is_cut = sys.exc_info()[0] is not None
            self._results.close()
            writer.close(is_cut=is_cut)

    def _line(self, index: int, value: Any) -> str:
        """The row of a result as a line of JSON; a failure is also kept for the end."""
        try:
            row, line = row_of(index, value)
        except (TypeError, ValueError) as error:
            row, line = row_of(
                index, ResultNotSendable(f"the result cannot be written: {error}", index=index)
            )
            self.unwritten.append(row)
        if "error" in row:
            self.failures.append(row)
        if self._as_json and self._out is None:
            self._rows.append(json.loads(line))
        return line

    @contextmanager
    def interruptible(self, quiet: bool) -> Iterator[None]:
        """On the first Ctrl-C or SIGTERM begin nothing new and keep what is finished; on the second end."""

        def on_interrupt(signum: int, frame: FrameType | None) -> None:
            if self.is_interrupted:
                raise KeyboardInterrupt
            self.is_interrupted = True
            self._results.stop()
            if not quiet:
                click.echo("finishing what runs; press Ctrl-C again to stop now", err=True)

        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, on_interrupt) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @property
    def status(self) -> str:
        return "interrupted" if self.is_interrupted else "failures" if self.failures else "done"

    @property
    def exit_code(self) -> int:
        return {"interrupted": 130, "failures": 1, "done": 0}[self.status]

    def report(self, quiet: bool) -> None:
        """Print the JSON object on stdout if it was asked for; failures and the headline on stderr."""
        summary = self._summary()
        for row in self.failures[:MOST_LISTED]:
            error = row["error"]
            first = error["message"].splitlines()[0] if error["message"] else ""
            click.echo(f"failed: item {row['index']}: {error['type']}: {first}", err=True)
        if len(self.failures) > MOST_LISTED:
            click.echo(f"... and {len(self.failures) - MOST_LISTED} more failures", err=True)
        if not quiet and summary is not None:
            click.echo(f"{'interrupted: ' if self.is_interrupted else ''}{summary}", err=True)
        if self._as_json:
            click.echo(row_json(self._page(summary), sys.stdout.encoding))

    def _summary(self) -> "Summary | None":
        """The summary of the map, in which a result that could not be written counts as failed."""
        summary, n = self._results.summary, len(self.unwritten)
        if summary is None or not n:
            return summary
        return replace(summary, done=summary.done - n, failed=summary.failed + n)

    def _page(self, summary: "Summary | None") -> dict[str, Any]:
        page: dict[str, Any] = {"schema": 1, "status": self.status, "failed": self.failures}
        page |= {"out": str(self._out)} if self._out else {"rows": self._rows}
        return page | {"summary": None if summary is None else summary.to_json()}


def _map(
    function: Callable[..., Any],
    items: Iterator[Any],
    request: MapRequest,
    settings: "Settings",
    monitors: Monitors,
    log: "EventLog",
) -> RowCollector:
    """Start workers, map, and write the rows; events go to ``log``."""
    from evenload.events import ItemFailed, RunFinished, RunStarted
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
        for row in rows.unwritten:
            index, error = row["index"], row["error"]
            log.emit(ItemFailed(log.now(), "map", index, str(index), error["type"], error["message"]))
        log.emit(RunFinished(log.now(), rows.status))
    return rows


def _controlled(folder: Path | None, executor: "Executor") -> AbstractContextManager[Any]:
    """Obey ``evenload devices drain|add --run FOLDER`` while the block runs."""
    if folder is None:
        return nullcontext()
    from evenload.executor.loop.control import Control

    return Control(folder, executor)


# Folders of sys.path that hold installed packages.
INSTALLED = ("site-packages", "dist-packages")


def load_function(target: str) -> Any:
    """Import and return the function or class that ``target`` names; the name may have dots.

    Raises ConfigError if there is no such module or file, or importing it fails; UnknownName for the name.
    """
    module_name, colon, name = target.rpartition(":")
    if not colon or not module_name or not name:
        raise ConfigError(
            f"{quoted(target)} is not module:function", hint="write mymodule:function or file.py:function"
        )
    module = _import_module(module_name)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [key for key in vars(found) if not key.startswith("_")]
            raise UnknownName(f"name in {module_name}:", part, public)
        found = getattr(found, part)
    return found


def _import_module(name: str) -> Any:
    try:
        if name.endswith(".py"):
            return _import_file(Path(name))
        _add_current_folder()
        return importlib.import_module(name)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise ConfigError(f"{name} cannot be imported: {error}") from error
        hint = (
            f"write {name}.py:function" if Path(f"{name}.py").is_file() else "check the name, or install it"
        )
        raise ConfigError(f"there is no module {quoted(name)}", hint=hint) from error
    except SystemExit as error:
        raise ConfigError(
            f"{name} cannot be imported: it ends the program, sys.exit({quoted(error.code)})",
            hint="put what a script does under: if __name__ == '__main__'",
        ) from error
    except Exception as error:
        raise ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _add_current_folder() -> None:
    """Let modules in the current folder be imported: before installed ones, after Python's own."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        installed = (at for at, entry in enumerate(sys.path) if Path(entry).name in INSTALLED)
        sys.path.insert(next(installed, len(sys.path)), folder)


def _import_file(path: Path) -> Any:
    """Import a file; files beside it can be imported, too, if no other module has their name.

    The module gets the file's own name if a worker can import it by that, so that its classes are the same
    everywhere; else (``signal.py``, ``my.script.py``) a name that no module can have: it is sent by value.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="check the path")
    file = path.resolve()
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    if _is_importable_as(path.stem, file):
        return importlib.import_module(path.stem)
    from evenload.executor.task.user_file import import_file

    return import_file(file, f"evenload_file:{path.stem}")


def _is_importable_as(name: str, file: Path) -> bool:
    """Whether ``import name`` would import this file."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file
