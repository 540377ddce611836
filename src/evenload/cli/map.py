"""``evenload map module:function items.jsonl -o out.jsonl``: a function over the lines of a file."""

import importlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.monitoring.monitoring import recorded, reporting, sampled, watch_options
from evenload.cli.terminal.item_files import FORMATS, RowWriter, count_items, json_text, read_items, row_of
from evenload.errors import ConfigError, ResultNotSendable, UnknownName
from evenload.settings import resolve

if TYPE_CHECKING:
    from evenload.executor import Executor, Results, Summary

__all__ = ["map_items"]

MOST_LISTED = 10
# Folders of sys.path that hold installed packages.
INSTALLED = ("site-packages", "dist-packages")


@click.command("map")
@click.argument("target")
@click.argument("items", metavar="ITEMS")
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the rows here.")
@click.option("--devices", help="all | cpu | cuda:0,1 | cpu*4 | a number.")
@click.option("--policy", help="How items are dealt: measured, pull, pull:4, static, ...")
@click.option("--backend", help="process | ray (a cluster) | inline (to debug with).")
@click.option(
    "--ordered/--unordered", default=True, help="Rows in input order (the default), or as completed."
)
@click.option("--batch", type=click.IntRange(1), help="Call the function with lists of up to so many items.")
@click.option("--timeout", "timeout_s", type=float, metavar="SECONDS", help="Give up an item after so long.")
@click.option("--retries", type=click.IntRange(0), default=0, help="Try an item that fails so often again.")
@click.option("--once", is_flag=True, help="Never run an item twice, not even after a crash.")
@click.option(
    "--journal", type=click.Path(path_type=Path), help="Keep results in this folder, and do none again."
)
@click.option(
    "--run",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder for the run: its events, and by which `evenload devices drain|add` reaches it.",
)
@click.option("--resume", is_flag=True, help="The same, with the journal in --run, or beside --out.")
@click.option(
    "--on-change",
    type=click.Choice(["refuse", "rerun"]),
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
@click.option("--no-progress", is_flag=True, help="No progress on stderr.")
@watch_options
def map_items(
    target: str,
    items: str,
    out: Path | None,
    devices: str | None,
    policy: str | None,
    backend: str | None,
    ordered: bool,
    batch: int | None,
    timeout_s: float | None,
    retries: int,
    once: bool,
    journal: Path | None,
    folder: Path | None,
    resume: bool,
    on_change: str,
    on_error: str,
    format_: str,
    as_json: bool,
    quiet: bool,
    no_progress: bool,
    has_dash: bool,
    metrics_port: str | None,
    has_otel: bool,
) -> int:
    """Run the function TARGET (module:function or file.py:function) on all ITEMS, on every device.

    ITEMS is a file, or - for standard input: a line each (text, or JSON in .jsonl), a row each (.csv), or a
    list (.json). Each row of the output is {"index": ..., "result": ...}, with "error" in place of "result"
    for an item that failed.

    \b
    evenload map words.py:count texts.txt -o counts.jsonl
    cat urls.txt | evenload map mymodule:Fetcher - --devices cpu*8 | jq .result
    evenload map words.py:count texts.txt -o counts.jsonl --resume     (again, until it is done)
    """
    flags = {"devices": devices, "policy": policy, "backend": backend}
    settings = resolve({**flags, "progress": False if no_progress or quiet else None})
    function = locate(target)
    source = read_items(items, format_)
    if resume and journal is None:
        journal = journal_beside(out, folder)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    from evenload.events import RunFinished, RunStarted
    from evenload.executor import Executor
    from evenload.report.progress import make_progress

    with (
        make_progress("auto" if settings.progress else "never") as progress,
        reporting(metrics_port, has_otel) as sinks,
        recorded(target, has_dash, progress, *sinks, folder=folder) as log,
    ):
        chosen = {"policy": settings.policy, "backend": settings.backend}
        with Executor(settings.devices, events=log, **chosen) as executor:
            total = count_items(items, format_)
            facts = {**chosen, "pid": os.getpid()}
            log.emit(RunStarted(log.now(), target, time.time(), total, executor.devices.facts(), facts))
            results = executor.map(
                function,
                source,
                ordered=ordered,
                batch=batch,
                repeatable=not once,
                timeout_s=timeout_s,
                retries=retries,
                on_error="return",
                total=total,
                journal=journal,
                on_change=on_change,
            )
            outcome = Outcome(results, out, as_json)
            with (
                controlled(folder, executor),
                interruptible(results, outcome, quiet),
                sampled(executor.devices, log, has_dash or metrics_port),
            ):
                outcome.take_all(stops_on_error=on_error == "stop")
            log.emit(RunFinished(log.now(), outcome.status))
    for error in log.sink_errors:
        click.echo(f"warning: progress stopped early: {type(error).__name__}: {error}", err=True)
    outcome.report(quiet)
    return outcome.exit_code


def controlled(folder: Path | None, executor: "Executor") -> AbstractContextManager[Any]:
    """Listen in ``folder`` to what others want of the run."""
    if folder is None:
        return nullcontext()
    from evenload.executor.loop.control import Control

    return Control(folder, executor)


def journal_beside(out: Path | None, folder: Path | None) -> Path:
    """The journal of the run in ``folder``, or that writes ``out``. Raises ConfigError with neither."""
    if folder is not None:
        return folder / "journal"
    if out is None:
        raise ConfigError(
            "--resume does not know which run to go on with",
            hint="give -o FILE, whose journal is FILE.journal, or --run FOLDER, or --journal FOLDER",
        )
    return out.with_name(f"{out.name}.journal")


class Outcome:
    """What comes of the items: rows written, failures counted, and what to say in the end."""

    def __init__(self, results: "Results", out: Path | None, as_json: bool):
        self.failures: list[dict[str, Any]] = []
        self.is_interrupted = False
        self.n_rows = 0
        self._results = results
        self._out = out
        self._as_json = as_json
        self._rows: list[dict[str, Any]] = []
        self._error: BaseException | None = None

    def take_all(self, stops_on_error: bool) -> None:
        """Write a row for every result. What is finished is written first, whatever happens."""
        writer = RowWriter(self._out, is_mute=self._as_json)
        try:
            for block in self._results.blocks():
                for index, value in zip(block.items, block.values, strict=True):
                    writer.write(self._take(index, value))
                writer.flush()
                if stops_on_error and self.failures:
                    self._results.stop()
        except KeyboardInterrupt:
            self.is_interrupted = True
        finally:
            self._results.close()
            writer.close()

    def _take(self, index: int, value: Any) -> str:
        try:
            row, line = row_of(index, value)
        except (TypeError, ValueError) as error:
            row, line = row_of(
                index, ResultNotSendable(f"the result cannot be written: {error}", index=index)
            )
        self.n_rows += 1
        if "error" in row:
            self.failures.append(row)
        if self._as_json and self._out is None:
            self._rows.append(json.loads(line))
        return line

    @property
    def status(self) -> str:
        return "interrupted" if self.is_interrupted else "failures" if self.failures else "done"

    @property
    def exit_code(self) -> int:
        return {"interrupted": 130, "failures": 1, "done": 0}[self.status]

    def report(self, quiet: bool) -> None:
        """The JSON object on stdout if it was asked for; failures and the headline on stderr."""
        summary = self._results.summary
        for row in self.failures[:MOST_LISTED]:
            error = row["error"]
            first = error["message"].splitlines()[0] if error["message"] else ""
            click.echo(f"failed: item {row['index']}: {error['type']}: {first}", err=True)
        if len(self.failures) > MOST_LISTED:
            click.echo(f"... and {len(self.failures) - MOST_LISTED} more failures", err=True)
        if not quiet and summary is not None:
            click.echo(self._headline(summary), err=True)
        if self._as_json:
            page: dict[str, Any] = {"schema": 1, "status": self.status, "failed": self.failures}
            page |= {"out": str(self._out)} if self._out else {"rows": self._rows}
            page["summary"] = None if summary is None else summary.to_json()
            click.echo(json_text(page, sys.stdout.encoding))

    def _headline(self, summary: "Summary") -> str:
        text = str(summary)
        if self.is_interrupted:
            text = f"interrupted: {text}"
        return text


@contextmanager
def interruptible(results: "Results", outcome: Outcome, quiet: bool) -> Iterator[None]:
    """Ctrl-C or SIGTERM once: begin nothing new, keep what is finished. Twice: now."""

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        if outcome.is_interrupted:
            raise KeyboardInterrupt
        outcome.is_interrupted = True
        results.stop()
        if not quiet:
            click.echo("finishing what runs; press Ctrl-C again to stop now", err=True)

    previous = {number: signal.signal(number, on_interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def locate(target: str) -> Any:
    """The function or class that ``module:name`` or ``file.py:name`` stands for.

    Raises ConfigError if there is no such module or file, or importing it fails; UnknownName for the name.
    """
    module_name, colon, name = target.rpartition(":")
    if not colon or not module_name or not name:
        raise ConfigError(
            f"{target!r} is not module:function", hint="write mymodule:function or file.py:function"
        )
    module = _module_of(module_name)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [key for key in vars(found) if not key.startswith("_")]
            raise UnknownName(f"name in {module_name}:", part, public)
        found = getattr(found, part)
    return found


def _module_of(name: str) -> Any:
    try:
        if name.endswith(".py"):
            return _module_from(Path(name))
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
        raise ConfigError(f"there is no module {name!r}", hint=hint) from error
    except SystemExit as error:
        raise ConfigError(
            f"{name} cannot be imported: it ends the program, sys.exit({error.code!r})",
            hint="put what a script does under: if __name__ == '__main__'",
        ) from error
    except Exception as error:
        raise ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _add_current_folder() -> None:
    """Modules in the current folder can be imported: before installed ones, after Python's own."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        installed = (at for at, entry in enumerate(sys.path) if Path(entry).name in INSTALLED)
        sys.path.insert(next(installed, len(sys.path)), folder)


def _module_from(path: Path) -> Any:
    """The file as a module; files beside it can be imported, if no other module has their name.

    The module has the file's own name if a worker can import it by that, so that its classes are the same
    everywhere; else (``signal.py``, ``my.script.py``) one that nothing can have, and is sent by value.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="check the path")
    file = path.resolve()
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    if _leads_to(path.stem, file):
        return importlib.import_module(path.stem)
    name = f"evenload_file:{path.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _leads_to(name: str, file: Path) -> bool:
    """Would ``import name`` give this file?"""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file
