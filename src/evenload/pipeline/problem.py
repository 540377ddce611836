"""The planner's problem: stages with their times and weights, devices with their speed and free memory.

Plain values, wherever they come from: configs, a probe, an earlier run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from evenload.balance.policy import Policy
from evenload.errors import ConfigError
from evenload.pipeline.stage_graph import StageGraph, chain

# Ways to hold a model that change its results, and the bytes of its weights then, relative to those now.
LOSSY = {"fp8": 0.5, "nf4": 0.28125}
_DEFAULT_FITS = ("whole", "layer_split", "resident_stream")


@dataclass(frozen=True, slots=True)
class Weights:
    """The bytes of a model: ``n_blocks`` equal blocks that can be spread over devices, and ``rest_bytes``."""

    rest_bytes: int
    block_bytes: int = 0
    n_blocks: int = 0

    @property
    def bytes(self) -> int:
        return self.rest_bytes + self.n_blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A stage to plan.

    item_s            seconds for an item on a device of speed 1, model whole
    load_s            seconds until a whole model is ready on a device
    weights           None if not known: then the stage counts as fitting everywhere
    activation_bytes  while one item is computed, beside the weights
    waiting_bytes     for each further item in flight, while it waits
    n_passes          forwards through the blocks for one item (steps, twice that with guidance)
    n_tasks           how often an item goes through the stage; more than 1 for samples
    fits              ways to hold the model that may be used
    in_flight         items at once that wait on a device
    """

    name: str
    item_s: float
    load_s: float = 0.0
    weights: Weights | None = None
    activation_bytes: int = 0
    waiting_bytes: int = 0
    n_passes: int = 1
    n_tasks: int = 1
    fits: tuple[str, ...] = _DEFAULT_FITS
    in_flight: int = 1


@dataclass(frozen=True, slots=True)
class PlanDevice:
    """A device to plan for.

    speed           relative to the device that the stages' times belong to
    free_bytes      that the job may use: free now, less the reserve, at most the limit; None if not known
    upload_bytes_s  from pinned host memory to the device, for weights that are streamed
    holds           stages whose model is loaded already
    ready_s         seconds until it is free to begin
    returns         stages whose model is parked in host memory, and the seconds to bring it back
    barred          stages that may not run on it
    """

    id: str
    speed: float = 1.0
    free_bytes: int | None = None
    upload_bytes_s: float = 25e9
    holds: tuple[str, ...] = ()
    ready_s: float = 0.0
    returns: tuple[tuple[str, float], ...] = ()
    barred: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Problem:
    """A job to plan, on the devices there are.

    host_bytes     host memory for streamed weights; None if not known
    context_bytes  bytes that the framework takes on each device before any weight
    in_flight      items at once on devices that share layers; None: one for each device
    done           tasks done already of each stage
    needs          of each stage, the stages it takes from, by number; () for a chain
    policy         by which the run deals tasks to devices, or its name
    """

    stages: tuple[PlanStage, ...]
    devices: tuple[PlanDevice, ...]
    n_items: int
    host_bytes: int | None = None
    context_bytes: int = 0
    in_flight: int | None = None
    done: tuple[int, ...] = field(default=())
    needs: tuple[tuple[int, ...], ...] = ()
    policy: Policy | str = "measured"

    def __post_init__(self) -> None:
        """Raise ConfigError on what cannot be planned: no stage or device, equal names, wrong numbers."""
        if not self.stages or not self.devices:
            raise ConfigError("there is nothing to plan", hint="give at least one stage and one device")
        named = (("stage", [s.name for s in self.stages]), ("device", [d.id for d in self.devices]))
        for what, names in named:
            if len(set(names)) != len(names):
                raise ConfigError(f"two {what}s have the same name: {_doubled(names)}", hint="rename one")
        for stage in self.stages:
            if not (0 < stage.item_s < math.inf and 0 <= stage.load_s < math.inf):
                said = f"stage {stage.name}: {stage.item_s} s an item, {stage.load_s} s to load"
                raise ConfigError(said, hint=_POSITIVE)
        for device in self.devices:
            if not (0 < device.speed < math.inf and 0 <= device.ready_s < math.inf):
                said = f"device {device.id}: speed {device.speed}, ready {device.ready_s} s"
                raise ConfigError(said, hint=_POSITIVE)
        if self.done and len(self.done) != len(self.stages):
            raise ConfigError(f"{len(self.done)} counts of done tasks for {len(self.stages)} stages")
        needs = self.needs
        if needs and (
            len(needs) != len(self.stages) or any(n >= s for s, some in enumerate(needs) for n in some)
        ):
            raise ConfigError(f"needs {list(needs)}", hint="give a list for each stage, of stages before it")

    @property
    def graph(self) -> StageGraph:
        return StageGraph(self.needs) if self.needs else chain(len(self.stages))

    def n_left(self, number: int) -> int:
        """Return the tasks of stage ``number`` that are not done."""
        done = self.done[number] if self.done else 0
        return self.n_items * self.stages[number].n_tasks - done


_POSITIVE = "give numbers above 0"


def _doubled(names: Sequence[str]) -> str:
    return next(name for name in names if names.count(name) > 1)
