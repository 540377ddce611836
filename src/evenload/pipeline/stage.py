"""What a stage is, what it is told, and the worker that runs one.

A stage is a plain class, found by the ``target`` of the job file; it needs no base:

    class Brighten:
        def __init__(self, context, *, by=0.1): ...        # once per worker: load the model here
        def __call__(self, inputs, item): ...              # once per item; returns a dict of outputs
        def close(self): ...                               # optional, when the worker ends
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from evenload.errors import ConfigError
from evenload.pipeline.artifacts import FILE_TYPES, encode_artifact, file_name, write_atomically
from evenload.pipeline.target import Target, load_target

__all__ = ["Item", "Stage", "StageContext", "StageRunner", "StageWorker"]

_INTEGERS_END = 10**4299  # with more digits no reader of JSON in Python takes it
_PLAIN = (str, int, float, bool, type(None))
_VALUE_TYPES = {"number": (int, float), "text": (str,), "boolean": (bool,)}


@dataclass(frozen=True, slots=True)
class StageContext:
    """What a stage's constructor gets first.

    ``device`` is what this worker computes on (``device.torch`` is its name for torch), ``folder`` the folder
    of the job file, to which relative paths in ``params`` belong.
    """

    stage: str
    device: Any
    folder: Path
    seed: int = 0

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
class StageWorker:
    """All that a worker must know to run one stage; small, and sent to each worker once."""

    stage: str
    target: Target
    folder: Path
    run_folder: Path
    params: Mapping[str, Any] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    retries: int = 0


class StageRunner:
    """One stage on one device: calls it, saves its files, hands back what is small."""

    def __init__(self, worker: StageWorker, device: Any):
        """Constructs the stage on ``device``; raises what its constructor raises."""
        self.worker = worker
        stage_class = load_target(worker.target)
        if not isinstance(stage_class, type):
            raise ConfigError(
                f"{worker.target.name} in {worker.target.module} is not a class",
                hint="a stage is a class with __call__(self, inputs, item)",
            )
        if stage_class.__init__ is object.__init__:
            self._stage: Any = stage_class()
        else:
            context = StageContext(worker.stage, device, worker.folder, worker.seed)
            self._stage = stage_class(context, **worker.params)

    def __call__(self, task: tuple[Mapping[str, Any], Item]) -> tuple[int, dict[str, Any]]:
        """The item's index and its outputs; files are on disk, and stand as relative paths."""
        inputs, item = task
        for attempt in range(self.worker.retries):
            try:
                return item.index, self._outputs(inputs, item)
            except Exception:  # what it lacks may come back: a server, a file, memory
                time.sleep(min(0.1 * 2**attempt, 5.0))
        return item.index, self._outputs(inputs, item)

    def close(self) -> None:
        close = getattr(self._stage, "close", None)
        if close is not None:
            close()

    def _outputs(self, inputs: Mapping[str, Any], item: Item) -> dict[str, Any]:
        outputs = self._stage(inputs, item, **self.worker.call)
        declared = self.worker.outputs
        if not isinstance(outputs, Mapping):
            raise self._refused(f"returned {type(outputs).__name__}", "return a dict of outputs by name")
        if missing := sorted(declared.keys() - outputs.keys()):
            raise self._refused(f"did not return {', '.join(missing)}", "return every declared output")
        if taken := sorted(inputs.keys() & outputs.keys()):
            raise self._refused(
                f"returned {', '.join(taken)}, which the item has already", "rename the output"
            )
        return {name: self._kept(name, value, item) for name, value in outputs.items()}

    def _kept(self, name: str, value: Any, item: Item) -> Any:
        is_file = self.worker.outputs.get(name) in FILE_TYPES
        return self._written(name, value, item) if is_file else self._plain(name, value)

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

    def _written(self, name: str, value: Any, item: Item) -> str:
        declared = self.worker.outputs
        n_files = sum(file_type in FILE_TYPES for file_type in declared.values())
        suffix = f".{declared[name]}" if n_files == 1 else f".{name}.{declared[name]}"
        relative = f"outputs/{self.worker.stage}/{file_name(item.id, suffix)}"
        write_atomically(self.worker.run_folder / relative, encode_artifact(value, declared[name]))
        return relative

    def _refused(self, what: str, hint: str) -> ConfigError:
        return ConfigError(f"stage {self.worker.stage!r} {what}", hint=hint)
