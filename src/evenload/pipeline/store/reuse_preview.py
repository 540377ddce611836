"""Say beforehand how much of a job is there already, and why the rest is not. Nothing is started."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenload.errors import ConfigError
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageRule, StageTask
from evenload.pipeline.job.spec_stage import sampled_stages
from evenload.pipeline.reuse.decision import StageReuse
from evenload.pipeline.stage import Item
from evenload.pipeline.store.kept_results import KeptResults, ReuseSettings
from evenload.pipeline.store.ledger import FOLDER
from evenload.pipeline.store.run_folder import RunFolder

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec


def preview_reuse(
    spec: "JobSpec",
    items: Iterable[tuple[Item, Mapping[str, Any]]],
    settings: ReuseSettings,
    run_folder: Path,
) -> list[StageReuse]:
    """Return how much of each stage is in the run folder or the cache.

    [] if there is nothing to look through, or another process works in the folder.
    """
    rules = [StageRule.of(stage) for stage in spec.stages]
    flow = ItemFlow(rules, list(items), spec.job.seed, graph=spec.graph)
    with contextlib.ExitStack() as stack:
        folder = None
        if any((run_folder / FOLDER).glob("segment-*")):
            try:
                folder = stack.enter_context(RunFolder.of_run(run_folder))
            except ConfigError:
                return []
        kept = KeptResults(spec, flow, settings, folder, is_dry=True)
        if not kept.has_any:
            return []
        todo, left = flow.begin(), []
        while todo:
            task = todo.pop()
            found = kept.find(task)
            if found is None:
                left.append(task)
            elif found.entry.error is not None:
                todo += flow.failed(task, found.entry.error)
            else:
                todo += flow.done(task, found.entry.outputs, files=found.entry.files)
    _count_after(spec, flow, left, kept.reuse)
    return kept.reuse


def _count_after(spec: "JobSpec", flow: ItemFlow, left: Iterable[StageTask], reuse: list[StageReuse]) -> None:
    """Add to each stage the most tasks that may come to it from those that are to be done before."""
    sampled, graph = sampled_stages(spec.stages), spec.graph
    stuck = Counter((task.stage, flow.strands[task.strand].at) for task in left)
    reached: dict[int, dict[int, int]] = {}  # stage -> item -> tasks
    for (stage, at), n_strands in stuck.items():
        n_here = n_strands
        for later in sorted(graph.after[stage]):
            if len(graph.scopes[later]) > len(graph.scopes[stage]):
                reuse[later].is_open = True  # nobody knows how many parts there will be
            if graph.scopes[later] and graph.scopes[later] == graph.scopes[stage]:
                n_here = n_strands
            else:
                n_here = max(n_here, spec.stages[later].samples) if later in sampled else 1
            most = reached.setdefault(later, {})
            most[at] = max(most.get(at, 0), n_here)
    for stage, most in reached.items():
        reuse[stage].n_after = sum(most.values())
