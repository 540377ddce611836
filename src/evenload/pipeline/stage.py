"""Stages: what a stage's class is given, and the runner that calls it in a worker.

A stage is a plain class, named by ``target`` in the job file; it needs no base class:

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
    """The place of a stage's weights and what they are loaded as; all parts if ``components`` is None."""

    path: str
    dtype: str = "auto"
    components: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class StageContext:
    """The first argument of a stage's constructor: where the stage runs, and what it is to load.

    device       the device of this worker; ``device.torch`` is its name for torch
    folder       the folder of the job file, to which relative paths in ``params`` belong
    model        the job file's ``model`` of this stage: path, dtype, components; None if it has none
    fit          how the model is to be held on the devices
    n_devices    number of devices of this worker; ``torch_devices`` names them
    may_use_cpu  False if the CPU was not asked for, where a large model would take hours
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
        """Names of this worker's devices for torch, counted from 0, as the worker sees no other devices."""
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
    """One item of a job: its position, its id, its seed and its group."""

    index: int
    id: str
    seed: int = 0
    group: str | None = None

    def rng(self) -> Any:
        """Return a NumPy generator with the item's seed."""
        import numpy as np

        return np.random.default_rng(self.seed)

    def generator(self) -> Any:
        """Return a torch generator with the item's seed, on the CPU: equal numbers for every device."""
        import torch

        return torch.Generator().manual_seed(self.seed)


@runtime_checkable
class Stage(Protocol):
    """A stage's class for type checkers: called with an item's values so far, returns its outputs by name."""

    def __call__(self, inputs: Mapping[str, Any], item: Item) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class StageSetup:
    """The setup of one stage, sent to each worker once.

    target           the stage's class
    folder           the folder of the job file; ``run_folder``: that of the run
    params, call     arguments of the constructor, and of each call
    outputs          type of each declared output, by name
    retries          further attempts at an item that failed
    python           interpreter of the stage's own environment; None for this one
    may_change_bits  results of a batch need not equal those of its items one by one
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
    """The result of a stage for one item.

    outputs   by name; of a file its path relative to the run folder
    files     ``{output: [bytes, digest]}`` of outputs that are files
    contents  path and content of each file that is not on disk yet
    """

    outputs: dict[str, Any]
    files: dict[str, list]
    contents: list[tuple[Path, bytes]]


class StageRunner:
    """A stage in a worker: constructs it, calls it, and checks and encodes its outputs."""

    def __init__(self, setup: StageSetup, device: Any, fit: Fit = WHOLE, n_devices: int = 1):
        """Construct the stage on ``device``; raises what its constructor raises."""
        self.setup = setup
        stage_class = load_target(setup.target)
        if not isinstance(stage_class, type):
            raise ConfigError(
                f"{setup.target.name} in {setup.target.module} is not a class",
                hint="a stage is a class with __call__(self, inputs, item); a function: kind: function",
            )
        if stage_class.__init__ is object.__init__:
            self._stage: Any = stage_class()
        else:
            context = StageContext(
                setup.stage, device, setup.folder, setup.seed, setup.model, fit, n_devices,
                setup.may_use_cpu,
            )  # fmt: skip
            self._stage = stage_class(context, **setup.params)

    def lane(self) -> "StageRunner | None":
        """Return a runner for one more item at the same time; None if the stage takes one at a time."""
        make = getattr(self._stage, "lane", None)
        if make is None:
            return None
        twin = object.__new__(StageRunner)
        twin.setup, twin._stage = self.setup, make()
        return twin

    @property
    def stage(self) -> Any:
        """The user's object."""
        return self._stage

    @property
    def can_batch(self) -> bool:
        """Whether the stage has a method ``batch``, which takes several items in one call."""
        return callable(getattr(self._stage, "batch", None))

    def call(self, inputs: Mapping[str, Any], item: Item, place: str = "") -> StageOutput:
        """Call the stage for an item. ``place`` comes before the item's id in the names of files.

        A failed call is repeated as often as the setup allows, unless memory ran out.
        """
        for attempt in range(self.setup.retries):
            try:
                return self._checked(self._stage(inputs, item, **self.setup.call), inputs, item, place)
            except Exception as error:
                if is_memory_error(error):
                    raise
                # What was missing may come back: a server, a file.
                time.sleep(min(0.1 * 2**attempt, 5.0))
        return self._checked(self._stage(inputs, item, **self.setup.call), inputs, item, place)

    def call_batch(self, calls: Sequence[tuple[Mapping[str, Any], Item, str]]) -> list[StageOutput]:
        """Call the stage's ``batch`` for several items: ``(values, item, place)`` of each."""
        inputs, items = [call[0] for call in calls], [call[1] for call in calls]
        outputs = list(self._stage.batch(inputs, items, **self.setup.call))
        if len(outputs) != len(calls):
            raise self._refused(
                f"returned {len(outputs)} outputs of a batch of {len(calls)}", "return one dict for each item"
            )
        return [self._checked(one, *call) for one, call in zip(outputs, calls, strict=True)]

    def run(self, inputs: Mapping[str, Any], item: Item, place: str = "") -> tuple[dict[str, Any], dict]:
        """Call the stage and save its files; returns outputs and ``{output: [bytes, digest]}``."""
        made = self.call(inputs, item, place)
        for path, content in made.contents:
            write_atomically(path, content)
        return made.outputs, made.files

    def __call__(self, task: tuple[Mapping[str, Any], Item]) -> tuple[int, dict[str, Any]]:
        """Run ``(values, item)``; returns the item's index and its outputs."""
        return task[1].index, self.run(*task)[0]

    def close(self) -> None:
        """Call the stage's ``close``, if it has one."""
        close = getattr(self._stage, "close", None)
        if close is not None:
            close()

    def _checked(self, outputs: Any, inputs: Mapping[str, Any], item: Item, place: str) -> StageOutput:
        declared = self.setup.outputs
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
                made.contents.append((self.setup.run_folder / path, content))
            else:
                made.outputs[name] = self._plain(name, value)
        return made

    def _plain(self, name: str, value: Any) -> Any:
        """Return ``value`` as a number, text, boolean or None that JSON can hold; refuse anything else."""
        if getattr(value, "ndim", None) == 0:  # a NumPy or torch scalar
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if isinstance(value, int) and not -_INTEGERS_END < value < _INTEGERS_END:
            raise self._refused(
                f"returned {name!r}, an integer of more than 4299 digits", "return it as text"
            )
        kind = self.setup.outputs.get(name, "")
        is_number = not isinstance(value, bool)
        if not isinstance(value, _VALUE_TYPES.get(kind, _PLAIN)) or (kind == "number" and not is_number):
            found = f"{type(value).__name__}, not {kind}" if kind else f"of type {type(value).__name__}"
            hint = f"return a number or text, or declare it under outputs as {', '.join(FILE_TYPES)}"
            raise self._refused(f"returned {name!r} that is {found}", hint)
        return value

    def _encoded(self, name: str, value: Any, item: Item, place: str) -> tuple[str, bytes]:
        declared = self.setup.outputs
        n_files = sum(file_type in FILE_TYPES for file_type in declared.values())
        suffix = f".{declared[name]}" if n_files == 1 else f".{name}.{declared[name]}"
        relative = f"outputs/{self.setup.stage}/{place}{file_name(item.id, suffix)}"
        try:
            content = encode_artifact(value, declared[name])
        except ConfigError as error:
            what = f"returned {name!r} that is no {declared[name]}: {error.message}"
            raise self._refused(what, error.hint or "") from error
        return relative, content

    def _refused(self, what: str, hint: str) -> ConfigError:
        return ConfigError(f"stage {self.setup.stage!r} {what}", hint=hint)
