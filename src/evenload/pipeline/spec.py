"""The job file as validated values: every section, key, type and default.

Needs pydantic (extra ``yaml``); nothing imports this file before a job is read. With ``{"folder": path}`` as
context, what a job refers to (inputs, stage classes and their arguments) is checked as well.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from evenload.errors import ConfigError, EvenloadError
from evenload.pipeline.artifacts import FILE_TYPES
from evenload.pipeline.target import check_arguments, locate

__all__ = [
    "Devices",
    "Errors",
    "Faults",
    "Inputs",
    "Job",
    "JobSpec",
    "Report",
    "Schedule",
    "StageSpec",
    "one_line",
]

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=40)]
OutputType = Literal["png", "npy", "txt", "number", "text", "boolean"]
Fault = tuple[tuple[str | int, ...], str]


class Faults(ValueError):
    """Several faults below one place of the file: ``(path below it, sentence)`` each."""

    def __init__(self, faults: Sequence[Fault]):
        super().__init__("; ".join(text for _, text in faults))
        self.faults = faults


def one_line(error: EvenloadError) -> str:
    """An error and its hint as one sentence."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Inputs(_Section):
    """Where the items come from: exactly one of folder, glob, jsonl, csv, relative to the job file."""

    folder: str | None = None
    """A folder; each file in it that is not hidden is one item."""
    glob: str | None = None
    """A pattern such as pictures/**/*.png; each file is one item."""
    jsonl: str | None = None
    """A file with one JSON object on each line; each is one item."""
    csv: str | None = None
    """A CSV file with a header; each row is one item."""
    id: str = "id"
    """The column that names an item (jsonl, csv, table)."""
    table: str | None = None
    """With folder or glob: a .csv or .jsonl file whose columns are added to the items, by id."""
    paths: tuple[str, ...] = ("path",)
    """Columns that hold paths; relative ones belong to the file they stand in."""
    group_by: str | None = None
    """The column that says which group an item belongs to."""

    @model_validator(mode="after")
    def _one_source(self) -> "Inputs":
        given = [name for name in ("folder", "glob", "jsonl", "csv") if getattr(self, name) is not None]
        if len(given) != 1:
            said = f"given: {', '.join(given)}" if given else "none is given"
            raise ValueError(f"give exactly one of folder, glob, jsonl, csv; {said}")
        if self.table is not None and given[0] in ("jsonl", "csv"):
            raise ValueError(f"table adds columns to folder or glob; {given[0]} has columns of its own")
        return self


class Job(_Section):
    """What is to be done, on what, and where the results go."""

    name: str = Field(min_length=1, max_length=100)
    """What the run is called in its report."""
    inputs: Inputs
    out: str | None = None
    """The run folder, relative to the job file; runs/<name> if not given."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Each item's seed comes from this and the item's id."""

    @field_validator("inputs")
    @classmethod
    def _inputs_are_there(cls, inputs: Inputs, info: ValidationInfo) -> Inputs:
        folder = (info.context or {}).get("folder")
        if folder is None:
            return inputs
        faults: list[Fault] = []
        for key in ("folder", "jsonl", "csv", "table"):
            path = getattr(inputs, key)
            if path is not None and not (folder / path).exists():
                kind = "folder" if key == "folder" else "file"
                faults.append(((key,), f"there is no {kind} {(folder / path).resolve()}"))
        if faults:
            raise Faults(faults)
        return inputs


class Devices(_Section):
    """``devices: cpu*4`` is short for ``devices: {use: cpu*4}``."""

    use: str | int = "all"
    """all | cpu | cuda:0,1 | cpu*4 | a number of devices."""


class StageSpec(_Section):
    """One step that every item goes through."""

    name: Name
    target: str
    """file.py:Class, relative to the job file, or module:Class."""
    params: dict[str, Any] = Field(default_factory=dict, validate_default=True)
    """Given once to the class, by name."""
    call: dict[str, Any] = Field(default_factory=dict, validate_default=True)
    """Given to each call, by name."""
    outputs: dict[Name, OutputType] = Field(default_factory=dict)
    """Outputs that are saved as files (png, npy, txt) or whose type is checked (number, text, boolean)."""
    repeatable: bool = True
    """False if no item may run twice, not even to save time."""

    @property
    def file_outputs(self) -> list[str]:
        """Names of the outputs that are files."""
        return [name for name, kind in self.outputs.items() if kind in FILE_TYPES]

    @field_validator("target")
    @classmethod
    def _target_is_there(cls, target: str, info: ValidationInfo) -> str:
        return _located(target, info)

    @field_validator("params", "call")
    @classmethod
    def _arguments_fit(cls, given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        folder = (info.context or {}).get("folder")
        if folder is None or "target" not in info.data:
            return given
        method, n_own = ("__init__", 2) if info.field_name == "params" else ("__call__", 3)
        faults = check_arguments(locate(info.data["target"], folder), given, method, n_own)
        if faults:
            raise Faults([((), text) for text in faults])
        return given


class Schedule(_Section):
    """``schedule: pull`` is short for ``schedule: {policy: pull}``."""

    policy: str = "measured"
    """How items are dealt to devices: measured, pull, pull:4, guided, factoring, static, ..."""

    @field_validator("policy")
    @classmethod
    def _policy_is_known(cls, policy: str) -> str:
        from evenload.balance.policy import policy_from_name

        try:
            policy_from_name(policy)
        except ConfigError as error:
            raise ValueError(one_line(error)) from error
        return policy


class Errors(_Section):
    """What becomes of items that fail."""

    on_error: Literal["record", "stop"] = "record"
    """record: note it and go on; stop: note it and deal no more items."""
    retries: int = Field(default=0, ge=0, le=100)
    """How often a failed item is tried again, with the same seed."""
    max_error_rate: float = Field(default=1.0, ge=0, le=1)
    """Deal no more items when more than this share of all items failed."""


class Report(_Section):
    """What is written beside the results."""

    html: bool = True
    """Write report.html."""
    trace: bool = True
    """Write trace.json, for Perfetto."""
    keep_inputs: bool = False
    """Copy each input file into the run folder, so that the report can show before and after."""
    headline: str | None = None
    """file.py:function that makes the figures of the run from the rows of results.jsonl."""

    @field_validator("headline")
    @classmethod
    def _headline_is_there(cls, headline: str | None, info: ValidationInfo) -> str | None:
        return headline if headline is None else _located(headline, info)


class JobSpec(_Section):
    """A whole job file."""

    version: Literal[1]
    job: Job
    devices: Devices = Devices()
    stages: tuple[StageSpec, ...]
    """Run one after the other, each over all devices."""
    schedule: Schedule = Schedule()
    errors: Errors = Errors()
    report: Report = Report()

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
                    ((number, "name"), f"stages[{names[stage.name]}] is called {stage.name!r} already")
                )
            names.setdefault(stage.name, number)
            for output in stage.outputs:
                if output in outputs:
                    text = f"{output!r} is an output of stage {outputs[output]!r} already"
                    faults.append(((number, "outputs", output), text))
                outputs.setdefault(output, stage.name)
        if faults:
            raise Faults(faults)
        return stages


def _located(target: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get("folder")
    if folder is not None:
        try:
            locate(target, folder)
        except EvenloadError as error:
            raise ValueError(one_line(error)) from error
    return target
