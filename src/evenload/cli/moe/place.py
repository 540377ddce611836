"""``evenload moe place``: a plan for batches like those in a trace."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.moe.trace_and_fleet import SearchRequest, trace_options
from evenload.cli.options import (
    FILE,
    PATH,
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

    from evenload.moe.search.plan import PlacementPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRequest(SearchRequest):
    """The options of ``evenload moe place``."""

    window: int = option(
        "--window",
        type=click.IntRange(1),
        default=128,
        show_default=True,
        help="Tokens to a window of the history, for traces of ids.",
    )
    policy: str = option(
        "--policy",
        type=click.Choice(["search", "eplb"]),
        default="search",
        show_default=True,
        help="Search beyond EPLB, or EPLB's own.",
    )
    groups: int | None = option(
        "--groups", type=click.IntRange(1), help="Expert groups, for --policy eplb and --node-limit."
    )
    objective: Any = option(
        "--objective",
        type=click.Choice(["routed", "equal"]),
        default="routed",
        show_default=True,
        help="Loads routed exactly, or split equally over copies.",
    )
    node_limit: Any = option(
        "--node-limit",
        type=click.Choice(["none", "base", "all"]),
        default="none",
        show_default=True,
        help="Which copies stay on their group's node.",
    )
    old: Path | None = option("--old", type=PATH, help="The plan in use: say what has to be fetched.")
    target: float | None = option(
        "--target", type=NumberRange(0), help="With --old: fetch as few experts as bring imbalance to this."
    )
    robust: float = option(
        "--robust",
        type=NumberRange(0, 1),
        default=0.0,
        help="0 to 1: how much the worst windows count beside the mean.",
    )
    check: int | None = option(
        "--check",
        type=click.IntRange(min=1),
        metavar="TOKENS",
        help="Also judge a plan made for the first 3/4 of TRACE, on batches of so many tokens of the rest; "
        "on its steps as they are, if TRACE has counts.",
    )
    tokens_to_come: int | None = option(
        "--tokens-to-come",
        type=click.IntRange(0),
        help="With --old and --token-us: change only layers where it pays.",
    )
    token_us: float | None = option(
        "--token-us",
        type=NumberRange(0),
        help="Microseconds of a layer's experts for a token, at an even load.",
    )
    threads: int = option(
        "--threads",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Layers searched side by side.",
    )
    output: Path | None = option(
        "-o", "--output", type=FILE, help="Write the plan: .json, .npz, or .yaml for TensorRT-LLM."
    )
    certificate: Path | None = option(
        "--certificate", type=FILE, help="Write the proof of the bound, for `evenload certify`."
    )
    as_json: bool = shared(json_option)


@click.command()
@trace_options
@passed_as(PlaceRequest)
def place(request: PlaceRequest) -> int:
    """Place copies of experts for batches like those in TRACE."""
    from evenload.moe.search.plan_file import read_plan, write_plan

    if request.policy == "eplb" and (request.robust or request.check or request.tokens_to_come is not None):
        raise ConfigError(
            "--robust, --check and --tokens-to-come are of the search", hint="use --policy search"
        )
    name, windows, has_tokens = request.trace.windows(request.window)
    old = read_plan(request.old)[0] if request.old else None
    plan = _by_eplb(request, windows) if request.policy == "eplb" else _by_search(request, windows, old)
    facts = {"schema": 1, "trace": name, "policy": request.policy, "n_windows": len(windows), **plan.facts}
    if request.check:
        facts["checked"] = _checked(request, windows, has_tokens)
    phy2log = plan.phy2log
    if old is not None:
        phy2log, facts["moves"] = _transfers(request, old, phy2log)
    if request.output:
        write_plan(request.output, phy2log, windows.shape[2], request.fleet)
        facts["plan"] = str(request.output)
    if request.certificate:
        write_certificate(request.certificate, lambda: _certificate(request, phy2log, windows, name))
        facts["certificate"] = str(request.certificate)
    if request.as_json:
        click.echo(page_json(facts | {"phy2log": phy2log.tolist()}))
        return 0
    _print_plan(facts)
    return 0


def _certificate(
    request: PlaceRequest, phy2log: "NDArray[np.int64]", windows: "NDArray[np.int64]", name: str
) -> dict[str, Any]:
    """The certificate of the placement under the windows."""
    from evenload.moe.placement.bound import fleet_certificate

    is_routed = request.objective == "routed"
    return fleet_certificate(phy2log, windows, request.fleet, is_routed=is_routed, name=name)


@dataclass(frozen=True, slots=True)
class _Placed:
    """``phy2log`` [layers, slots], and the figures to print of it."""

    phy2log: "NDArray[np.int64]"
    facts: dict[str, Any]


def _by_eplb(request: PlaceRequest, windows: "NDArray[np.int64]") -> _Placed:
    """EPLB's plan for the sum of the windows, judged on each of them."""
    import numpy as np

    from evenload.moe.placement.bound import equal_split_imbalance, placement_bound
    from evenload.moe.placement.rebalance import rebalance_experts
    from evenload.moe.replay.replayer import imbalances

    fleet, groups = request.fleet, request.groups
    if not fleet.is_even:
        raise ConfigError("EPLB's policy needs alike GPUs, all alive", hint="use --policy search")
    n_slots, n_gpus = fleet.n_living_slots, fleet.n_gpus
    n_nodes = fleet.n_nodes if groups else 1
    phy2log = rebalance_experts(windows.sum(axis=0), n_slots, groups or 1, n_nodes, n_gpus).phy2log
    if request.objective == "routed":
        reached = imbalances(phy2log, windows, fleet)
    else:  # in fractions of tokens, as the search plans
        reached = np.stack([equal_split_imbalance(phy2log, window, n_gpus) for window in windows])
    bound = np.mean([placement_bound(window, n_slots, n_gpus) for window in windows], axis=0)
    return _Placed(phy2log, {"imbalance": reached.mean(axis=0).tolist(), "bound": bound.tolist()})


def _by_search(
    request: PlaceRequest, windows: "NDArray[np.int64]", old: "NDArray[np.int64] | None"
) -> _Placed:
    import numpy as np

    plan = _search(request, windows, old)
    facts: dict[str, Any] = {"target_met": plan.target_met} if request.target is not None else {}
    phy2log, imbalance = plan.phy2log, plan.imbalance
    if request.tokens_to_come is not None or request.token_us is not None:
        pays = _where_it_pays(request, plan, old)
        assert old is not None
        assert plan.stay is not None
        facts["pays"], imbalance = pays.tolist(), np.where(pays, imbalance, plan.stay)
        phy2log = np.where(pays[:, None], phy2log, old)
    facts |= {"imbalance": imbalance.tolist(), "bound": plan.bound.tolist()}
    facts["held_out"] = None if plan.held_out is None or "pays" in facts else plan.held_out.tolist()
    return _Placed(phy2log, facts)


def _search(
    request: PlaceRequest, windows: "NDArray[np.int64]", old: "NDArray[np.int64] | None"
) -> "PlacementPlan":
    """The plan that the options ask for; what Python would warn of is said on stderr."""
    from evenload.moe.search.plan import place as search

    plan = search(
        windows, request.fleet, objective=request.objective, old=old, target=request.target,
        node_limit=request.node_limit, n_groups=request.groups, robust=request.robust, effort=request.effort,
        seed=request.seed, threads=request.threads, warns=False,
    )  # fmt: skip
    if plan.shortfall:
        click.echo(f"evenload: {plan.shortfall}", err=True)
    return plan


def _where_it_pays(
    request: PlaceRequest, plan: "PlacementPlan", old: "NDArray[np.int64] | None"
) -> "NDArray[np.bool_]":
    from evenload.moe.search.move_rule import MoveCosts
    from evenload.moe.search.transfers import BYTES_PER_S

    if old is None or request.tokens_to_come is None or not request.token_us or not request.expert_bytes:
        raise ConfigError(
            "a change pays or not by --old, --tokens-to-come, --token-us and --expert-bytes together",
            hint="give all four, or neither --tokens-to-come nor --token-us",
        )
    speeds = request.fleet.living_speeds()
    of_one_gpu = 1e-6 * request.token_us * speeds.sum() / speeds.max()
    costs = MoveCosts(request.fleet, fetch_tokens=float(request.expert_bytes / BYTES_PER_S / of_one_gpu))
    return costs.pays(plan, old, request.tokens_to_come)


def _checked(request: PlaceRequest, windows: "NDArray[np.int64]", has_tokens: bool) -> list[float]:
    """[layers] imbalance of the last quarter of the trace, served by a plan made for what came before."""
    assert request.check is not None
    known = 3 * len(windows) // 4
    later = request.trace.windows(request.check)[1] if has_tokens else windows
    later = later[3 * len(later) // 4 :]
    if not known or not len(later):
        raise ConfigError(
            f"the trace is too short for --check {request.check}", hint="give fewer tokens, or leave it out"
        )
    alone = replace(request, target=None)  # what an old placement needs says nothing about windows to come
    return _search(alone, windows[:known], None).judge(later).mean(axis=0).tolist()


def _transfers(
    request: PlaceRequest, old: "NDArray[np.int64]", phy2log: "NDArray[np.int64]"
) -> "tuple[NDArray[np.int64], dict[str, Any]]":
    """The new plan with its slots arranged for the fewest fetches, and what has to be fetched."""
    from evenload.moe.search.transfers import schedule_transfers

    schedule = schedule_transfers(old, phy2log, request.fleet, expert_bytes=request.expert_bytes)
    return schedule.phy2log, {
        "experts": len(schedule.transfers),
        "share": schedule.moved_share,
        "batches": len(schedule.batches),
        "bytes": schedule.bytes,
        "seconds": schedule.seconds,
    }


def _print_plan(facts: dict[str, Any]) -> None:
    columns = {"imbalance": facts["imbalance"], "held-out": facts.get("held_out")}
    columns |= {"checked": facts.get("checked"), "bound": facts["bound"]}
    kept = {name: numbers for name, numbers in columns.items() if numbers is not None}
    n_layers = len(facts["imbalance"])
    rows = [[str(i), *(f"{numbers[i]:.4f}" for numbers in kept.values())] for i in range(n_layers)]
    rows.append(["mean", *(f"{sum(numbers) / n_layers:.4f}" for numbers in kept.values())])
    for line in format_table(["layer", *kept], rows, right=["layer", *kept]):
        click.echo(line)
    if "pays" in facts:
        click.echo(
            f"the change pays in {sum(facts['pays'])} of {n_layers} layers; the others stay as they are"
        )
    if "moves" in facts:
        moves = facts["moves"]
        size = f", {moves['bytes'] / 2**30:.2f} GiB, about {moves['seconds']:.3f} s" if moves["bytes"] else ""
        share = f"{100 * moves['share']:.1f} % of the slots"
        click.echo(f"to fetch: {moves['experts']} experts ({share}) in {moves['batches']} batches{size}")
    for key in ("plan", "certificate"):
        if key in facts:
            click.echo(facts[key])
