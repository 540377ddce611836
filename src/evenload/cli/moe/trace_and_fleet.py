"""Options that commands of ``evenload moe`` have in common: the trace, the GPUs, the search."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.options import PATH
from evenload.errors import ConfigError, quoted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evenload.moe.placement.fleet import Fleet

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class RoutingTrace:
    """A trace as the command line names it, with the layers that are wanted."""

    path: Path
    layers: str
    n_experts: int | None
    kind: Any

    def windows(self, size: int, *, is_growing: bool = False) -> tuple[str, "NDArray[np.int64]", bool]:
        """Read its name, its loads [windows, layers, experts], and whether ``size`` counts tokens (without
        tokens each of its own steps is a window).
        """
        from evenload.moe.trace import read_trace

        trace = read_trace(self.path, n_experts=self.n_experts, kind=self.kind, is_growing=is_growing)
        if trace.note:
            _say_once(trace.note)
        has_tokens = trace.ids is not None
        windows = trace.windows(size if has_tokens else 1)
        try:
            chosen = slice(*(int(part) if part else None for part in self.layers.split(":")))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"--layers {quoted(self.layers)} is no range", hint="such as 0:26:5") from error
        windows = windows[:, chosen] if self.layers else windows
        if not windows.shape[1]:
            raise ConfigError(f"--layers {quoted(self.layers)} leaves no layer", hint="such as 0:26:5")
        return trace.name, windows, has_tokens


@functools.cache
def _say_once(note: str) -> None:
    click.echo(f"evenload: {note}", err=True)


def trace_options(command: Command) -> Command:
    """Add the options of a trace, and pass them as ``trace``, a TraceFile."""

    @functools.wraps(command)
    def run(*, trace: Path, layers: str, experts: int | None, kind: Any, **others: Any) -> Any:
        return command(trace=RoutingTrace(trace, layers, experts, kind), **others)

    for option in (
        click.option("--layers", metavar="FROM:TO:STEP", default="", help="Only these layers of the trace."),
        click.option("--kind", type=click.Choice(["ids", "counts"]), help="What an .npy file holds."),
        click.option("--experts", type=int, help="Logical experts, if the trace does not say."),
        click.argument("trace", type=PATH),
    ):
        run = option(run)
    return run


def fleet_options(command: Command) -> Command:
    """Add the options of the GPUs, and pass them as ``fleet``, a Fleet."""

    @functools.wraps(command)
    def run(*, gpus: int, slots: int, nodes: int, speeds: str, dead: str, **others: Any) -> Any:
        return command(fleet=_fleet(gpus, slots, nodes, speeds, dead), **others)

    for option in (
        click.option("--dead", default="", metavar="GPU,...", help="GPUs that serve nothing."),
        click.option("--speeds", default="", metavar="X,...", help="Relative speed of each GPU."),
        click.option("--nodes", default=1, show_default=True, help="Nodes that the GPUs divide over."),
        click.option("--slots", type=int, required=True, help="Physical expert slots of a layer, in all."),
        click.option("--gpus", type=int, required=True, help="GPUs."),
    ):
        run = option(run)
    return run


def search_options(command: Command) -> Command:
    """Add ``--effort``, ``--expert-bytes`` and ``--seed``."""
    for option in (
        click.option("--seed", default=0, show_default=True, help="Of the search."),
        click.option("--expert-bytes", default=0, help="Weights of one expert, for the estimates."),
        click.option(
            "--effort",
            type=click.Choice(["online", "offline"]),
            default="online",
            show_default=True,
            help="How long to search.",
        ),
    ):
        command = option(command)
    return command


def _fleet(gpus: int, slots: int, nodes: int, speeds: str, dead: str) -> "Fleet":
    from evenload.moe.placement.fleet import Fleet

    fast, lost = _numbers(speeds, float, "speeds"), _numbers(dead, int, "dead")
    return Fleet.even(gpus, slots, n_nodes=nodes, speeds=fast, dead=lost)


def _numbers(text: str, kind: Callable[[str], Any], name: str) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(
            f"--{name} {quoted(text)} is no list of numbers", hint="separate them by commas"
        ) from error
