"""``evenload clients run fl.yaml``: federated rounds; ``check`` them; ``tune`` and ``compare`` strategies."""

import click

from evenload.cli.clients.check import check
from evenload.cli.clients.compare import compare
from evenload.cli.clients.run import run
from evenload.cli.clients.tune import tune

__all__ = ["clients"]


@click.group()
def clients() -> None:
    """Train many small models at once: federated rounds of a job file."""


clients.add_command(check)
clients.add_command(compare)
clients.add_command(run)
clients.add_command(tune)
