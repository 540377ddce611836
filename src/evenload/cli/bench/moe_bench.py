"""``evenload moe bench``: what placing and routing cost on this machine, in CPU seconds of one thread."""

import json

import click

from evenload.cli.options import json_option
from evenload.cli.terminal.table import format_table


@click.command()
@click.option("--experts", default=256, show_default=True, help="Logical experts.")
@click.option("--slots", default=288, show_default=True, help="Physical slots.")
@click.option("--gpus", default=32, show_default=True, help="GPUs.")
@click.option("--layers", default=58, show_default=True, help="MoE layers.")
@click.option("--repeat", default=20, show_default=True, help="Measurements; the median counts.")
@json_option
def moe_bench(experts: int, slots: int, gpus: int, layers: int, repeat: int, as_json: bool) -> int:
    """Measure placing and routing on this machine: made-up log-normal loads, one thread."""
    from evenload.cli.bench.measure.experts import made_up_batches, time_decisions

    batches = made_up_batches(8, layers, experts, gpus)
    spent = time_decisions(batches, slots, gpus, repeat, n_searches=3)
    cpu_s = {
        "rebalance_experts, all layers": spent.eplb_s,
        "exact routing, all layers": spent.route_s,
        "place, one layer": spent.search_s / layers,
    }
    if as_json:
        sizes = {"layers": layers, "experts": experts, "slots": slots, "gpus": gpus}
        click.echo(json.dumps({"schema": 1, "cpu_s": cpu_s, **sizes}))
        return 0
    rows = [[name, f"{1e3 * seconds:.3f}"] for name, seconds in cpu_s.items()]
    click.echo("\n".join(format_table(["CPU time of", "ms"], rows, right=["ms"])))
    return 0
