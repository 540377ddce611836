"""Every command of the command line that is no group, for tests that hold for all of them."""

from collections.abc import Iterator

import click

from evenload.cli import cli


def commands(
    group: click.Command = cli, names: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the words that call each command, and the command."""
    if not isinstance(group, click.Group):
        yield names, group
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield from commands(found, (*names, name))
