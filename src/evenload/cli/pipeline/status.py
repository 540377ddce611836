"""``evenload status RUN``: how far a run is, by stage and group, while it runs and after."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from evenload.cli.terminal.table import format_table
from evenload.events import Event, ItemFailed, ItemFinished

__all__ = ["Progress", "progress_of", "status"]


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(run: Path, as_json: bool) -> int:
    """Say how far the run in the folder RUN is: done and failed by stage and group, and who works at it.

    \b
    evenload status runs/pairs
    """
    from evenload.pipeline.store.run_folder import is_in_use
    from evenload.report.source import open_run
    from evenload.report.tally import summarise

    reading = open_run(run)
    events = list(reading)
    summary, progress = summarise(events), progress_of(events)
    is_running = is_in_use(run)
    state = "running" if is_running else "interrupted" if summary.status == "unfinished" else summary.status
    left = max(0, (summary.total or 0) - summary.n_done - summary.n_failed)
    eta_s = left / summary.items_per_s if is_running and summary.items_per_s else None
    if as_json:
        shown = {
            "schema": 1, "run": str(run), "status": state, "total": summary.total, "n_done": summary.n_done,
            "n_failed": summary.n_failed, "items_per_s": summary.items_per_s, "eta_s": eta_s,
            "stages": {name: {"n_done": len(done), "n_failed": len(progress.failed.get(name, ()))}
                       for name, done in progress.done.items()},
            "groups": progress.by_group(),
        }  # fmt: skip
        click.echo(json.dumps(shown, indent=2))
        return 0
    click.echo(f"{state}: {summary.headline()}")
    if eta_s is not None:
        click.echo(f"about {eta_s:.0f} s to go")
    rows = [
        [name, str(len(done)), str(len(progress.failed.get(name, ())))]
        for name, done in progress.done.items()
    ]
    for line in format_table(["stage", "done", "failed"], rows, right="done failed"):
        click.echo(line)
    groups = progress.by_group()
    if groups:
        stages = list(progress.done)
        table = [[group, *(str(counts.get(name, 0)) for name in stages)] for group, counts in groups.items()]
        for line in format_table(["group", *stages], table, right=" ".join(stages)):
            click.echo(line)
    if progress.n_failed:
        click.echo(f"try the failed ones again: evenload retry --failed {run}")
    return 0


@dataclass
class Progress:
    """By stage, names of the items that are through it and that failed in it; ``group_of`` an item."""

    done: dict[str, set[str]] = field(default_factory=dict)
    failed: dict[str, set[str]] = field(default_factory=dict)
    group_of: dict[str, str] = field(default_factory=dict)

    @property
    def n_failed(self) -> int:
        return sum(map(len, self.failed.values()))

    def by_group(self) -> dict[str, dict[str, int]]:
        """group -> stage -> items that are through it."""
        counts: dict[str, dict[str, int]] = {}
        for stage, names in self.done.items():
            for name in names:
                group = self.group_of.get(name.rpartition(" #")[0] or name, self.group_of.get(name))
                if group is not None:
                    of_group = counts.setdefault(group, {})
                    of_group[stage] = of_group.get(stage, 0) + 1
        return dict(sorted(counts.items()))


def progress_of(events: Iterable[Event]) -> Progress:
    """What counts is the last that was said of an item: a failed one may have been tried again."""
    progress = Progress()
    for event in events:
        if isinstance(event, ItemFinished):
            progress.done.setdefault(event.stage, set()).add(event.item)
            progress.failed.get(event.stage, set()).discard(event.item)
            group: Any = event.outputs.get("group")
            if isinstance(group, str):
                progress.group_of[event.item] = group
        elif isinstance(event, ItemFailed):
            progress.done.setdefault(event.stage, set())
            progress.failed.setdefault(event.stage, set()).add(event.item)
    return progress
