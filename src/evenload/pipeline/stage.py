"""Stages: what a stage's class is given, and what came of a call.

A stage is a plain class, named by ``target`` in the job file or given to ``Stage``; it needs no base class:

    class Brighten:
        def __init__(self, context, *, by=0.1): ...        # once per worker: load the model here
        def __call__(self, inputs, item): ...              # once per item; returns a dict of outputs. With
                                                           # ``async def`` many items wait at once, see
                                                           # ``in_flight`` of the job file
        def batch(self, inputs, items): ...                # optional: several items; a list of dicts, with an
                                                           # exception in the place of one that failed
        def batch_key(self, inputs, item): ...             # optional: what is equal in all items of a batch
        def close(self): ...                               # optional, when the worker ends; may be async
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from evenload.errors import ConfigError, quoted
from evenload.pipeline.plan import Fit
from evenload.pipeline.target import CodeTarget

WHOLE = Fit()


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
    shared       a folder that the run's workers on a machine share; ``pace-*.tmp`` there ends with the run
    """

    stage: str
    device: Any
    folder: Path
    seed: int = 0
    model: "ModelFolder | None" = None
    fit: Fit = WHOLE
    n_devices: int = 1
    may_use_cpu: bool = True
    shared: Path | None = None

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


class Stage:
    """A stage of a pipeline that is put together in Python.

        Stage(Brighten, params={"by": 0.2}, outputs={"bright": "png"})
        Stage(lambda row: row["n"] ** 2, name="square")
        Stage(kind="openai", name="ask", params={"url": "http://localhost:8000/v1", "prompt": "{text}"})

    code     a class as above; a function, async or not, of ``inputs, item`` or of ``inputs`` alone, which
             returns a dict of outputs or one value; or the text that is ``target`` in a job file
    options  the keys of an entry of ``stages`` in a job file, with the same meaning. By default ``name`` is
             that of the code. A function's one value is the output that is declared alone, or has the stage's
             name; its further arguments are in ``call``.
    Raises ConfigError if ``code`` is none of these, or is given beside ``kind`` or ``target``.
    """

    def __init__(self, code: Any = None, /, **options: Any):
        if code is not None and (also := sorted({"kind", "target"} & options.keys())):
            raise ConfigError(
                f"Stage({quoted(code)}) has {' and '.join(also)} as well", hint="give one of them alone"
            )
        is_bound = isinstance(getattr(code, "func", None), type)  # a partial of a class
        if is_bound or not (code is None or isinstance(code, str) or callable(code)):
            hint = "give a class, its arguments as params={...}; a function; or kind="
            raise ConfigError(f"{quoted(code)} is no stage", hint=hint)
        self.code, self.options = code, options


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
    expand           the output whose elements are saved one by one; "" for none
    sources          files of the stage's code and the digest of each; () if nobody looks at them
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
    sources: tuple[tuple[str, str], ...] = ()
    expand: str = ""


class StageOutput(NamedTuple):
    """The result of a stage for one item.

    outputs   by name; of a file its path relative to the run folder
    files     ``{output: [bytes, digest]}`` of outputs that are files
    contents  path and content of each file that is not on disk yet
    reads     what the stage has read for it, see ``stage_reads``
    """

    outputs: dict[str, Any]
    files: dict[str, list]
    contents: list[tuple[Path, bytes]]
    reads: tuple[str, ...] = ()
