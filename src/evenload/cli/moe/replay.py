"""``evenload moe replay``: what strategies would have done to a trace."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenload.cli.moe.options import TraceFile, fleet_options, trace_options
from evenload.cli.terminal.table import format_table

if TYPE_CHECKING:
    from evenload.moe.placement.fleet import Fleet
    from evenload.moe.replay.replayer import Course

__all__ = ["replay"]


@click.command()
@trace_options
@fleet_options
@click.option("--batch", default=512, show_default=True, help="Tokens to a batch, for traces of ids.")
@click.option("--history", default=8, show_default=True, help="Batches to plan on.")
@click.option(
    "--every", default=0, show_default=True, help="Plan anew before every so many batches; 0: once."
)
@click.option("--target", default=1.02, show_default=True, help="Imbalance that few fetches leave as it is.")
@click.option(
    "--effort",
    type=click.Choice(["online", "offline"]),
    default="online",
    show_default=True,
    help="How long to search.",
)
@click.option("--expert-bytes", default=0, help="Weights of one expert, for the estimates.")
@click.option("--seed", default=0, show_default=True, help="Of the search.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page that shows it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(
    trace: TraceFile,
    fleet: "Fleet",
    batch: int,
    history: int,
    every: int,
    target: float,
    effort: str,
    expert_bytes: int,
    seed: int,
    html: Path | None,
    as_json: bool,
) -> int:
    """Plan on the first batches of TRACE, serve the others: EPLB, EPLB with routing, our search with
    routing.
    """
    from evenload.moe.replay.page import write_replay
    from evenload.moe.replay.replayer import STRATEGIES
    from evenload.moe.replay.replayer import replay as run

    name, batches, has_tokens = trace.windows(batch)
    fine = None
    if has_tokens and batch % 4 == 0:
        fine = trace.windows(batch // 4)[1][: 4 * len(batches)]
    suits = {
        one: (fleet.is_even or one[:4] != "EPLB") and (every > 0 or one[:3] != "few") for one in STRATEGIES
    }
    result = run(
        batches,
        fleet,
        history=history,
        every=every,
        fine=fine,
        strategies=[one for one in STRATEGIES if suits[one]],
        target=target,
        effort=effort,
        expert_bytes=expert_bytes,
        name=name,
        batch=batch if has_tokens else 0,
        seed=seed,
    )
    if html:
        write_replay(result, html)
    if as_json:
        click.echo(json.dumps(result.to_json()))
        return 0
    rows = [_row(course, result.bound.mean()) for course in result.courses]
    head = ["strategy", "mean", "p99", "worst", "over", "refilled", "fetched"]
    for line in format_table(head, rows, right="mean p99 worst over refilled fetched"):
        click.echo(line)
    click.echo(
        f"bound {result.bound.mean():.4f}, {len(result.bound)} batches of {batches.shape[1]} layers", err=True
    )
    if html:
        click.echo(str(html))
    return 0


def _row(course: "Course", bound: float) -> list[str]:
    cells = [f"{course.mean:.4f}", f"{course.p99:.4f}", f"{course.imbalance.max():.4f}"]
    cells.append(f"{100 * (course.mean / bound - 1):.2f} %")
    if not course.moves:
        return [course.name, *cells, "", ""]
    refilled = sum(move.moved_share for move in course.moves) / len(course.moves)
    n_fetched = sum(move.n_transfers for move in course.moves)
    return [course.name, *cells, f"{100 * refilled:.1f} %", str(n_fetched)]
