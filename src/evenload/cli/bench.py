"""``evenload bench``: measure this machine on real work, beside what theory predicts."""

import click

from .merkle_bench import merkle_bench
from .prove_bench import prove_bench

__all__ = ["bench"]


@click.group()
def bench() -> None:
    """Measure how a kind of work scales over devices of this machine."""


bench.add_command(merkle_bench)
bench.add_command(prove_bench)
