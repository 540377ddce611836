"""``evenload stop RUN``: end a run, or give up some of its items, from another terminal."""

from pathlib import Path

import click

from evenload.cli.options import PATH, json_option, page_json


@click.command()
@click.argument("run", type=PATH)
@click.option(
    "--item", "items", multiple=True, metavar="ID", help="Only give up this item, or part; may be repeated."
)
@json_option
def stop(run: Path, items: tuple[str, ...], as_json: bool) -> int:
    """End the run in the folder RUN; what is done is kept. With --item, only give up that item.

    An item that is given up has failed; `evenload retry --failed` tries it again. Its worker is replaced, and
    what else that ran is run again.

    \b
    evenload stop runs/pairs --item r7
    """
    from evenload.executor.loop.control import exchange

    exchange(run, "stop", items=items)
    if as_json:
        click.echo(page_json({"schema": 1, "stopped": list(items) or "run"}))
    else:
        click.echo(f"given up: {', '.join(items)}" if items else f"{run} is ending")
    return 0
