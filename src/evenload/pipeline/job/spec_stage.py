"""One entry of ``stages`` in a job file. Needs pydantic (extra ``yaml``)."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    StrictInt,
    StrictStr,
    ValidationInfo,
    WithJsonSchema,
    WrapValidator,
    field_serializer,
    field_validator,
    model_validator,
)

from evenload.devices.selection import check_spec
from evenload.errors import did_you_mean, quoted
from evenload.pipeline.artifacts import output_path, part_id
from evenload.pipeline.file_types import is_file_type
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES, find_builtin_stage
from evenload.pipeline.job.expression import Condition, parse_condition
from evenload.pipeline.job.section import Faults, Name, Section, Size, job_folder, located
from evenload.pipeline.model.model_size import find_model, is_hub_name
from evenload.pipeline.target import LiveCode, check_arguments, locate_target

_OUTPUT_TYPES = (
    "png", "jpg", "webp", "wav", "npy", "txt", "safetensors", "bytes", "file",
    "number", "text", "boolean", "json",
)  # fmt: skip
_OTHER_FILE = r"file\.[a-z0-9]{1,12}"


def _output_type(kind: str) -> str:
    if kind in _OUTPUT_TYPES or re.fullmatch(_OTHER_FILE, kind):
        return kind
    nearest = did_you_mean(kind, _OUTPUT_TYPES)
    raise ValueError(f"{quoted(kind)} is not known; {nearest}use {', '.join(_OUTPUT_TYPES)} or file.mp4")


OutputType = Annotated[
    str,
    AfterValidator(_output_type),
    WithJsonSchema(
        {"anyOf": [{"enum": [*_OUTPUT_TYPES]}, {"type": "string", "pattern": f"^{_OTHER_FILE}$"}]}
    ),
]
FitName = Literal["whole", "layer_split", "resident_stream", "fp8", "nf4"]
Names = Annotated[
    tuple[Name, ...],
    BeforeValidator(
        lambda given: [given] if isinstance(given, str) else given,
        json_schema_input_type=Name | tuple[Name, ...],
    ),
]
if TYPE_CHECKING:
    Target = str | LiveCode
else:  # no union for pydantic, which would tell each fault twice
    Target = Annotated[
        str,
        WrapValidator(lambda given, check: given if isinstance(given, LiveCode) else check(given)),
        PlainSerializer(lambda code, asked: str(code) if asked.mode == "json" else code, return_type=Any),
    ]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ModelSection(Section):
    """The section ``model`` of a stage: a folder of weights as diffusers and transformers save it."""

    path: str = Field(min_length=1)
    """The model folder, relative to the job file, or the name of a model that the hub's client downloaded."""
    config: str | None = None
    """A folder with the same config files and no weights, to plan with where the model is not."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """What the weights are loaded as; auto takes what the files say."""
    components: tuple[str, ...] | None = None
    """Parts of a pipeline that are loaded (text_encoder, vae, ...); by default what the kind needs."""


class EstimateSection(Section):
    """The section ``estimate`` of a stage: what is known before it ran; measured times take precedence."""

    item_s: Positive | None = None
    """Seconds for one item."""
    load_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds to load the model."""
    flop: Positive | None = None
    """Operations for one item, such as 2.5e12; with them the report knows how efficient the devices were."""
    bytes: Positive | None = None
    """Bytes that one item moves in the device's memory; used as flop is."""
    activation: Size | None = None
    """Memory for one item beside the weights, such as 2.5GiB."""
    artifact: Size | None = None
    """What one item hands to the next stage."""
    parts: int | None = Field(default=None, ge=1, le=10_000)
    """How many parts an item becomes, of a stage with expand."""
    device: str | None = None
    """Where these were measured (h100, rtx4090, ...); by default the fastest device of the run."""


class BestSection(Section):
    """The section ``best`` of a stage: only the best of an item's samples go on after it."""

    by: Name
    """The output that says how good a sample is."""
    lowest: bool = False
    """The smallest is the best."""
    n: int = Field(default=1, ge=1)
    """How many of an item's samples go on."""


class GatherSection(Section):
    """The section ``gather`` of a stage; ``gather: pages`` is short for ``gather: {by: pages}``."""

    by: Name
    """Which parts are taken together: what an earlier stage names in ``expand``."""
    allow_failed: bool = False
    """Parts that failed are left out; otherwise one that failed fails the item."""


Gather = Annotated[
    GatherSection,
    BeforeValidator(
        lambda given: {"by": given} if isinstance(given, str) else given,
        json_schema_input_type=Name | GatherSection,
    ),
]


class StageSpec(Section):
    """One entry of ``stages``: a step that items go through."""

    name: Name
    kind: str | None = None
    """A stage that ships with evenload (image_edit, vlm_score, ...), or give target."""
    target: Target = Field(default="", validate_default=True)
    """file.py:Class, relative to the job file, or module:Class."""
    needs: Names | None = None
    """The stages whose outputs it takes, such as [encode, mask], each of them earlier in the file; [] for
    none. It runs beside those that it does not need. By default the one before it."""
    expand: Name | None = None
    """The output that is a list of dicts, such as pages: what needs this stage runs once for each of them."""
    gather: Gather | None = None
    """The parts that it takes together again: it gets a list of their values under this name."""
    python: str | None = None
    """The interpreter of the stage's own environment, such as /venvs/score/bin/python."""
    model: ModelSection | None = None
    devices: StrictStr | StrictInt | None = None
    """Those of the job's devices that the stage may run on: cuda:0 | cuda:0,1 | cpu | 2, or east/cuda:0 of a
    cluster; by default all."""
    params: dict[str, Any] = Field(default_factory=dict, validate_default=True)
    """Given once to the class, by name."""
    call: dict[str, Any] = Field(default_factory=dict, validate_default=True)
    """Given to each call, by name."""
    outputs: dict[Name, OutputType] = Field(default_factory=dict)
    """Saved as files (png, jpg, webp, wav, npy, txt, safetensors, bytes, file, file.mp4), or values of a type
    that is checked (number, text, boolean, json)."""
    fit: tuple[FitName, ...] = ("whole", "layer_split", "resident_stream")
    """Ways to hold the model, tried in this order; fp8 and nf4 change results, see devices.allow_lossy."""
    batch: int = Field(default=1, ge=1)
    """Most items in one call, where the stage takes several (it has a method batch) and is repeatable."""
    in_flight: int | None = Field(default=None, ge=1, le=4096)
    """Most items under way at once in each worker, where the stage is async; by default 1, and for kind
    openai its params.concurrency, or 8."""
    max_wait_s: float = Field(default=0.0, ge=0, le=3600, allow_inf_nan=False)
    """Seconds that the first item of a batch waits for others, while more may come; by default a free worker
    takes what is there."""
    batch_key: Names | None = None
    """Columns or outputs, such as [width, height], that are equal in all items of a batch; beside what the
    class's own method batch_key says."""
    batch_changes_bits: Literal["refuse", "allow"] = "refuse"
    """refuse: each worker's first batch of a key is compared with single items, and is the last if bytes
    differ."""
    when: str | None = None
    """Only items for which this holds enter the stage, such as score >= 7; the others end here."""
    samples: int = Field(default=1, ge=1, le=10_000)
    """How often each item goes through this stage, each time with a seed of its own."""
    best: BestSection | None = None
    timeout_s: Positive | None = None
    """Seconds that an item may take in this stage, retries included; then it fails, and its worker is
    replaced. By default errors.timeout_s."""
    load_timeout_s: Positive | None = None
    """Seconds that loading the model may take; then another worker tries, and if that takes too long as
    well, the device takes no part in the stage. By default errors.load_timeout_s."""
    repeatable: bool = True
    """False if no item may run twice, not even to save time: an idle device runs no copy of a late item."""
    estimate: EstimateSection = EstimateSection()

    @property
    def code(self) -> list[tuple[tuple[str, ...], Target]]:
        """The user's code and its places: the target, or what ``params`` of a shipped stage name."""
        kind = BUILTIN_STAGES.get(self.kind or "")
        if kind is None:
            return [(("target",), self.target)]
        named = [(("params", name), self.params.get(name)) for name in kind.code]
        return [(place, code) for place, code in named if isinstance(code, str | LiveCode)]

    @property
    def live(self) -> list[tuple[tuple[str, ...], LiveCode]]:
        """The entries of ``code`` that no file holds."""
        return [(place, code) for place, code in self.code if isinstance(code, LiveCode)]

    @property
    def file_outputs(self) -> list[str]:
        """Names of the outputs that are files."""
        return [name for name, kind in self.outputs.items() if is_file_type(kind)]

    @property
    def n_in_flight(self) -> int:
        """Most items that wait at once in a worker, as far as it is known before the stage is loaded."""
        asked = self.in_flight
        if asked is None and self.kind == "openai":
            asked = self.params.get("concurrency", 8)
        return max(1, asked) if isinstance(asked, int) and self.python is None else 1

    @property
    def n_together(self) -> int:
        """Most items whose values are in memory at once."""
        return max(self.batch, self.n_in_flight)

    def place_of(self, output: str, item: str, folder: str = "") -> str | None:
        """Where an output of an item is saved, relative to the run folder; None if it is no file.

        output  of a part that the stage made: its key, a dot, and the name
        folder  comes before the item's name
        """
        if self.expand is not None and output not in self.outputs:
            key, _, output = output.partition(".")
            item = part_id(item, self.expand, key)
        is_file = output in self.file_outputs
        return output_path(self.name, self.outputs, output, item, folder) if is_file else None

    @property
    def condition(self) -> Condition | None:
        """``when``, parsed; None without one."""
        return None if self.when is None else parse_condition(self.when)

    @field_validator("kind")
    @classmethod
    def _kind_is_known(cls, kind: str | None) -> str | None:
        if kind is not None:
            find_builtin_stage(kind)
        return kind

    @field_serializer("params", when_used="json")
    def _params_as_text(self, params: dict[str, Any]) -> dict[str, Any]:
        return {name: str(one) if isinstance(one, LiveCode) else one for name, one in params.items()}

    @field_validator("target")
    @classmethod
    def _target_is_there(cls, target: Target, info: ValidationInfo) -> Target:
        """Fill in the target of ``kind``, and check that the target is there."""
        kind = BUILTIN_STAGES.get(info.data.get("kind") or "")
        if kind is None and not target and "kind" in info.data:
            raise ValueError("is required and not given (or give kind)")
        if kind is not None and target not in ("", kind.target):
            raise ValueError(f"give kind or target, not both; {info.data['kind']} is {kind.target}")
        target = kind.target if kind is not None else target
        return located(target, info) if target else target

    @field_validator("params", "call")
    @classmethod
    def _arguments_fit(cls, given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        folder = job_folder(info)
        if folder is None or not info.data.get("target"):
            return given
        method, n_own = ("__init__", 2) if info.field_name == "params" else ("__call__", 3)
        faults = check_arguments(locate_target(info.data["target"], folder), given, method, n_own)
        if faults:
            raise Faults([((), text) for text in faults])
        return given

    @field_validator("python")
    @classmethod
    def _python_is_there(cls, python: str | None, info: ValidationInfo) -> str | None:
        folder = job_folder(info)
        if folder is not None and python is not None and not (folder / python).is_file():
            raise ValueError(f"there is no interpreter {folder / python}; make the environment first")
        return python

    @field_validator("devices")
    @classmethod
    def _devices_are_written_well(cls, devices: str | int | None) -> str | int | None:
        if isinstance(devices, str):  # a term may name its machine: east/cuda:0
            check_spec(",".join(term.rpartition("/")[2] for term in devices.split(",")))
        elif devices is not None:
            check_spec(devices)
        return devices

    @field_validator("fit")
    @classmethod
    def _fits_differ(cls, fit: tuple[str, ...]) -> tuple[str, ...]:
        if not fit or len(set(fit)) != len(fit):
            raise ValueError("give each way at most once, and one at least")
        return fit

    @field_validator("when")
    @classmethod
    def _condition_parses(cls, when: str | None) -> str | None:
        return when if when is None else parse_condition(when).text

    @model_validator(mode="after")
    def _model_is_there(self, info: ValidationInfo) -> "StageSpec":
        folder, model = job_folder(info), self.model
        if folder is None or model is None:
            return self
        if model.config is not None and find_model(model.config, folder) is None:
            where = (folder / model.config).resolve()
            raise Faults([(("model", "config"), f"there is no folder {where}")])
        may_miss = model.config is not None or self.params.get("download") is True
        if not may_miss and find_model(model.path, folder) is None:
            said = f"there is no folder {(folder / model.path).resolve()}"
            is_local = (folder / model.path.partition("/")[0]).is_dir()
            if is_hub_name(model.path) and not is_local:
                said += f", and {model.path} is not among the downloaded models (hf download {model.path})"
            raise Faults([(("model", "path"), f"{said}; correct it, or download the model")])
        return self

    @model_validator(mode="after")
    def _python_finds_its_code(self) -> "StageSpec":
        if self.python is not None and self.live:
            text = "another interpreter imports its code: move it to a file, and import it from there"
            raise Faults([(("python",), text)])
        return self

    @model_validator(mode="after")
    def _kind_has_its_model(self) -> "StageSpec":
        if self.kind in BUILTIN_STAGES and BUILTIN_STAGES[self.kind].needs_model and self.model is None:
            raise Faults([(("model",), f"is required for kind {self.kind}: give at least {{path: ...}}")])
        return self


def sampled_stages(stages: Sequence[StageSpec]) -> set[int]:
    """Stages that an item's samples go through one by one."""
    sampled, is_open = set(), False
    for number, stage in enumerate(stages):
        is_open |= stage.samples > 1
        if is_open:
            sampled.add(number)
        if stage.best is not None:
            is_open = stage.best.n > 1 and is_open
    return sampled
