"""``evenload moe place``: a plan for batches like those in a trace."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.moe.options import TraceFile, fleet_options, trace_options
from evenload.cli.terminal.table import format_table
from evenload.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evenload.moe.placement.fleet import Fleet

__all__ = ["place"]


@click.command()
@trace_options
@fleet_options
@click.option(
    "--window", default=128, show_default=True, help="Tokens to a window of the history, for traces of ids."
)
@click.option(
    "--policy",
    type=click.Choice(["search", "eplb"]),
    default="search",
    show_default=True,
    help="Search beyond EPLB, or EPLB's own.",
)
@click.option("--groups", type=int, help="Expert groups, for --policy eplb and --node-limit.")
@click.option(
    "--objective",
    type=click.Choice(["routed", "equal"]),
    default="routed",
    show_default=True,
    help="Loads routed exactly, or split equally over copies.",
)
@click.option(
    "--node-limit",
    type=click.Choice(["none", "base", "all"]),
    default="none",
    show_default=True,
    help="Which copies stay on their group's node.",
)
@click.option(
    "--effort",
    type=click.Choice(["online", "offline"]),
    default="online",
    show_default=True,
    help="How long to search.",
)
@click.option("--old", type=click.Path(path_type=Path), help="The plan in use: say what has to be fetched.")
@click.option("--target", type=float, help="With --old: fetch as few experts as bring imbalance to this.")
@click.option("--expert-bytes", default=0, help="Weights of one expert, for the estimate.")
@click.option("--seed", default=0, show_default=True, help="Of the search.")
@click.option("--threads", default=1, show_default=True, help="Layers searched side by side.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan: .json or .npz."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def place(
    trace: TraceFile,
    fleet: "Fleet",
    window: int,
    policy: str,
    groups: int | None,
    objective: Any,
    node_limit: Any,
    effort: str,
    old: Path | None,
    target: float | None,
    expert_bytes: int,
    seed: int,
    threads: int,
    output: Path | None,
    as_json: bool,
) -> int:
    """Place copies of experts for batches like those in TRACE."""
    from evenload.moe.search.plan_file import read_plan, write_plan
    from evenload.moe.search.transfers import schedule_transfers

    name, windows, _ = trace.windows(window)
    before = read_plan(old)[0] if old else None
    facts: dict[str, Any] = {"schema": 1, "trace": name, "policy": policy, "n_windows": len(windows)}
    if policy == "eplb":
        phy2log = _by_eplb(windows, fleet, groups, objective, facts)
    else:
        options = {"old": before, "target": target, "node_limit": node_limit, "n_groups": groups}
        options |= {"effort": effort, "seed": seed, "threads": threads}
        phy2log = _by_search(windows, fleet, objective, options, facts)
    if before is not None:
        schedule = schedule_transfers(before, phy2log, fleet, expert_bytes=expert_bytes)
        phy2log = schedule.phy2log
        facts["moves"] = {
            "experts": len(schedule.transfers),
            "share": schedule.moved_share,
            "batches": len(schedule.batches),
            "bytes": schedule.bytes,
            "seconds": schedule.seconds,
        }
    if output:
        write_plan(output, phy2log, windows.shape[2], fleet)
        facts["plan"] = str(output)
    if as_json:
        click.echo(json.dumps(facts | {"phy2log": phy2log.tolist()}))
        return 0
    _print_plan(facts)
    return 0


def _by_eplb(
    windows: "NDArray[np.int64]", fleet: "Fleet", groups: int | None, objective: str, facts: dict[str, Any]
) -> "NDArray[np.int64]":
    """EPLB's plan for the sum of the windows, judged on each of them."""
    import numpy as np

    from evenload.moe.placement.bound import placement_bound
    from evenload.moe.placement.rebalance import rebalance_experts
    from evenload.moe.replay.replayer import imbalances

    if not fleet.is_even:
        raise ConfigError("EPLB's policy needs alike GPUs, all alive", hint="use --policy search")
    n_slots, n_gpus = fleet.n_living_slots, fleet.n_gpus
    n_nodes = fleet.n_nodes if groups else 1
    phy2log = rebalance_experts(windows.sum(axis=0), n_slots, groups or 1, n_nodes, n_gpus).phy2log
    reached = imbalances(phy2log, windows, fleet, routed=objective == "routed")
    bound = np.mean([placement_bound(window, n_slots, n_gpus) for window in windows], axis=0)
    facts |= {"imbalance": reached.mean(axis=0).tolist(), "bound": bound.tolist()}
    return phy2log


def _by_search(
    windows: "NDArray[np.int64]",
    fleet: "Fleet",
    objective: Any,
    options: dict[str, Any],
    facts: dict[str, Any],
) -> "NDArray[np.int64]":
    from evenload.moe.search.plan import place as search

    plan = search(windows, fleet, objective=objective, **options)
    facts |= {"imbalance": plan.imbalance.tolist(), "bound": plan.bound.tolist()}
    facts["held_out"] = None if plan.held_out is None else plan.held_out.tolist()
    return plan.phy2log


def _print_plan(facts: dict[str, Any]) -> None:
    columns = {"imbalance": facts["imbalance"], "held-out": facts.get("held_out"), "bound": facts["bound"]}
    kept = {name: numbers for name, numbers in columns.items() if numbers is not None}
    n_layers = len(facts["imbalance"])
    rows = [[str(i), *(f"{numbers[i]:.4f}" for numbers in kept.values())] for i in range(n_layers)]
    rows.append(["mean", *(f"{sum(numbers) / n_layers:.4f}" for numbers in kept.values())])
    for line in format_table(["layer", *kept], rows, right="layer imbalance held-out bound"):
        click.echo(line)
    if "moves" in facts:
        moves = facts["moves"]
        size = f", {moves['bytes'] / 2**30:.2f} GiB, about {moves['seconds']:.3f} s" if moves["bytes"] else ""
        share = f"{100 * moves['share']:.1f} % of the slots"
        click.echo(f"to fetch: {moves['experts']} experts ({share}) in {moves['batches']} batches{size}")
    if "plan" in facts:
        click.echo(facts["plan"])
