"""``evenload devices drain`` and ``add``: change the devices of a job that runs."""

import json
from pathlib import Path

import click

from evenload.cli.options import PATH, json_option

__all__ = ["add", "drain"]

run_folder_option = click.option(
    "--run",
    "folder",
    metavar="FOLDER",
    required=True,
    type=PATH,
    help="The job's folder.",
)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@run_folder_option
@click.option("--now", "at_once", is_flag=True, help="Kill their workers; what they ran is run elsewhere.")
@json_option
def drain(ids: tuple[str, ...], folder: Path, at_once: bool, as_json: bool) -> int:
    """Let devices of a running job end what they have, and free them.

    Only who runs the job can ask for it. Prints the devices that go on.

    \b
    evenload devices drain cuda:3 --run runs/tonight
    """
    return _ask(folder, "drain", ids, at_once, as_json)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="SPEC...")
@run_folder_option
@json_option
def add(ids: tuple[str, ...], folder: Path, as_json: bool) -> int:
    """Have more devices work for a running job: cuda:3, or cpu*2, or one that was drained.

    Only who runs the job can ask for it. Prints all its devices.
    """
    return _ask(folder, "add", ids, False, as_json)


def _ask(folder: Path, action: str, ids: tuple[str, ...], at_once: bool, as_json: bool) -> int:
    from evenload.executor.loop.control import ask

    devices = ask(folder, action, [one for given in ids for one in given.split(",") if one], at_once=at_once)
    click.echo(json.dumps({"schema": 1, "devices": devices}) if as_json else "\n".join(devices))
    return 0
