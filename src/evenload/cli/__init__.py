"""The commands, one small file each, loaded only when they are called."""

import contextlib
import errno
import importlib
import io
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from evenload._live_page import left_to_command
from evenload._optional import refuse_windows
from evenload._plain_text import shortened
from evenload._terminal import own_codes, plain_streams
from evenload._version import __version__
from evenload.errors import NO_ROOM, ConfigError, EvenloadError, UnknownName, quoted

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["main"]
__path__ = [f"{folder}/cli" for folder in sys.modules["evenload"].__path__]  # parts have commands, too

SECTIONS = {
    "Work over devices": {
        "map": ("map:map_items", "Run a function over the lines of a file."),
        "exec": ("exec:exec_script", "Run an unchanged script, its process pools dealt evenly."),
        "run": ("pipeline.run:run", "Run a pipeline described by a YAML file."),
        "plan": ("pipeline.plan:plan", "Say what of a pipeline fits where, and how long it takes."),
        "init": ("pipeline.init:init", "Write a small job file to start from."),
        "simulate": ("simulate:simulate_fleet", "Ask what a fleet would do with your items."),
        "bench": ("bench.command:bench", "Measure how work scales over the devices of this machine."),
    },
    "Runs": {
        "attach": ("monitoring.attach:attach", "Follow a run, such as one of --detach, until it ends."),
        "status": ("pipeline.status:status", "Say how far a run is, by stage and group."),
        "top": ("monitoring.top:top", "Show devices and running jobs, live."),
        "dash": ("monitoring.dash:dash", "Show a run in the browser, while it runs or after."),
        "stop": ("pipeline.stop:stop", "End a run, or give up some of its items."),
        "retry": ("pipeline.run:retry", "Go on with a run, and try again what failed."),
        "report": ("report:report", "Make the HTML report or the trace of a run folder."),
        "certify": ("certify:certify", "Prove how close to the best possible a run came."),
        "upload": ("pipeline.upload:upload", "Copy the results of a run to a store (s3://, ...)."),
    },
    "This machine": {
        "devices": ("devices:devices", "List the devices, their scores and their load."),
        "doctor": ("doctor:doctor", "Say what works here, and what to install for the rest."),
        "warm": ("warm:warm", "Compile beforehand what first answers would wait for."),
        "completion": ("completion:completion", "Print the completion script of a shell."),
    },
    "Training, experts, proofs": {
        "audit": ("audit:audit", "Say where the time of devices went in any program's trace."),
        "plan-training": ("plan_training:plan_training", "Say what unequal GPUs would get of a batch."),
        "clients": ("clients:clients", "Train many small models at once: federated rounds."),
        "moe": ("moe.group:moe", "Place the experts of a mixture of experts, route batches."),
        "merkle": ("merkle.group:merkle", "Roots and proofs of Merkle trees over files."),
        "zk": ("zk:zk", "Make and verify Groth16 proofs, look into their keys."),
    },
}  # fmt: skip
COMMANDS = {name: home for section in SECTIONS.values() for name, (home, _) in section.items()}
MOVED = {"prove": "zk prove", "fullprove": "zk fullprove", "verify": "zk verify"}
DISK_FAULTS = (errno.EINVAL, errno.EIO, errno.ESTALE)  # of a file that was opened: the error names none
WITHOUT_WORKERS = ("certify", "completion", "doctor", "plan-training", "simulate")
EXIT_CODES = """\b
Exit codes: 0 done; 1 some work failed (and is listed); 2 usage or configuration;
3 no usable device or a missing extra; 130 interrupted."""


_ARGUMENT = re.compile(r"""(?<![\w.-])([a-z_]+)=(?:(['"])([^'"]*)\2|([\w.*+-]+))""")


class ReaderLeft(Exception):
    """The reader of the output has closed it (``| head``). No OSError, for which click would exit with 1."""


class LazyGroup(click.Group):
    """A group of commands that imports one only to run it or to print its help.

    sections  by heading and name, where below ``evenload.cli`` a command is (``module:name``) and what it
              is for
    """

    def __init__(self, *args: Any, sections: dict[str, dict[str, tuple[str, str]]], **extra: Any):
        super().__init__(*args, **extra)
        self._sections = sections
        self._homes = {name: home for section in sections.values() for name, home in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._homes:
            return None
        module, _, name = self._homes[cmd_name][0].partition(":")
        return getattr(importlib.import_module(f"evenload.cli.{module}"), name)

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and not args[0].startswith("-") and args[0] not in self._homes and not ctx.resilient_parsing:
            raise UnknownName("command", args[0], self._homes)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        # A key press: it must not wait for the import of every command.
        names = [name for name in sorted(self._homes) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self._homes[name][1]) for name in names]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, says) for name, (_, says) in section.items()])


class TopGroup(LazyGroup):
    """All commands: old names lead to the new ones, and a reader who leaves ends them quietly.

    A command of another package is an entry point of the group ``evenload.commands``. They are looked up only
    for names that evenload does not know, and for the help: looking at every installed package takes time.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._homes and cmd_name in (others := _other_commands()):
            try:
                return others[cmd_name].load()
            except (AttributeError, ImportError) as error:
                where = f"{quoted(cmd_name)} is {quoted(others[cmd_name].value)} of another package"
                raise ConfigError(
                    f"{where}, and cannot be loaded: {error}", hint="update that package"
                ) from error
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        if others := _other_commands():
            with formatter.section("Of other packages"):
                formatter.write_dl([(name, f"From {point.value}.") for name, point in others.items()])

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError as error:
            raise ReaderLeft from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderLeft from error

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and args[0] in MOVED:
            new, rest = MOVED[args[0]], args[1:]
            if args[0] == "prove" and "--serve" in rest:
                at = rest.index("--serve")
                new, rest = "zk serve", [*rest[at + 1 : at + 2], *rest[:at], *rest[at + 2 :]]
            click.echo(f"note: `evenload {args[0]}` is `evenload {new}` now", err=True)
            args = [*new.split(), *rest]
        if args and args[0] in COMMANDS and args[0] not in WITHOUT_WORKERS:
            refuse_windows(f"`evenload {args[0]}`", sys.platform)
        if args and args[0] not in COMMANDS and args[0] in _other_commands():
            return click.Group.resolve_command(self, ctx, args)
        return super().resolve_command(ctx, args)


def _other_commands() -> dict[str, Any]:
    """The entry points of other packages by name; a name of evenload's own cannot be taken."""
    from importlib import metadata

    found = {point.name: point for point in metadata.entry_points(group="evenload.commands")}
    return {name: point for name, point in sorted(found.items()) if name not in COMMANDS}


@click.group(
    cls=TopGroup,
    sections=SECTIONS,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="evenload")
def cli() -> None:
    """Keep every accelerator equally busy, and say how close to the best possible that came."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line; errors become one line on stderr, a hint, and the documented exit code."""
    with plain_streams(), left_to_command():
        code = _exit_code(argv)
        _drop_output_that_cannot_be_written()
    sys.exit(code)


def _exit_code(argv: list[str] | None) -> int:
    code = 0
    try:
        code = cli.main(args=argv, prog_name="evenload", standalone_mode=False)
        sys.stdout.flush()
    except EvenloadError as error:
        _complain(_as_typed(error.message, argv), _as_typed(error.hint or "", argv))
        code = error.exit_code
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        click.echo(shortened(shown.getvalue()), nl=False, err=True)
        code = 2
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted", None)
        code = 130
    except (ReaderLeft, BrokenPipeError):
        pass  # nobody to say it to, and what was said was all that the command is for
    except OSError as error:
        if error.errno in NO_ROOM:
            _complain(f"the output cannot be written: {error.strerror}", "make room, or write it elsewhere")
            return 1
        if error.filename is None and error.errno in DISK_FAULTS:
            hint = "check the files' paths, and the disk or the network drive that they lie on"
            _complain(f"a file can neither be read nor written: {error.strerror}", hint)
            return 1
        if error.filename is None:
            raise
        said = "\n  ".join([f"{error.filename}: {error.strerror}", *getattr(error, "__notes__", ())])
        _complain(shortened(said), "check the path, and that you may use it")
        code = 2
    return code if isinstance(code, int) else 0


def _as_typed(text: str, argv: list[str] | None) -> str:
    """A message for who typed a command: ``--policy pull`` where it names the argument ``policy='pull'``."""
    command: click.Command | None = cli
    for word in (sys.argv[1:] if argv is None else argv) if "=" in text else ():
        if isinstance(command, click.Group) and word in command.list_commands(click.Context(command)):
            try:
                command = command.get_command(click.Context(command), word)
            except EvenloadError:  # that its part is not installed is what ``text`` says
                return text
    if command is None or isinstance(command, click.Group):
        return text
    names = {one.name: one.opts[-1] for one in command.params if isinstance(one, click.Option)}
    flags = {one.name for one in command.params if isinstance(one, click.Option) and one.is_flag}

    def typed(found: re.Match[str]) -> str:
        name, value = found[1], found[3] or found[4]
        if name not in names or (name in flags and value not in ("True", "...")):
            return found[0]
        return names[name] if name in flags else f"{names[name]} {value}"

    text = text.replace("repeatable=False", "--once") if "once" in names else text
    return _ARGUMENT.sub(typed, text)


def _drop_output_that_cannot_be_written() -> None:
    """Keep Python from writing, and complaining, once more if the reader has left or the disk is full."""
    for stream in (own_codes(sys.stdout), own_codes(sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _complain(message: str, hint: str | None) -> None:
    with contextlib.suppress(OSError):  # both outputs may lie on the disk that is full: the exit code says it
        click.echo(f"error: {message}", err=True)
        if hint:
            click.echo(f"  hint: {hint}", err=True)
