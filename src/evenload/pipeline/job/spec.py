"""The job file as validated values: every section, key, type and default.

Needs pydantic (extra ``yaml``); nothing imports this module before a job is read. With the validation context
``{"folder": path}``, what a job refers to is checked as well: inputs, stage classes with their arguments, and
model folders.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PrivateAttr, field_validator, model_validator

from evenload.errors import did_you_mean, quoted
from evenload.pipeline.job.section import Faults, Section
from evenload.pipeline.job.spec_settings import (
    BackendSection,
    CacheSection,
    CostsSection,
    DevicesSection,
    ErrorsSection,
    JobSection,
    OnDoneSection,
    ReportSection,
    ScheduleSection,
    UploadSection,
)
from evenload.pipeline.job.spec_stage import StageSpec, sampled_stages
from evenload.pipeline.job.yaml_text import Fault, Origins
from evenload.pipeline.problem import LOSSY
from evenload.pipeline.stage_graph import StageGraph

if TYPE_CHECKING:
    from evenload.pipeline.job.spec_stage import StageSpec


def graph_of(stages: "Sequence[StageSpec]") -> StageGraph:
    """Return which stages each of ``stages`` takes from; one that names none takes from the one before it."""
    index = {stage.name: number for number, stage in enumerate(stages)}
    needs = []
    for number, stage in enumerate(stages):
        named = (index[name] for name in stage.needs or ())
        needs.append(tuple(sorted(named)) if stage.needs is not None else (number - 1,) if number else ())
    expands = {number for number, stage in enumerate(stages) if stage.expand is not None}
    names = {stages[number].expand: number for number in expands}
    gathers = {
        number: names[stage.gather.by]
        for number, stage in enumerate(stages)
        if stage.gather is not None and names.get(stage.gather.by, number) < number
    }
    return StageGraph(tuple(needs), frozenset(expands), gathers)


def find_need_faults(stages: "Sequence[StageSpec]") -> list[Fault]:
    """Return each need that is no earlier stage, and samples made or chosen beside another stage."""
    faults = [fault for number in range(len(stages)) for fault in _order_faults(stages, number)]
    faults = faults or list(_gather_faults(stages))
    faults = faults or list(_scope_faults(stages, graph_of(stages)))
    return faults or list(_sample_faults(stages, graph_of(stages)))


def _order_faults(stages: "Sequence[StageSpec]", number: int) -> Iterator[Fault]:
    names, given = [stage.name for stage in stages], stages[number].needs or ()
    for at, name in enumerate(given):
        place = (number, "needs", at)
        if name in given[:at]:
            yield place, f"{quoted(name)} is given twice"
        elif name not in names:
            proposed = did_you_mean(name, names)
            yield place, f"there is no stage {quoted(name)}; {proposed}stages: {', '.join(names)}"
        elif name == stages[number].name:
            yield place, f"stage {quoted(name)} cannot need itself"
        elif (later := names.index(name)) > number:
            way = _way_back(stages, names, later, number)
            if way:
                yield place, f"nothing could begin: {' needs '.join([stages[number].name, *way])}"
            else:
                yield (
                    place,
                    f"stage {quoted(name)} comes later in the file; "
                    f"move it before {quoted(stages[number].name)}",
                )


def _way_back(stages: "Sequence[StageSpec]", names: list[str], start: int, goal: int) -> list[str]:
    """Return the names on a way of needs from ``start`` to ``goal``, both included; [] if there is none."""
    ways, seen = [[start]], {start}
    for way in ways:
        stage, last = stages[way[-1]], way[-1]
        needs = stage.needs if stage.needs is not None else (names[last - 1],) if last else ()
        for need in (names.index(name) for name in needs if name in names):
            if need == goal:
                return [names[number] for number in (*way, goal)]
            if need not in seen:
                seen.add(need)
                ways.append([*way, need])
    return []


def _sample_faults(stages: "Sequence[StageSpec]", graph: StageGraph) -> Iterator[Fault]:
    """Yield stages that make samples of an item, or choose the best, while another stage works on it."""
    for number, stage in enumerate(stages):
        key = "samples" if stage.samples > 1 else "best" if stage.best is not None else ""
        beside = sorted(graph.beside(number))
        if key and beside:
            names = " and ".join(repr(stages[other].name) for other in beside)
            plural = "" if len(beside) > 1 else "s"
            text = f"stage {names} run{plural} beside this one, and samples are of a whole item; "
            yield (number, key), text + f"put {names} before it with needs, or after the choice"


def _gather_faults(stages: "Sequence[StageSpec]") -> Iterator[Fault]:
    """Yield names of parts that are given twice, are an output as well, or that nobody makes."""
    made: dict[str, int] = {}
    for number, stage in enumerate(stages):
        if stage.gather is not None and stage.gather.by not in made:
            known = f"{did_you_mean(stage.gather.by, made)}expanded before: {', '.join(made) or 'none'}"
            text = f"no earlier stage has expand: {stage.gather.by}; {known}"
            yield (number, "gather"), text
        if stage.expand is None:
            continue
        if stage.expand in made:
            yield (
                (number, "expand"),
                f"{quoted(stage.expand)} are parts of stage {quoted(stages[made[stage.expand]].name)}",
            )
        for other in stages:
            if stage.expand in other.outputs:
                text = f"{quoted(stage.expand)} is an output of stage {quoted(other.name)}"
                text += "; outputs are of each part"
                yield (number, "expand"), text
        made.setdefault(stage.expand, number)


def _scope_faults(stages: "Sequence[StageSpec]", graph: StageGraph) -> Iterator[Fault]:
    """Yield stages that would join parts of different sets, or gather what is no part."""

    def names(scope: Sequence[int]) -> str:
        return " of ".join(repr(stages[made].expand) for made in reversed(scope)) or "whole items"

    for number, needs in enumerate(graph.needs):
        given = {need: graph.scope_after(need, graph.scopes) for need in needs}
        parts, scope = graph.gathers.get(number), graph.scopes[number]
        place = (number, "needs" if stages[number].needs is not None else "name")
        if parts is not None:
            place, by = (number, "gather"), stages[parts].expand
            if all(parts not in one for one in given.values()):
                yield place, f"none of its needs goes through {by}; let it need a stage that does"
                continue
            if inner := next((one for one in given.values() if parts in one and one[-1] != parts), None):
                yield place, f"it is given {names(inner)}; gather {stages[inner[-1]].expand} first"
                continue
        for need, one in given.items():
            is_gathered = parts is not None and one == (*scope, parts)
            if not is_gathered and one != scope[: len(one)]:
                text = f"stage {quoted(stages[need].name)} gives {names(one)}, and it is joined with "
                yield place, text + f"{names(scope)}, of which there may be another number; gather first"
    sampled = sampled_stages(stages)
    for number in sorted(sampled):
        if graph.scopes[number] or stages[number].expand is not None:
            key = "expand" if stages[number].expand is not None else "name"
            yield (
                (number, key),
                "samples are of whole items: choose the best of them first, with best: {by: ...}",
            )


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
    def _sections_agree(self) -> "JobSpec":
        """Refuse uploads of stages that make no files, and lossy fits that nobody has allowed."""
        known = {stage.name: bool(stage.file_outputs) for stage in self.stages}
        those = ", ".join(one for one, makes_files in known.items() if makes_files) or "none"
        faults: list[Fault] = []
        for number, name in enumerate((self.upload.stages if self.upload else ()) or ()):
            if not known.get(name):
                text = f"stage {quoted(name)} makes no files"
                text = text if name in known else f"there is no stage {quoted(name)}"
                faults.append((("upload", "stages", number), f"{text}; stages that make files: {those}"))
        for number, stage in enumerate(() if self.devices.allow_lossy else self.stages):
            if lossy := [fit for fit in stage.fit if fit in LOSSY]:
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
