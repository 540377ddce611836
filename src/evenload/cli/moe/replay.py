"""``evenload moe replay``: what strategies would have done to a trace."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.moe.trace_and_fleet import SearchRequest, trace_options
from evenload.cli.options import (
    FILE,
    NumberRange,
    json_option,
    option,
    page_json,
    passed_as,
    shared,
    write_certificate,
)
from evenload.cli.terminal.table import format_table
from evenload.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evenload.moe.replay.replayer import RoutingReplay, StrategyReplay

LONGEST = 512  # tokens of a batch
N_BATCHES = 4  # that a short trace is divided into


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest(SearchRequest):
    """The options of ``evenload moe replay``."""

    batch: int | None = option(
        "--batch",
        type=click.IntRange(1),
        help="Tokens to a batch, for traces of ids.  [default: 512; fewer if TRACE is short]",
    )
    history: int | None = option(
        "--history", type=click.IntRange(1), help="Batches to plan on.  [default: 8, at most half of them]"
    )
    every: int = option(
        "--every",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Plan anew before every so many batches; 0: once.",
    )
    target: float = option(
        "--target",
        type=NumberRange(0),
        default=1.02,
        show_default=True,
        help="Imbalance that few fetches leave as it is.",
    )
    fetch_tokens: float | None = option(
        "--fetch-tokens",
        type=NumberRange(0),
        help="Tokens a GPU could serve per fetch: compare moves by rule.",
    )
    certificate: Path | None = option(
        "--certificate", type=FILE, help="With --fetch-tokens: the proof of what that rule costs."
    )
    html: Path | None = option("--html", type=FILE, help="Write a page that shows it.")
    as_json: bool = shared(json_option)


@click.command()
@trace_options
@passed_as(ReplayRequest)
def replay(request: ReplayRequest) -> int:
    """Plan on the first batches of TRACE, serve the others: EPLB, EPLB with routing, our search with
    routing.
    """
    from evenload.moe.replay.page import write_replay

    if request.certificate and request.fetch_tokens is None:
        raise ConfigError("--certificate proves the cost of moves", hint="give --fetch-tokens, too")
    result, n_layers = _replay(request)
    moves = None if request.fetch_tokens is None else _moves(request, request.fetch_tokens)
    if request.html:
        write_replay(result, request.html)
    if request.as_json:
        click.echo(page_json(result.to_json() | ({"moves": moves} if moves else {})))
        return 0
    bound = result.bound.mean()
    head = ["strategy", "mean", "p99", "worst", "over", "refilled", "fetched"]
    for line in format_table(head, [_row(course, bound) for course in result.courses], right=head[1:]):
        click.echo(line)
    click.echo(f"bound {bound:.4f}, {len(result.bound)} batches of {n_layers} layers", err=True)
    if moves:
        _print_moves(moves)
    if request.html:
        click.echo(str(request.html))
    return 0


def _replay(request: ReplayRequest) -> "tuple[RoutingReplay, int]":
    """The strategies that suit the fleet, played over the trace; and how many layers it has.

    The search plans on quarters of a batch, where the trace has tokens and batches divide by four.
    """
    from evenload.moe.replay.replayer import STRATEGIES
    from evenload.moe.replay.replayer import replay as run

    fleet = request.fleet
    name, batches, size = _batches(request)
    fine = None
    if size and size % 4 == 0:
        fine = request.trace.windows(size // 4)[1][: 4 * len(batches)]
    strategies = [
        one
        for one in STRATEGIES
        if (fleet.is_even or not one.startswith("EPLB")) and (request.every > 0 or not one.startswith("few"))
    ]
    result = run(
        batches,
        fleet,
        history=_history(request, batches),
        every=request.every,
        fine=fine,
        strategies=strategies,
        target=request.target,
        effort=request.effort,
        expert_bytes=request.expert_bytes,
        name=name,
        batch=size,
        seed=request.seed,
    )
    return result, batches.shape[1]


def _moves(request: ReplayRequest, fetch_tokens: float) -> "dict[str, Any]":
    """What the trace costs with moves by rule and without, as plain numbers; the certificate, if asked for.

    Candidates are planned with few fetches, after every ``--every`` batches, each of them by default.
    """
    from evenload.moe import MoveCosts, MoveRule, place
    from evenload.moe.replay.moves import replay_moves

    def plan(recent: "NDArray[np.int64]", old: "NDArray[np.int64] | None") -> "NDArray[np.int64]":
        target = None if old is None else request.target
        options = {"effort": request.effort, "seed": request.seed, "warns": False}
        return place(recent, request.fleet, old=old, target=target, **options).phy2log

    name, batches, _ = _batches(request)
    rule = MoveRule(MoveCosts(request.fleet, fetch_tokens=fetch_tokens))
    found = replay_moves(batches, plan, rule, history=_history(request, batches), every=request.every or 1)
    write_certificate(request.certificate, lambda: found.certificate(name))
    return found.to_json()


def _print_moves(moves: "dict[str, Any]") -> None:
    cost, moved = moves["cost"], moves["layers_moved"]
    others = "never", "hindsight"
    rows = [
        [name, f"{one:,.0f}", str(moved.get(name, "")), *(f"{one / cost[other]:.4f}" for other in others)]
        for name, one in cost.items()
    ]
    head = ["moves", "cost, tokens", "layers moved", "over never", "over hindsight"]
    click.echo("\n".join(["", *format_table(head, rows, right=head[1:])]))
    most = (1 + moves["tolerance"]) * cost["never"] + moves["worst_window"]
    click.echo(f"by rule it is at most {most:,.0f} in any case; bound: serving alone", err=True)


def _history(request: ReplayRequest, batches: "NDArray[np.int64]") -> int:
    return min(8, max(1, len(batches) // 2)) if request.history is None else request.history


def _batches(request: ReplayRequest) -> "tuple[str, NDArray[np.int64], int]":
    """The trace's name, its batches, and how many tokens are in one; 0 where it has loads alone.

    Where nobody said how large a batch is, it is halved until a short trace has four of them.
    """
    size = LONGEST if request.batch is None else request.batch
    if request.batch is None:
        _, tokens, has_tokens = request.trace.windows(1)
        while has_tokens and size > 1 and len(tokens) // size < N_BATCHES:
            size //= 2
    name, batches, has_tokens = request.trace.windows(size)
    return name, batches, size if has_tokens else 0


def _row(course: "StrategyReplay", bound: float) -> list[str]:
    cells = [f"{course.mean:.4f}", f"{course.p99:.4f}", f"{course.imbalance.max():.4f}"]
    cells.append(f"{100 * (course.mean / bound - 1):.2f} %")
    if not course.moves:
        return [course.name, *cells, "", ""]
    refilled = sum(move.moved_share for move in course.moves) / len(course.moves)
    n_fetched = sum(move.n_transfers for move in course.moves)
    return [course.name, *cells, f"{100 * refilled:.1f} %", str(n_fetched)]
