"""What the commands under ``evenload bench`` have in common: the devices to measure, and rows as a table."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from evenload.cli.terminal.table import format_table

__all__ = ["devices_option", "echo_rows"]

devices_option = click.option(
    "--devices",
    "specs",
    multiple=True,
    help="Devices to measure, one of them alone and all together; repeat it. Default: all.",
)


def echo_rows(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], as_json: bool) -> None:
    """Print rows of equal keys as a table, or with ``facts`` as one JSON object."""
    if as_json:
        click.echo(json.dumps({"schema": 1, **facts, "rows": rows}, indent=2))
        return
    head = list(rows[0])
    cells = [[value if isinstance(value, str) else f"{value:.3g}" for value in row.values()] for row in rows]
    for line in format_table(head, cells, right=head[1:]):
        click.echo(line)
