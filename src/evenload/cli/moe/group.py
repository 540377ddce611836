"""``evenload moe``: where experts go, how batches are routed, and what that would have done to a trace."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.bench.selections import moe_bench
from evenload.cli.moe.place import place
from evenload.cli.moe.replay import replay
from evenload.cli.moe.trace_and_fleet import RoutingTrace, check_plan, trace_options
from evenload.cli.moe.watch import watch
from evenload.cli.options import FILE, PATH, json_option, page_json, write_certificate
from evenload.cli.terminal.table import format_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evenload.moe.placement.fleet import Fleet


@click.group()
def moe() -> None:
    """Mixture-of-experts models: place copies of experts on GPUs, and route batches over them.

    A TRACE is .npz or .npy (expert ids or counts), .jsonl or .json of counts, a .pt dump of SGLang or
    vLLM, or a folder of those dumps.
    """


@click.command()
@trace_options
@click.argument("plan", type=PATH)
@click.option(
    "--window",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Tokens to a batch, for traces of ids.",
)
@click.option(
    "--certificate", type=FILE, help="Write the proof that no routing is better, for `evenload certify`."
)
@json_option
def route(plan: Path, trace: RoutingTrace, window: int, certificate: Path | None, as_json: bool) -> int:
    """Route every batch of TRACE exactly over PLAN, beside an equal split and the bound."""
    import numpy as np

    from evenload.moe.placement.bound import placement_bound, whole_bound
    from evenload.moe.replay.replayer import imbalances
    from evenload.moe.search.plan_file import read_plan

    phy2log, n_experts, fleet = read_plan(plan)
    if trace.n_experts is None:
        trace = replace(trace, n_experts=n_experts)
    name, windows, _ = trace.windows(window)
    check_plan(phy2log, n_experts, windows.shape[1:])
    write_certificate(certificate, lambda: _certificate(name, phy2log, windows, fleet))
    routed = imbalances(phy2log, windows, fleet)
    equal = imbalances(phy2log, windows, fleet, routed=False)
    limits = (fleet.n_living_slots, fleet.n_gpus, fleet.living_speeds())
    bound = [whole_bound(placement_bound(one, *limits), one, limits[2]) for one in windows]
    facts = {
        "schema": 1, "trace": name, "n_batches": len(windows), "equal": equal.mean(axis=0).tolist(),
        "routed": routed.mean(axis=0).tolist(), "worst": routed.max(axis=0).tolist(),
        "bound": np.mean(bound, axis=0).tolist(),
    }  # fmt: skip
    if as_json:
        click.echo(page_json(facts))
        return 0
    keys = ("equal", "routed", "worst", "bound")
    rows = [[str(i), *(f"{facts[key][i]:.4f}" for key in keys)] for i in range(len(phy2log))]
    rows.append(["mean", *(f"{np.mean(facts[key]):.4f}" for key in keys)])
    head = ["layer", *keys]
    click.echo("\n".join(format_table(head, rows, right=head)))
    click.echo(f"{len(windows)} batches; equal: split equally over copies; worst: of the routed", err=True)
    return 0


def _certificate(
    name: str, phy2log: "NDArray[np.int64]", windows: "NDArray[np.int64]", fleet: "Fleet"
) -> dict[str, Any]:
    """One certificate of all batches and layers."""
    from evenload.balance.flow import ReplicaGraph, Router
    from evenload.balance.flow.certificate import claim_routings

    n_layers, n_experts = windows.shape[1:]
    graph = ReplicaGraph.from_slots(phy2log, n_experts, fleet.n_gpus, dead=fleet.dead)
    router = Router(graph, speeds=fleet.living_speeds())
    proofs = [router.solve(one).certificate(layer) for one in windows for layer in range(n_layers)]
    return claim_routings(proofs, name)


for command in (place, replay, route, watch):
    moe.add_command(command)
moe.add_command(moe_bench, "bench")
