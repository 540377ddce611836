"""``evenload moe bench``: what placing and routing cost on this machine, in CPU seconds of one thread."""

import json
import time
from collections.abc import Callable
from typing import Any

import click

from evenload.cli.terminal.table import format_table

__all__ = ["moe_bench"]


@click.command()
@click.option("--experts", default=256, show_default=True, help="Logical experts.")
@click.option("--slots", default=288, show_default=True, help="Physical slots.")
@click.option("--gpus", default=32, show_default=True, help="GPUs.")
@click.option("--layers", default=58, show_default=True, help="MoE layers.")
@click.option("--repeat", default=20, show_default=True, help="Measurements; the median counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def moe_bench(experts: int, slots: int, gpus: int, layers: int, repeat: int, as_json: bool) -> int:
    """Measure placing and routing on this machine: made-up log-normal loads, one thread."""
    import numpy as np

    from evenload.balance.flow import ReplicaGraph, Router
    from evenload.moe.generators import Popularity, generate
    from evenload.moe.placement.fleet import Fleet
    from evenload.moe.placement.rebalance import rebalance_experts
    from evenload.moe.search.plan import place

    windows = generate(
        Popularity(), n_windows=8, n_layers=layers, n_experts=experts, n_ids=gpus * 1024, seed=1
    ).windows(1)
    total, batch = windows[:7].sum(axis=0), np.ascontiguousarray(windows[7])
    placement = rebalance_experts(total, slots, 1, 1, gpus)
    router = Router(ReplicaGraph.from_slots(placement.phy2log, experts, gpus))
    n_searched = min(layers, 4)
    fleet = Fleet.even(gpus, slots)
    rows = [
        (
            "rebalance_experts, all layers",
            _median_s(lambda: rebalance_experts(total, slots, 1, 1, gpus), repeat),
        ),
        ("exact routing, all layers", _median_s(lambda: router.solve(batch), repeat)),
        ("place, one layer", _median_s(lambda: place(windows[:7, :n_searched], fleet), 3) / n_searched),
    ]
    if as_json:
        click.echo(
            json.dumps(
                {
                    "schema": 1,
                    "cpu_s": dict(rows),
                    "layers": layers,
                    "experts": experts,
                    "slots": slots,
                    "gpus": gpus,
                }
            )
        )
        return 0
    for line in format_table(
        ["CPU time of", "ms"], [[name, f"{1e3 * s:.3f}"] for name, s in rows], right="ms"
    ):
        click.echo(line)
    return 0


def _median_s(work: Callable[[], Any], repeat: int) -> float:
    """CPU seconds of a call, the median of ``repeat`` after one that may compile."""
    work()
    spent = []
    for _ in range(max(1, repeat)):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return sorted(spent)[len(spent) // 2]
