"""What is counted of one device and of one stage, and the summaries made of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evenload.balance.bound import StageWork
from evenload.balance.metrics import imbalance
from evenload.report.items import ItemSet
from evenload.report.summary import DeviceSummary, StageSummary


@dataclass(slots=True)
class DeviceCount:
    """The counts of one device, as ``DeviceSummary`` has it."""

    facts: dict[str, Any] = field(default_factory=dict)
    n_items: int = 0
    n_chunks: int = 0
    busy_s: float = 0.0
    span_s: float = 0.0
    waited_s: float = 0.0
    unknown_s: float = 0.0
    wasted_s: float = 0.0
    startup_s: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)
    n_lost: int = 0
    memory_peak: int | None = None
    memory_total: int | None = None

    @property
    def useful_s(self) -> float:
        return max(0.0, self.busy_s - self.wasted_s)

    def summary(self, name: str, work_s: float, n_workers: int) -> DeviceSummary:
        worked_s = max(0.0, self.busy_s - self.waited_s - self.unknown_s)  # sums are rounded
        return DeviceSummary(
            device=name,
            name=str(self.facts.get("name", "")),
            kind=str(self.facts.get("kind", "")),
            n_workers=n_workers,
            n_items=self.n_items,
            n_chunks=self.n_chunks,
            busy_s=self.busy_s,
            overhead_s=max(0.0, self.span_s - self.busy_s),
            idle_s=max(0.0, work_s * n_workers - self.span_s),
            startup_s=self.startup_s,
            wasted_s=self.wasted_s,
            waited_s=self.waited_s,
            unknown_s=self.unknown_s,
            utilisation=min(1.0, worked_s / (work_s * n_workers)) if work_s > 0 else 0.0,
            items_per_s=self.n_items / self.useful_s if self.useful_s > 0 else 0.0,
            waits=summed([self.waits]),
            n_lost_workers=self.n_lost,
            memory_peak_bytes=self.memory_peak,
            memory_total_bytes=self.memory_total or self.facts.get("memory_bytes"),
        )


@dataclass(slots=True)
class StageCount:
    """The counts of one stage, as ``StageSummary`` has it."""

    total: int | None = None
    work: StageWork = field(default_factory=StageWork)
    items: ItemSet = field(default_factory=ItemSet)
    start_s: float = float("inf")
    stop_s: float = 0.0
    is_finished: bool = False
    learned: str = ""
    n_batches: int = 0
    n_batched: int = 0
    n_batch_places: int = 0
    useful_s: dict[str, float] = field(default_factory=dict)

    def summary(self, name: str, devices: Iterable[str]) -> StageSummary:
        bound = self.work.bound()
        wall_s = max(0.0, self.stop_s - self.start_s)
        return StageSummary(
            stage=name,
            total=self.total,
            n_done=self.items.n_done,
            n_failed=self.items.n_failed,
            start_s=self.start_s if wall_s else 0.0,
            stop_s=self.stop_s,
            wall_s=wall_s,
            busy_s=sum(self.useful_s.values()),
            bound_s=bound.bound_s,
            bound_up_to_s=bound.up_to_s,
            bound_by=bound.limit,
            ratio=bound.ratio(wall_s),
            imbalance=imbalance([self.useful_s.get(device, 0.0) for device in devices]),
            items_per_s=self.items.n_done / wall_s if wall_s > 0 else 0.0,
            learned=self.learned,
            n_batches=self.n_batches,
            mean_batch=self.n_batched / self.n_batches if self.n_batches else None,
            batch_fill=self.n_batched / self.n_batch_places if self.n_batch_places else None,
        )


def summed(many: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Seconds by reason, the longest first."""
    total: dict[str, float] = {}
    for waits in many:
        for why, seconds in waits.items():
            total[why] = total.get(why, 0.0) + seconds
    return dict(sorted(total.items(), key=lambda one: -one[1])[:20])


def groups(stages: dict[str, StageCount]) -> list[tuple[float, float, list[StageCount]]]:
    """Stages whose times overlap, as ``(start_s, stop_s, stages)``, in order of time."""
    groups: list[tuple[float, float, list[StageCount]]] = []
    for stage in sorted(
        (one for one in stages.values() if one.stop_s > one.start_s), key=lambda one: one.start_s
    ):
        if groups and stage.start_s < groups[-1][1]:
            start, stop, members = groups.pop()
            groups.append((start, max(stop, stage.stop_s), [*members, stage]))
        else:
            groups.append((stage.start_s, stage.stop_s, [stage]))
    return groups
