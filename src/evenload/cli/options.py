"""Options that several commands have, and the decorator that hands all options on as one frozen value."""

import functools
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

__all__ = [
    "FILE",
    "FOLDER",
    "PATH",
    "NumberRange",
    "color_option",
    "json_option",
    "no_progress_option",
    "passed_as",
    "planning_limit_option",
    "quiet_option",
    "set_option",
    "skip_option",
]

Command = Callable[..., Any]

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


class NumberRange(click.FloatRange):
    """A number in a range; unlike ``click.FloatRange``, no NaN, which is neither below nor above anything."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is no number", param, ctx)
        return number


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Say nothing but the result.")
no_progress_option = click.option("--no-progress", is_flag=True, help="No progress on stderr.")
color_option = click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), help="Colour in the terminal."
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


def passed_as(kind: type, name: str = "request") -> Callable[[Command], Command]:
    """Have a command take one ``kind``, a frozen dataclass, in place of the options that its fields name.

    name  of the command's argument
    """
    names = [field.name for field in fields(kind)]

    def wrap(command: Command) -> Command:
        @functools.wraps(command)
        def run(*args: Any, **given: Any) -> Any:
            value = kind(**{one: given.pop(one) for one in names if one in given})
            return command(*args, **given, **{name: value})

        return run

    return wrap
