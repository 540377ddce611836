"""The commands, one small file each, loaded only when they are called."""

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from evenload._live_page import left_to_command
from evenload._optional import refuse_windows
from evenload._plain_text import shortened
from evenload._terminal import plain_streams
from evenload._version import __version__
from evenload.errors import NO_ROOM, EvenloadError, UnknownName

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["main"]

COMMANDS = {
    "audit": ("evenload.cli.audit:audit", "Say where devices' time went in a trace of anybody's run."),
    "clients": ("evenload.cli.clients.group:clients", "Train many small models at once: federated rounds."),
    "certify": ("evenload.cli.certify:certify", "Prove how close to the best possible a run came."),
    "bench": (
        "evenload.cli.bench.command:bench",
        "Measure how work scales over this machine's devices.",
    ),
    "completion": ("evenload.cli.completion:completion", "Print the shell's completion script."),
    "dash": ("evenload.cli.monitoring.dash:dash", "Show a run in the browser, while it runs or after."),
    "devices": ("evenload.cli.devices:devices", "List the devices, their scores and their load."),
    "doctor": (
        "evenload.cli.doctor:doctor",
        "Say what works on this machine, and what to install for the rest.",
    ),
    "fullprove": (
        "evenload.cli.fullprove:fullprove",
        "From a circuit's WASM and its inputs to a verified proof.",
    ),
    "init": ("evenload.cli.pipeline.init:init", "Write a small job file to start from."),
    "map": (
        "evenload.cli.map.command:map_items",
        "Run a function over the lines of a file, on every device.",
    ),
    "merkle": ("evenload.cli.merkle.group:merkle", "Roots and proofs of Merkle trees over files."),
    "moe": (
        "evenload.cli.moe.group:moe",
        "Place the experts of a mixture-of-experts model, route batches.",
    ),
    "plan": (
        "evenload.cli.pipeline.plan:plan",
        "Say what fits where, and how long a pipeline takes.",
    ),
    "plan-training": (
        "evenload.cli.plan_training:plan_training",
        "Say what unequal GPUs would get of a batch, and how long a step takes.",
    ),
    "prove": ("evenload.cli.prove:prove", "Make Groth16 proofs from a key and witnesses, and verify them."),
    "report": ("evenload.cli.report:report", "Make the HTML report or the trace of a run folder."),
    "retry": ("evenload.cli.pipeline.retry:retry", "Go on with a run, and try again what failed."),
    "run": ("evenload.cli.pipeline.run:run", "Run a pipeline described by a YAML file."),
    "simulate": (
        "evenload.cli.simulate.command:simulate_fleet",
        "Ask what a fleet would do with your items.",
    ),
    "status": ("evenload.cli.pipeline.status:status", "Say how far a run is, by stage and group."),
    "stop": ("evenload.cli.pipeline.stop:stop", "End a run, or give up some of its items."),
    "top": ("evenload.cli.monitoring.top:top", "Show devices and running jobs, live."),
    "upload": ("evenload.cli.pipeline.upload:upload", "Copy the results of a run to a store (s3://, ...)."),
    "verify": ("evenload.cli.zk:verify", "Verify a Groth16 proof."),
    "warm": ("evenload.cli.warm:warm", "Compile what first answers would wait for."),
    "zk": ("evenload.cli.zk:zk", "Look into proving keys; make test circuits and INSECURE keys."),
}
DISK_FAULTS = (errno.EINVAL, errno.EIO, errno.ESTALE)  # of a file that was opened: the error names none
WITHOUT_WORKERS = ("certify", "completion", "doctor", "plan-training", "simulate")
EXIT_CODES = """\b
Exit codes: 0 done; 1 some work failed (and is listed); 2 usage or configuration;
3 no usable device or a missing extra; 130 interrupted."""


class ReaderLeft(Exception):
    """The reader of the output has closed it (``| head``). No OSError, for which click would exit with 1."""


class LazyGroup(click.Group):
    """A group of commands that imports one only to run it or to print its help."""

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

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        __import__(module)
        return getattr(sys.modules[module], name)

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and not args[0].startswith("-") and args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise UnknownName("command", args[0], COMMANDS)
        if args and args[0] in COMMANDS and args[0] not in WITHOUT_WORKERS:
            refuse_windows(f"`evenload {args[0]}`", sys.platform)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        # A key press: it must not wait for the import of every command.
        names = [name for name in sorted(COMMANDS) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=COMMANDS[name][1]) for name in names]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


@click.group(
    cls=LazyGroup,
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
    try:
        code = cli.main(args=argv, prog_name="evenload", standalone_mode=False)
        sys.stdout.flush()
    except EvenloadError as error:
        _complain(error.message, error.hint)
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
        code = 0  # nothing to say, nobody to say it to
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


def _drop_output_that_cannot_be_written() -> None:
    """Keep Python from writing, and complaining, once more if the reader has left or the disk is full."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _complain(message: str, hint: str | None) -> None:
    with contextlib.suppress(OSError):  # both outputs may lie on the disk that is full: the exit code says it
        click.echo(f"error: {message}", err=True)
        if hint:
            click.echo(f"  hint: {hint}", err=True)
