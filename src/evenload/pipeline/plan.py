"""The plan of a job: which devices hold which stage, when, and how close to the best possible that comes.

    Plan ── phases ──► Phase ── units ──► Unit(devices, stage, fit)

A unit is a worker that holds a stage's model on one device, or spread over several, as its ``fit`` says.
Units of one phase on the same devices are held there together. Phases overlap: a device goes on to its unit
of the next phase as soon as this phase has nothing left for it, or its unit has done ``limit`` items. A
device without a unit in the first phase begins with its first unit at once. A unit over several devices
starts when all of them are free. A unit that the next phase names again, with the same devices and fit, stays
loaded.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from evenload._plain_text import seconds_text

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Fit:
    """A way for a unit to hold its model.

    name             whole | layer_split | resident_stream | fp8 | nf4
    in_flight        items at once, where layers are split over devices or the stage's items wait
    device2blocks    layer_split: how many blocks each of the unit's devices holds, in order
    resident_blocks  resident_stream: blocks that stay on the device; the others come from pinned host memory
    device2bytes     bytes that each of the unit's devices needs: weights, context and activations
    host_bytes       pinned host memory for blocks that are streamed
    """

    name: str = "whole"
    in_flight: int = 1
    device2blocks: tuple[int, ...] = ()
    resident_blocks: int | None = None
    device2bytes: tuple[int, ...] = ()
    host_bytes: int = 0

    @property
    def is_waiting(self) -> bool:
        """Whether items in flight wait, so that their worker can run and load other stages meanwhile."""
        return self.in_flight > 1 and self.name != "layer_split"

    @property
    def n_parallel(self) -> int:
        """Items that a plan has at once; of those that wait one, with its share of the seconds."""
        return 1 if self.is_waiting else self.in_flight

    def __str__(self) -> str:
        if self.name == "layer_split":
            blocks = "+".join(map(str, self.device2blocks))
            return f"layers split {blocks}, {self.in_flight} in flight"
        if self.name == "resident_stream":
            return f"{self.resident_blocks} blocks resident, the rest streamed"
        return f"{self.name}, {self.in_flight} in flight" if self.is_waiting else self.name


@dataclass(frozen=True, slots=True)
class Unit:
    """A stage held by a group of devices.

    n_items  items that the simulation gave to it: what to expect, not a quota
    limit    after so many items its devices go on to the next phase; None: when nothing is left
    """

    devices: tuple[str, ...]
    stage: str
    fit: Fit = Fit()
    n_items: int = 0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a plan: units that run at the same time, of one stage or several.

    ``stages`` are in the job's order; if there are several, items stream from each to the next.
    """

    units: tuple[Unit, ...]
    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimelineSlice:
    """A stretch of a device's time. ``kind``: load (the stage's model) | work (on ``n_items`` items)."""

    device: str
    stage: str
    kind: str
    start_s: float
    stop_s: float
    n_items: int = 0


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The bytes that a device needs in each phase, and those that the job may use; None where not known."""

    device: str
    free_bytes: int | None
    phase2bytes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """A way to run the job and its makespan; ``makespan_s`` is None if it cannot run: see ``why``."""

    mode: str
    label: str
    makespan_s: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision how a job will run, with the other ways that were tried.

    mode         single | data_parallel | model_parallel | stage_parallel | swap
    makespan_s   simulated seconds; None if the times of stages are not known
    bound_s      seconds that no plan on these devices can beat
    why          the reason for this one, in a sentence
    candidates   all that were tried, quickest first
    memory       bytes of each device in each phase
    slices       the simulated run, for a timeline
    facts        what is known of stages and devices, for the page and the JSON
    notes        what is assumed or estimated, one sentence each
    """

    mode: str
    phases: tuple[Phase, ...]
    makespan_s: float | None
    bound_s: float | None
    why: str
    candidates: tuple[CandidateResult, ...] = ()
    memory: tuple[DeviceMemory, ...] = ()
    slices: tuple[TimelineSlice, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def streamed_bytes(self) -> int:
        """Most bytes of host memory that are pinned at once for streamed blocks."""
        units = [sum(unit.fit.host_bytes for unit in phase.units) for phase in self.phases]
        return max(units, default=0)

    @property
    def ratio(self) -> float | None:
        """Makespan over bound: 1.0 is the best possible."""
        if self.makespan_s is None or not self.bound_s:
            return None
        return self.makespan_s / self.bound_s

    def _repr_html_(self) -> str:
        from evenload.notebook import gantt, page, table

        stages = {name: i for i, name in enumerate(dict.fromkeys(one.stage for one in self.slices))}
        rows: dict[str, list[tuple[float, float, int]]] = {}
        for one in self.slices:
            rows.setdefault(one.device, []).append((one.start_s, one.stop_s, stages[one.stage]))
        took = "" if self.makespan_s is None else f", {seconds_text(self.makespan_s, 4)}"
        ratio = "" if self.ratio is None else f", {self.ratio:.2f}x the least possible"
        tried = [[one.mode, one.label, one.makespan_s, one.why] for one in self.candidates]
        others = table(["mode", "how", "seconds", "why"], tried) if tried else ""
        title = f"{self.mode}{took}{ratio}. {self.why}"
        return page(title, gantt(rows, max((one.stop_s for one in self.slices), default=0.0)), others)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            **asdict(self),
            "facts": dict(self.facts),
            "ratio_to_bound": self.ratio,
            "streamed_bytes": self.streamed_bytes,
        }
