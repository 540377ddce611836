"""What the stages of a run are given: their setup once for each worker, and their inputs for each task."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from evenload.errors import ConfigError, quoted
from evenload.events import EventLog, Note, StageFinished, StageStarted
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageTask
from evenload.pipeline.dispatch.worker_protocol import TaskInputs
from evenload.pipeline.job.spec import JobSpec, StageSpec
from evenload.pipeline.job.spec_stage import sampled_stages
from evenload.pipeline.json_values import batch_key_text
from evenload.pipeline.stage import ModelFolder, StageSetup
from evenload.pipeline.target import locate_target
from evenload.pipeline.worker.stage_host import run_folder_path


class StageInputs:
    """Makes of a task what its stage is given, and tells when a stage begins."""

    def __init__(self, spec: JobSpec, flow: ItemFlow, run_folder: Path, log: EventLog):
        self._spec, self._flow, self._run_folder, self._log = spec, flow, run_folder, log
        self._files = {name for stage in spec.stages for name in stage.file_outputs}
        self._sampled = sampled_stages(spec.stages)
        self._begun: set[int] = set()
        self._keyless: set[int] = set()  # stages of which it was told that an item has no key

    def of(self, task: StageTask) -> TaskInputs:
        strand = self._flow.strands[task.strand]
        self._announce(task.stage)
        values = run_folder_path(self._flow.values(task), self._run_folder, self._files)
        if (gather := self._flow.rules[task.stage].gather) and isinstance(values[gather], list):
            values[gather] = [run_folder_path(part, self._run_folder, self._files) for part in values[gather]]
        limit = self._flow.limit_of(task)
        return TaskInputs(task, values, strand.item, self._folder_of(task), limit=limit)

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
            self._log.emit(Note(self._log.now(), "warning", "pipeline", text))

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


def stage_setups(
    spec: JobSpec,
    job_folder: Path,
    run_folder: Path,
    sources: Sequence[tuple[tuple[str, str], ...]],
    *,
    may_use_cpu: bool,
) -> list[StageSetup]:
    """What a worker builds each stage from. ``sources``: of each, files of its code and their digests."""
    return [
        _setup(spec, stage, job_folder, run_folder, files, may_use_cpu)
        for stage, files in zip(spec.stages, sources, strict=True)
    ]


def _setup(
    spec: JobSpec,
    stage: StageSpec,
    job_folder: Path,
    run_folder: Path,
    sources: tuple[tuple[str, str], ...],
    may_use_cpu: bool,
) -> StageSetup:
    model = stage.model
    return StageSetup(
        stage=stage.name,
        target=locate_target(stage.target, job_folder),
        folder=job_folder,
        run_folder=run_folder,
        params=stage.params,
        call=stage.call,
        outputs=stage.outputs,
        seed=spec.job.seed,
        retries=spec.errors.retries,
        model=ModelFolder(model.path, model.dtype, model.components) if model else None,
        may_use_cpu=may_use_cpu,
        python=stage.python,
        may_change_bits=stage.batch_changes_bits == "allow",
        sources=sources,
        expand=stage.expand or "",
    )
