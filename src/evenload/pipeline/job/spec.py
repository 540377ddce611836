"""The job file as validated values: every section, key, type and default.

Needs pydantic (extra ``yaml``); nothing imports this module before a job is read. With the validation context
``{"folder": path}``, what a job refers to is checked as well: inputs, stage classes with their arguments, and
model folders.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import PrivateAttr, field_validator, model_validator

from evenload.errors import quoted
from evenload.pipeline.job.section import Fault, Faults, Section
from evenload.pipeline.job.spec_inputs import JobSection
from evenload.pipeline.job.spec_settings import (
    BackendSection,
    CacheSection,
    CostsSection,
    DevicesSection,
    ErrorsSection,
    OnDoneSection,
    ReportSection,
    ScheduleSection,
    UploadSection,
)
from evenload.pipeline.job.spec_stage import StageSpec
from evenload.pipeline.job.stage_needs import find_need_faults, graph_of
from evenload.pipeline.job.yaml_text import Origins
from evenload.pipeline.problem import LOSSY
from evenload.pipeline.stage_graph import StageGraph


class JobSpec(Section):
    """A whole job file."""

    version: Literal[1]
    job: JobSection
    backend: BackendSection = BackendSection()
    devices: DevicesSection = DevicesSection()
    stages: tuple[StageSpec, ...]
    """What each item goes through: one after the other, or as their ``needs`` say."""
    schedule: ScheduleSection = ScheduleSection()
    cache: CacheSection | None = None
    """Where runs of any job keep results for each other; by default each run folder is on its own."""
    costs: CostsSection | None = None
    errors: ErrorsSection = ErrorsSection()
    report: ReportSection = ReportSection()
    upload: UploadSection | None = None
    on_done: OnDoneSection | None = None
    _notes: tuple[str, ...] = PrivateAttr(default=())
    _origins: Origins = PrivateAttr(default=Origins())

    @property
    def origins(self) -> Origins:
        """Where each place of the job was written, for faults that are found later."""
        return self._origins

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user: older keys that were converted, settings without effect."""
        return self._notes

    @property
    def graph(self) -> StageGraph:
        """Which stages each stage takes from."""
        return graph_of(self.stages)

    def cost_facts(self, devices: Iterable[str]) -> dict[str, Any]:
        """Return what a run on ``devices`` costs, as ``report.costs`` has it; {} where nothing was told."""
        asked = [one for one in self.stages if one.kind == "openai" and one.params.get("cost_per_million")]
        also = {one.name: one.params.get("also") for one in asked}
        outputs = {
            name: one.get("cost", "cost") if isinstance(one, Mapping) else "cost"
            for name, one in also.items()
        }
        if self.costs is None and not outputs:
            return {}
        return {**(self.costs or CostsSection()).facts(devices), "outputs": outputs}

    @field_validator("stages")
    @classmethod
    def _names_differ(cls, stages: tuple[StageSpec, ...]) -> tuple[StageSpec, ...]:
        if not stages:
            raise ValueError("at least one stage is needed")
        faults: list[Fault] = []
        names: dict[str, int] = {}
        outputs: dict[str, str] = {}
        for number, stage in enumerate(stages):
            if stage.name in names:
                faults.append(
                    ((number, "name"), f"stages[{names[stage.name]}] is called {quoted(stage.name)} already")
                )
            names.setdefault(stage.name, number)
            for output in stage.outputs:
                if output in outputs:
                    text = f"{quoted(output)} is an output of stage {quoted(outputs[output])} already"
                    faults.append(((number, "outputs", output), text))
                outputs.setdefault(output, stage.name)
        faults += _faults_of_samples(stages)
        faults += find_need_faults(stages)
        if faults:
            raise Faults(faults)
        return stages

    @model_validator(mode="after")
    def _uploaded_stages_make_files(self) -> "JobSpec":
        known = {stage.name: bool(stage.file_outputs) for stage in self.stages}
        faults: list[Fault] = []
        for number, name in enumerate((self.upload.stages if self.upload else ()) or ()):
            if not known.get(name):
                is_stage = name in known
                text = (
                    f"stage {quoted(name)} makes no files"
                    if is_stage
                    else f"there is no stage {quoted(name)}"
                )
                those = ", ".join(one for one, makes_files in known.items() if makes_files) or "none"
                faults.append((("upload", "stages", number), f"{text}; stages that make files: {those}"))
        if faults:
            raise Faults(faults)
        return self

    @model_validator(mode="after")
    def _lossy_is_allowed(self) -> "JobSpec":
        faults: list[Fault] = []
        for number, stage in enumerate(self.stages):
            lossy = [fit for fit in stage.fit if fit in LOSSY]
            if lossy and not self.devices.allow_lossy:
                text = f"{', '.join(lossy)} changes results; take it out, or set devices.allow_lossy: true"
                faults.append((("stages", number, "fit"), text))
        if faults:
            raise Faults(faults)
        return self


def _faults_of_samples(stages: tuple[StageSpec, ...]) -> list[Fault]:
    """Return faults of ``best`` without samples to choose from, and of samples of samples."""
    faults: list[Fault] = []
    fanned: str | None = None
    for number, stage in enumerate(stages):
        if stage.samples > 1:
            if fanned is not None:
                text = f"stage {quoted(fanned)} makes samples already; choose the best of them first"
                faults.append(((number, "samples"), text))
            fanned = stage.name
        if stage.best is not None:
            if fanned is None:
                faults.append(
                    ((number, "best"), "there are no samples to choose from; give an earlier stage samples")
                )
            fanned = None
    return faults
