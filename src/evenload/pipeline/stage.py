"""What a stage is, what it is told, and the worker that runs one.

A stage is a plain class, found by the ``target`` of the job file; it needs no base:

    class Brighten:
        def __init__(self, context, *, by=0.1): ...        # once per worker: load the model here
        def __call__(self, inputs, item): ...              # once per item; returns a dict of outputs
        def batch(self, inputs, items): ...                # optional: several items; a list of dicts
        def close(self): ...                               # optional, when the worker ends
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from evenload.errors import ConfigError
from evenload.executor.task.failure import is_memory_error
from evenload.pipeline.artifacts import FILE_TYPES, digest_of, encode_artifact, file_name, write_atomically
from evenload.pipeline.plan import Fit
from evenload.pipeline.target import CodeTarget, load_target

__all__ = ["Item", "ModelFolder", "Stage", "StageContext", "StageOutput", "StageRunner", "StageSetup"]

_INTEGERS_END = 10**4299  # with more digits no reader of JSON in Python takes it
WHOLE = Fit()
_PLAIN = (str, int, float, bool, type(None))
_VALUE_TYPES = {"number": (int, float), "text": (str,), "boolean": (bool,)}


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Where a stage's weights are and what they are loaded as. ``components``: parts of it, None for all."""

    path: str
    dtype: str = "auto"
    components: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class StageContext:
    """What a stage's constructor gets first.

    device       what this worker computes on; ``device.torch`` is its name for torch
    folder       the folder of the job file, to which relative paths in ``params`` belong
    model        the job file's ``model`` of this stage: path, dtype, components; None if it has none
    fit          how the model is to be held, ``plan.Fit``
    n_devices    how many devices this worker has; ``torch_devices`` names them
    may_use_cpu  False: nobody asked for the CPU, and a large model there would be a mistake
    """

    stage: str
    device: Any
    folder: Path
    seed: int = 0
    model: "ModelFolder | None" = None
    fit: Fit = WHOLE
    n_devices: int = 1
    may_use_cpu: bool = True

    @property
    def torch_devices(self) -> tuple[str, ...]:
        """Names for torch of all devices of this worker. It sees no others, so that they count from 0."""
        first = self.device.torch
        if self.n_devices == 1 or not first.startswith("cuda"):
            return (first,) * self.n_devices
        return tuple(f"cuda:{number}" for number in range(self.n_devices))

    @property
    def model_dtype(self) -> str:
        return self.model.dtype if self.model is not None else "auto"

    def path(self, text: str) -> Path:
        """``text`` as a path; a relative one belongs to the job file's folder."""
        return self.folder / text


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to work on: its position, its id, its seed and its group."""

    index: int
    id: str
    seed: int = 0
    group: str | None = None

    def rng(self) -> Any:
        """A NumPy generator with the item's seed."""
        import numpy as np

        return np.random.default_rng(self.seed)

    def generator(self) -> Any:
        """A torch generator with the item's seed, on the CPU: the same numbers on every kind of device."""
        import torch

        return torch.Generator().manual_seed(self.seed)


@runtime_checkable
class Stage(Protocol):
    """A stage, seen by a type checker: called with the item's values so far, returns its outputs by name."""

    def __call__(self, inputs: Mapping[str, Any], item: Item) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class StageSetup:
    """All that a worker must know to run one stage; small, and sent to each worker once.

    ``may_change_bits``: results of a batch need not be those of the items by themselves.
    """

    stage: str
    target: CodeTarget
    folder: Path
    run_folder: Path
    params: Mapping[str, Any] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    retries: int = 0
    model: ModelFolder | None = None
    may_use_cpu: bool = True
    python: str | None = None
    may_change_bits: bool = False


class StageOutput(NamedTuple):
    """What came of an item: outputs, ``{output: [bytes, digest]}`` of those that are files, and the files.

    Files stand in ``outputs`` as paths relative to the run folder; they are not on disk yet.
    """

    outputs: dict[str, Any]
    files: dict[str, list]
    contents: list[tuple[Path, bytes]]


class StageRunner:
    """One stage on one worker: calls it, hands back what is small, and files to be saved."""

    def __init__(self, worker: StageSetup, device: Any, fit: Fit = WHOLE, n_devices: int = 1):
        """Constructs the stage on ``device``; raises what its constructor raises."""
        self.worker = worker
        stage_class = load_target(worker.target)
        if not isinstance(stage_class, type):
            raise ConfigError(
                f"{worker.target.name} in {worker.target.module} is not a class",
                hint="a stage is a class with __call__(self, inputs, item); a function: kind: function",
            )
        if stage_class.__init__ is object.__init__:
            self._stage: Any = stage_class()
        else:
            context = StageContext(
                worker.stage, device, worker.folder, worker.seed, worker.model, fit, n_devices,
                worker.may_use_cpu,
            )  # fmt: skip
            self._stage = stage_class(context, **worker.params)

    def lane(self) -> "StageRunner | None":
        """A runner for one more item at the same time; None if the stage takes one at a time."""
        make = getattr(self._stage, "lane", None)
        if make is None:
            return None
        twin = object.__new__(StageRunner)
        twin.worker, twin._stage = self.worker, make()
        return twin

    @property
    def stage(self) -> Any:
        """The stage itself."""
        return self._stage

    @property
    def can_batch(self) -> bool:
        """Does the stage take several items in one call? Then it has a method ``batch``."""
        return callable(getattr(self._stage, "batch", None))

    def make(self, inputs: Mapping[str, Any], item: Item, place: str = "") -> StageOutput:
        """The item's outputs. ``place`` comes before the item's id in the names of files."""
        for attempt in range(self.worker.retries):
            try:
                return self._made(self._stage(inputs, item, **self.worker.call), inputs, item, place)
            except Exception as error:
                if is_memory_error(error):
                    raise
                # What it lacks may come back: a server, a file.
                time.sleep(min(0.1 * 2**attempt, 5.0))
        return self._made(self._stage(inputs, item, **self.worker.call), inputs, item, place)

    def make_batch(self, jobs: Sequence[tuple[Mapping[str, Any], Item, str]]) -> list[StageOutput]:
        """The outputs of several items from one call of the stage's ``batch``."""
        inputs, items = [job[0] for job in jobs], [job[1] for job in jobs]
        outputs = list(self._stage.batch(inputs, items, **self.worker.call))
        if len(outputs) != len(jobs):
            raise self._refused(
                f"returned {len(outputs)} outputs of a batch of {len(jobs)}", "return one dict for each item"
            )
        return [self._made(one, *job) for one, job in zip(outputs, jobs, strict=True)]

    def run(self, inputs: Mapping[str, Any], item: Item, place: str = "") -> tuple[dict[str, Any], dict]:
        """The item's outputs and ``{output: [bytes, digest]}`` of its files, which are on disk then."""
        made = self.make(inputs, item, place)
        for path, content in made.contents:
            write_atomically(path, content)
        return made.outputs, made.files

    def __call__(self, task: tuple[Mapping[str, Any], Item]) -> tuple[int, dict[str, Any]]:
        """The item's index and its outputs."""
        return task[1].index, self.run(*task)[0]

    def close(self) -> None:
        close = getattr(self._stage, "close", None)
        if close is not None:
            close()

    def _made(self, outputs: Any, inputs: Mapping[str, Any], item: Item, place: str) -> StageOutput:
        declared = self.worker.outputs
        if not isinstance(outputs, Mapping):
            raise self._refused(f"returned {type(outputs).__name__}", "return a dict of outputs by name")
        if missing := sorted(declared.keys() - outputs.keys()):
            raise self._refused(f"did not return {', '.join(missing)}", "return every declared output")
        if taken := sorted(inputs.keys() & outputs.keys()):
            raise self._refused(
                f"returned {', '.join(taken)}, which the item has already", "rename the output"
            )
        made = StageOutput({}, {}, [])
        for name, value in outputs.items():
            if declared.get(name) in FILE_TYPES:
                path, content = self._encoded(name, value, item, place)
                made.outputs[name] = path
                made.files[name] = [len(content), digest_of(content)]
                made.contents.append((self.worker.run_folder / path, content))
            else:
                made.outputs[name] = self._plain(name, value)
        return made

    def _plain(self, name: str, value: Any) -> Any:
        """A number, text or None that JSON can hold."""
        if getattr(value, "ndim", None) == 0:  # a NumPy or torch scalar
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if isinstance(value, int) and not -_INTEGERS_END < value < _INTEGERS_END:
            raise self._refused(
                f"returned {name!r}, an integer of more than 4299 digits", "return it as text"
            )
        kind = self.worker.outputs.get(name, "")
        is_number = not isinstance(value, bool)
        if not isinstance(value, _VALUE_TYPES.get(kind, _PLAIN)) or (kind == "number" and not is_number):
            found = f"{type(value).__name__}, not {kind}" if kind else f"of type {type(value).__name__}"
            hint = f"return a number or text, or declare it under outputs as {', '.join(FILE_TYPES)}"
            raise self._refused(f"returned {name!r} that is {found}", hint)
        return value

    def _encoded(self, name: str, value: Any, item: Item, place: str) -> tuple[str, bytes]:
        declared = self.worker.outputs
        n_files = sum(file_type in FILE_TYPES for file_type in declared.values())
        suffix = f".{declared[name]}" if n_files == 1 else f".{name}.{declared[name]}"
        relative = f"outputs/{self.worker.stage}/{place}{file_name(item.id, suffix)}"
        try:
            content = encode_artifact(value, declared[name])
        except ConfigError as error:
            what = f"returned {name!r} that is no {declared[name]}: {error.message}"
            raise self._refused(what, error.hint or "") from error
        return relative, content

    def _refused(self, what: str, hint: str) -> ConfigError:
        return ConfigError(f"stage {self.worker.stage!r} {what}", hint=hint)
