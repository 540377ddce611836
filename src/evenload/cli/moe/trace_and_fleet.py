"""Options that commands of ``evenload moe`` have in common: the trace, the GPUs, the search."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.options import PATH, argument, option, passed_as
from evenload.errors import ConfigError, quoted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evenload.moe.placement.fleet import Fleet


@dataclass(frozen=True, slots=True)
class RoutingTrace:
    """A trace as the command line names it, with the layers that are wanted."""

    path: Path = argument(type=PATH, metavar="TRACE")
    n_experts: int | None = option(
        "--experts", type=click.IntRange(1), help="Logical experts, if the trace does not say."
    )
    kind: Any = option("--kind", type=click.Choice(["ids", "counts"]), help="What an .npy file holds.")
    layers: str = option(
        "--layers", metavar="FROM:TO:STEP", default="", help="Only these layers of the trace."
    )

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
            chosen.indices(1)  # a step of 0 is refused here
        except (ValueError, TypeError) as error:
            raise ConfigError(f"--layers {quoted(self.layers)} is no range", hint="such as 0:26:5") from error
        windows = windows[:, chosen] if self.layers else windows
        if not windows.shape[1]:
            raise ConfigError(f"--layers {quoted(self.layers)} leaves no layer", hint="such as 0:26:5")
        return trace.name, windows, has_tokens


@functools.cache
def _say_once(note: str) -> None:
    click.echo(f"evenload: {note}", err=True)


def check_plan(phy2log: "NDArray[np.int64]", n_experts: int, shape: tuple[int, ...]) -> None:
    """Raise ConfigError if a plan has other layers or experts than a trace of ``shape``."""
    if (len(phy2log), n_experts) != shape:
        raise ConfigError(
            f"the plan has {len(phy2log)} layers of {n_experts} experts, the trace {shape[0]} of {shape[1]}",
            hint="give the plan of this model, with the same --layers",
        )


trace_options = passed_as(RoutingTrace, "trace")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """The trace, the GPUs, and how to search for a placement on them."""

    trace: RoutingTrace
    gpus: int = option("--gpus", type=click.IntRange(1), required=True, help="GPUs.")
    slots: int = option(
        "--slots", type=click.IntRange(1), required=True, help="Physical expert slots of a layer, in all."
    )
    nodes: int = option(
        "--nodes",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Nodes that the GPUs divide over.",
    )
    speeds: str = option("--speeds", default="", metavar="X,...", help="Relative speed of each GPU.")
    dead: str = option("--dead", default="", metavar="GPU,...", help="GPUs that serve nothing.")
    effort: Any = option(
        "--effort",
        type=click.Choice(["online", "offline"]),
        default="online",
        show_default=True,
        help="How long to search.",
    )
    expert_bytes: int = option(
        "--expert-bytes", type=click.IntRange(0), default=0, help="Weights of one expert, for the estimates."
    )
    seed: int = option("--seed", default=0, show_default=True, help="Of the search.")

    @property
    def fleet(self) -> "Fleet":
        """The GPUs. Raises ConfigError for what are no numbers, or no fleet."""
        from evenload.moe.placement.fleet import Fleet

        fast, lost = _numbers(self.speeds, float, "speeds"), _numbers(self.dead, int, "dead")
        return Fleet.even(self.gpus, self.slots, n_nodes=self.nodes, speeds=fast, dead=lost)


def _numbers(text: str, kind: Callable[[str], Any], name: str) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(
            f"--{name} {quoted(text)} is no list of numbers", hint="separate them by commas"
        ) from error
