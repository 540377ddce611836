"""``evenload status RUN``: how far a run is, by stage and group, or what became of one of its items."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.options import PATH, json_option, page_json
from evenload.cli.terminal.table import format_table
from evenload.errors import ConfigError, quoted
from evenload.events import Event, ItemFailed, ItemFinished

if TYPE_CHECKING:
    from evenload.report.summary import Summary


@click.command()
@click.argument("run", type=PATH)
@click.option("--item", metavar="ID", help="Show the state of this item (of a map: its number).")
@json_option
def status(run: Path, item: str | None, as_json: bool) -> int:
    """Say how far the run in the folder RUN is: done and failed by stage and group, and which workers run it.

    \b
    evenload status runs/pairs
    evenload status runs/pairs --item c07
    """
    from evenload.pipeline.store.run_folder import is_in_use, is_of_other_kind
    from evenload.report.source import open_run
    from evenload.report.tally import summarise

    read = open_run(run)
    events, folder = list(read), read.path.parent
    if item is not None:
        return _tell_life(events, item, as_json)
    summary, counts = summarise(events), count_stages(events)
    is_running = is_in_use(folder)
    state = "running" if is_running else "interrupted" if summary.status == "unfinished" else summary.status
    ends = summary.counts.get("items", {})
    left = ends.get("unfinished", max(0, (summary.total or 0) - summary.n_done - summary.n_failed))
    eta_s = left / summary.items_per_s if is_running and summary.items_per_s else None
    if as_json:
        click.echo(page_json(_page(run, state, eta_s, summary, counts), indent=2))
        return 0
    click.echo(f"{state}: {summary.headline()}")
    if eta_s is not None:
        click.echo(f"about {eta_s:.0f} s to go")
    if summary.error:
        click.echo(summary.error)
    is_job = not is_of_other_kind(folder)
    if is_job and counts.done:  # a map has one stage, and tells of no item that is done
        click.echo("\n".join(_tables(counts)))
    if counts.n_failed:
        by = f"evenload retry --failed {run}" if is_job else "the same command with --resume"
        click.echo(f"try the failed ones again: {by}")
    return 0


def _tell_life(events: list[Event], item: str, as_json: bool) -> int:
    """Print the life of one item. Raises ConfigError if the run knows of none with this id."""
    from evenload.report.item_life import broken_steps, life_of

    steps = life_of(events, item)
    if not steps:
        raise ConfigError(
            f"nothing is known of an item {quoted(item)}",
            hint="give its id as in results.jsonl, or of a map its number from 0; it may not have begun",
        )
    broken = broken_steps(steps)
    if as_json:
        page = {"schema": 1, "item": item, "steps": [asdict(step) for step in steps]}
        click.echo(page_json(page | {"broken": [asdict(step) for step in broken]}, indent=2))
        return 0
    rows = [
        [f"{step.t:.3f}", step.item, step.stage, step.state, step.worker or step.device, step.text]
        for step in steps
    ]
    click.echo(
        "\n".join(
            format_table(["second", "item", "stage", "state", "worker", "what"], rows, right=("second",))
        )
    )
    for step in broken:
        click.echo(f"{step.stage}: {step.missing}", err=True)
    return 0


def _page(
    run: Path, state: str, eta_s: float | None, summary: "Summary", counts: "StageCounts"
) -> dict[str, Any]:
    stages = {
        name: {"n_done": len(done), "n_failed": len(counts.failed.get(name, ()))}
        for name, done in counts.done.items()
    }
    figures = {
        name: getattr(summary, name) for name in ("total", "n_done", "n_failed", "items_per_s", "counts")
    }
    page = {"schema": 1, "run": str(run), "status": state, **figures, "eta_s": eta_s}
    return page | {"stages": stages, "groups": counts.by_group()}


def _tables(counts: "StageCounts") -> list[str]:
    """Done and failed by stage; done by group, if there are groups."""
    stages, groups = list(counts.done), counts.by_group()
    rows = [
        [name, str(len(done)), str(len(counts.failed.get(name, ())))] for name, done in counts.done.items()
    ]
    lines = format_table(["stage", "done", "failed"], rows, right=("done", "failed"))
    if groups:
        rows = [[group, *(str(n_done.get(name, 0)) for name in stages)] for group, n_done in groups.items()]
        lines += format_table(["group", *stages], rows, right=stages)
    return lines


@dataclass
class StageCounts:
    """Names of the items that each stage has done, and that failed in it; and the group of an item."""

    done: dict[str, set[str]] = field(default_factory=dict)
    failed: dict[str, set[str]] = field(default_factory=dict)
    item2group: dict[str, str] = field(default_factory=dict)

    @property
    def n_failed(self) -> int:
        return sum(map(len, self.failed.values()))

    def by_group(self) -> dict[str, dict[str, int]]:
        """group -> stage -> number of items that it has done."""
        counts: dict[str, dict[str, int]] = {}
        for stage, names in self.done.items():
            for name in names:
                group = self.item2group.get(name.rpartition(" #")[0] or name, self.item2group.get(name))
                if group is not None:
                    of_group = counts.setdefault(group, {})
                    of_group[stage] = of_group.get(stage, 0) + 1
        return dict(sorted(counts.items()))


def count_stages(events: Iterable[Event]) -> StageCounts:
    """Collect the items of each stage; of an item that was tried again, the last attempt counts."""
    counts = StageCounts()
    for event in events:
        if isinstance(event, ItemFinished):
            counts.done.setdefault(event.stage, set()).add(event.item)
            counts.failed.get(event.stage, set()).discard(event.item)
            group: Any = event.outputs.get("group")
            if isinstance(group, str):
                counts.item2group[event.item] = group
        elif isinstance(event, ItemFailed):
            counts.done.setdefault(event.stage, set())
            counts.failed.setdefault(event.stage, set()).add(event.item)
    return counts
