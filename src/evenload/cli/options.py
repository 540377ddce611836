"""Options that several commands have, and the decorator that hands all options on as one frozen value."""

import errno
import functools
import os
from collections.abc import Callable
from dataclasses import field, fields
from pathlib import Path
from typing import Any

import click

from evenload._arguments import refuse_drive
from evenload._private_files import is_stream
from evenload.errors import ConfigError, EvenloadError, quoted

Command = Callable[..., Any]


def page_json(page: Any, **layout: Any) -> str:
    """What a command prints as JSON, which every parser takes: a number that is not finite is null."""
    from evenload.events import json_text

    return json_text(page, ensure_ascii=True, **layout)


class HerePath(click.Path):
    """A path of this system: one of Windows is refused elsewhere, where it is only an odd name.

    Links that lead back to themselves are refused, too: many functions of Python's raise no OSError for them.
    """

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        refuse_drive(value)
        if not os.fspath(value):
            self.fail("an empty path names nothing", param, ctx)
        try:
            os.stat(value)
        except OSError as error:
            if error.errno == errno.ELOOP:
                self.fail(f"{quoted(os.fspath(value), 200)} is a link that leads back to itself", param, ctx)
        return super().convert(value, param, ctx)


PATH = HerePath(path_type=Path)
FILE = HerePath(path_type=Path, dir_okay=False)
FOLDER = HerePath(path_type=Path, file_okay=False)


class NumberRange(click.FloatRange):
    """A number in a range; unlike ``click.FloatRange``, no NaN, which is neither below nor above anything."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is no number", param, ctx)
        return number


INTERVAL = NumberRange(0, 86_400, min_open=True)  # seconds; more than a clock can add is no time to wait


def _scheme_of_today(_context: click.Context, _option: click.Parameter, name: str) -> str:
    from evenload.merkle.scheme import written_name

    today = written_name(name)
    if today != name:
        click.echo(f"note: --scheme {name} is called {today} now, and the old name will go", err=True)
    return today


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Say nothing but the result.")
no_progress_option = click.option("--no-progress", is_flag=True, help="No progress on stderr.")
color_option = click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), help="Colour in the terminal."
)
scheme_option = click.option(
    "--scheme", default="rfc6962", show_default=True, callback=_scheme_of_today, help="Which kind of tree."
)
set_option = click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Set a key of the job file."
)
skip_option = click.option(
    "--skip", "skipped", multiple=True, metavar="ID", help="Leave this item out; may be given several times."
)
planning_limit_option = click.option(
    "--time-limit",
    type=NumberRange(0, min_open=True),
    metavar="SECONDS",
    help="End the search for a plan after so long; the best so far is the plan.",
)


CLICK = "click"  # in a field's metadata: what makes of its name the decorator of a command


def option(*names: str, **settings: Any) -> Any:
    """A field that an option of the command line fills; ``names`` and ``settings`` as of ``click.option``."""
    unset = False if settings.get("is_flag") else () if settings.get("multiple") else None
    metadata = {CLICK: lambda name: click.option(*names, name, **settings)}
    return field(default=settings.get("default", unset), metadata=metadata)


def argument(**settings: Any) -> Any:
    """A field that an argument of the command line fills; ``settings`` as of ``click.argument``."""
    return field(metadata={CLICK: lambda name: click.argument(name, **settings)})


def shared(decorator: Command) -> Any:
    """A field that an option fills which several commands have, such as ``json_option``."""
    return field(metadata={CLICK: lambda _: decorator})


def write_certificate(path: Path | None, make: Callable[[], dict[str, Any]]) -> None:
    """Write the certificate that ``--certificate`` asks for, as ``evenload certify`` checks it."""
    if path is not None:
        from evenload._private_files import write_named
        from evenload.balance.claim import text_of

        write_named(path, text_of(make()), "--certificate")


WRITTEN = ("-o", "--report", "--trace", "--badge", "--certificate")  # options that name a file to write
OF_RUNS = ("events.jsonl", "journal.json", "results.jsonl")  # what evenload reads again in a folder of a run


def _refuse_to_overwrite_input(context: click.Context) -> None:
    """Raise ConfigError if an option names a file to write that the command reads, or writes by another."""
    given = {param: context.params.get(param.name or "") for param in context.command.params}
    written = {
        param.opts[0]: value
        for param, value in given.items()
        if isinstance(value, Path) and not set(WRITTEN).isdisjoint(param.opts)
    }
    others = [value for param, value in given.items() if param.opts[0] not in written]
    every = [one for some in others for one in (some if isinstance(some, tuple) else (some,))]
    read = [Path(one) for one in every if isinstance(one, str | Path) and one and "\0" not in str(one)]
    read += [Path(file) for one in map(str, read) for file, colon, _ in [one.rpartition(":")] if colon]
    folders = [os.path.realpath(one) for one in read]
    for number, (option, path) in enumerate(written.items()):
        is_read = any(one.is_file() and path.is_file() and one.samefile(path) for one in read)
        is_own = path.name in OF_RUNS and os.path.realpath(path.parent) in folders
        if is_read or is_own:
            raise ConfigError(
                f"{option} {quoted(str(path))} would overwrite what is read", hint="name another file"
            )
        if os.path.realpath(path) in map(os.path.realpath, [*written.values()][:number]) and not is_stream(
            path
        ):
            raise ConfigError(f"{quoted(str(path))} is to be written twice", hint="name two files")


def passed_as(kind: type, name: str = "request") -> Callable[[Command], Command]:
    """Give a command the options that the fields of ``kind`` say, a frozen dataclass, and pass them as one.

    name  of the command's argument

    Fields that say none are filled, too, by options that the command has of another decorator. A command that
    is to print JSON prints, too, that a device or an extra is not there.
    """

    def wrap(command: Command) -> Command:
        @functools.wraps(command)
        def run(*args: Any, **given: Any) -> Any:
            _refuse_to_overwrite_input(click.get_current_context())
            value = kind(**{one.name: given.pop(one.name) for one in fields(kind) if one.name in given})
            try:
                return command(*args, **given, **{name: value})
            except EvenloadError as error:
                if error.exit_code == 3 and getattr(value, "as_json", False):
                    click.echo(page_json({"schema": 1, "error": error.message, "hint": error.hint}))
                raise

        for one in reversed(fields(kind)):
            run = one.metadata[CLICK](one.name)(run) if CLICK in one.metadata else run
        return run

    return wrap
