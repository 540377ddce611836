"""``evenload moe``: where experts go, how batches are routed, and what that would have done to a trace."""

import click

from evenload.cli.bench.moe_bench import moe_bench
from evenload.cli.moe.place import place
from evenload.cli.moe.replay import replay
from evenload.cli.moe.route import route
from evenload.cli.moe.watch import watch

__all__ = ["moe"]


@click.group()
def moe() -> None:
    """Mixture-of-experts models: place copies of experts on GPUs, and route batches over them.

    A TRACE is .npz or .npy (expert ids or counts), .jsonl or .json of counts, a .pt dump of SGLang or
    vLLM, or a folder of those dumps.
    """


for command in (place, replay, route, watch):
    moe.add_command(command)
moe.add_command(moe_bench, "bench")
