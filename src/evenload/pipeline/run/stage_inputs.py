"""What a run is about, and what its stages are given: a setup for each worker, and inputs for each task."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload.errors import ConfigError, quoted
from evenload.events import EventLog, StageFinished, StageStarted
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageTask
from evenload.pipeline.dispatch.worker_protocol import TaskInputs
from evenload.pipeline.job.spec import JobSpec
from evenload.pipeline.job.spec_stage import sampled_stages
from evenload.pipeline.json_values import batch_key_text
from evenload.pipeline.stage import ModelFolder, StageSetup
from evenload.pipeline.store.kept_results import ReuseSettings
from evenload.pipeline.store.ledger import LedgerEntry
from evenload.pipeline.store.run_folder import RunFolder
from evenload.pipeline.store.uploads import Uploads
from evenload.pipeline.target import locate_target


@dataclass(frozen=True, slots=True)
class RunContext:
    """The parts of a run before there are devices."""

    spec: JobSpec
    folder: Path
    run_folder: RunFolder
    flow: ItemFlow
    log: EventLog
    may_use_cpu: bool
    reuse: ReuseSettings
    uploads: Uploads | None = None

    @property
    def shortest_limit_s(self) -> float:
        """The shortest time limit of an item, in one stage or over all; infinite without one."""
        errors, stages = self.spec.errors, self.spec.stages
        limits = errors.timeout_s, errors.item_timeout_s, *(stage.timeout_s for stage in stages)
        return min((limit_s for limit_s in limits if limit_s is not None), default=math.inf)

    def share(self, kept: LedgerEntry) -> None:
        """Hand on a result that is on disk: to a store, and to the cache that run folders share, if any."""
        if self.uploads is not None:
            for name in kept.files:
                self.uploads.offer(str(kept.outputs[name]))
        if self.reuse.cache is not None:
            run_folder = self.run_folder.path
            self.reuse.cache.keep(kept, run_folder, (str(run_folder), str(self.folder)))


class StageInputs:
    """Makes of a task what its stage is given, and tells when a stage begins."""

    def __init__(self, context: RunContext):
        self._spec, self._flow, self._log = context.spec, context.flow, context.log
        self._run_folder = context.run_folder.path
        self._files = {name for stage in self._spec.stages for name in stage.file_outputs}
        self._sampled = sampled_stages(self._spec.stages)
        self._begun: set[int] = set()
        self._keyless: set[int] = set()  # stages of which it was told that an item has no key

    def of(self, task: StageTask) -> TaskInputs:
        strand = self._flow.strands[task.strand]
        self._announce(task.stage)
        values = self._placed(self._flow.values(task))
        if (gather := self._flow.rules[task.stage].gather) and isinstance(values[gather], list):
            values[gather] = list(map(self._placed, values[gather]))
        limit = self._flow.limit_of(task)
        return TaskInputs(task, values, strand.item, self._folder_of(task), limit=limit)

    def _placed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values`` with files as absolute paths."""
        folder, files = self._run_folder, self._files
        return {name: str(folder / value) if name in files else value for name, value in values.items()}

    def key_of(self, task: StageTask) -> str | None:
        """What its stage's ``batch_key`` names, as text; None if the item has none of it, and runs alone."""
        names = self._spec.stages[task.stage].batch_key
        if names is None:
            return ""
        item = self._flow.strands[task.strand].item
        known = {"group": item.group, **self._flow.values(task), "id": item.id}
        try:
            return batch_key_text([known[name] for name in names])
        except (KeyError, ConfigError) as error:
            self._tell_keyless(task.stage, item.id, error)
            return None

    def _tell_keyless(self, stage: int, item: str, error: Exception) -> None:
        if stage not in self._keyless:
            self._keyless.add(stage)
            why = error.message if isinstance(error, ConfigError) else f"it has no {error}"
            text = (
                f"{self._spec.stages[stage].name}: item {quoted(item)} has no batch_key and runs alone: {why}"
            )
            self._log.note("warning", "pipeline", text)

    def name_of(self, task: StageTask) -> str:
        """The task's stage and item, for people."""
        item = self._flow.name_of(self._flow.strands[task.strand])
        return f"{self._spec.stages[task.stage].name} of {item}"

    def place_of(self, task: StageTask, output: str) -> str | None:
        """Where an output of a task is saved, relative to the run folder; None if it is no file."""
        stage, item = self._spec.stages[task.stage], self._flow.strands[task.strand].item
        return stage.place_of(output, item.id, self._folder_of(task))

    def _folder_of(self, task: StageTask) -> str:
        is_sampled = task.stage in self._sampled
        return f"sample-{self._flow.strands[task.strand].sample}/" if is_sampled else ""

    def size_of(self, task: StageTask) -> float:
        """How much work an item may be, roughly: by the size of its file, in powers of two."""
        path = self._flow.inputs[self._flow.strands[task.strand].at].get("path")
        try:
            return float(round(math.log2(max(1, os.path.getsize(path))))) if isinstance(path, str) else 0.0
        except (OSError, ValueError):
            return 0.0

    def close(self) -> None:
        """Tell that the stages which began are over."""
        for stage in sorted(self._begun):
            self._log.emit(StageFinished(self._log.now(), self._spec.stages[stage].name))

    def _announce(self, stage: int) -> None:
        if stage in self._begun:
            return
        self._begun.add(stage)
        total = self._flow.n_coming(stage)
        self._log.emit(StageStarted(self._log.now(), self._spec.stages[stage].name, total))


def stage_setups(context: RunContext) -> list[StageSetup]:
    """What a worker builds each stage from."""
    spec, folder = context.spec, context.folder
    return [
        StageSetup(
            stage=stage.name,
            target=locate_target(stage.target, folder),
            folder=folder,
            run_folder=context.run_folder.path,
            params=stage.params,
            call=stage.call,
            outputs=stage.outputs,
            seed=spec.job.seed,
            retries=spec.errors.retries,
            model=ModelFolder(model.path, model.dtype, model.components) if (model := stage.model) else None,
            may_use_cpu=context.may_use_cpu,
            python=stage.python,
            may_change_bits=stage.batch_changes_bits == "allow",
            sources=identity.sources,
            expand=stage.expand or "",
        )
        for stage, identity in zip(spec.stages, context.reuse.identities, strict=True)
    ]
