"""Counts a run's events as they come, in memory bounded by devices, stages and one byte per item."""

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappush, heapreplace
from typing import Any

from evenload.balance.bound import Bound, Lanes, StageWork, bound_together, ratio_to
from evenload.balance.factors import Factors, like_of
from evenload.balance.metrics import imbalance, utilisation_deviation
from evenload.events import (
    Batched,
    Counted,
    DeviceSample,
    Event,
    Idle,
    ItemFailed,
    ItemFinished,
    Moved,
    Note,
    Restored,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
    WorkerExited,
    WorkerStarted,
)
from evenload.report.costs import amount_of, cost_of
from evenload.report.inside_items import InsideItems
from evenload.report.items import ItemSet, NeededItems, items_key
from evenload.report.losses.account import LossAccount
from evenload.report.losses.remedies import Advice
from evenload.report.summary import DeviceSummary, SlowItem, StageSummary, Summary
from evenload.report.worker_tracks import WorkerTracks


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


N_SLOWEST = 10
N_FAILURES = 200
TRACEBACK_CHARS = 20_000
# Names are announced when an item is through its stage, close to the span that it belongs to.
N_RECENT_NAMES = 4096


class Tally:
    """Counts of a run: ``add`` every event, then ``summary()``, at any time, for a live page as well."""

    def __init__(self) -> None:
        self._started: RunStarted | None = None
        self._finished: RunFinished | None = None
        self._error = ""
        self._counted: Counted | None = None
        self._end_s = 0.0
        self._devices: dict[str, DeviceCount] = {}
        self._stages: dict[str, StageCount] = {}
        self._tracks = WorkerTracks()
        self._losses = LossAccount(self._tracks)
        self._needed, self._inside = NeededItems(), InsideItems()
        self.lanes = Lanes()
        self.likes: dict[str, str] = {}  # slot -> what it shares with those as fast by their sheets
        self._used: set[str] = set()
        self._slow: list[tuple[float, int, Span]] = []
        self._names: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._failures: list[ItemFailed] = []
        self._errors: Counter[str] = Counter()
        self._n: Counter[str] = Counter()
        self._answers, self._n_unpaid, self._n_untold = 0.0, 0, 0  # what those of servers have cost

    def add(self, event: Event) -> None:
        self._end_s = max(self._end_s, getattr(event, "t", 0.0), getattr(event, "stop_s", 0.0))
        self._count(event)
        self._losses.add(event)
        self._needed.add(event)
        self._inside.add(event)

    def _count(self, event: Event) -> None:
        match event:
            case Span():
                self._on_span(event)
            case ItemFinished():
                self._on_item(event)
            case Idle():
                self._on_idle(event)
            case DeviceSample():
                self._on_sample(event)
            case Batched():
                stage = self._stage(event.stage)
                stage.n_batches += 1
                stage.n_batched += event.n_items
                stage.n_batch_places += event.most
            case RunStarted():
                self._on_started(event)
            case StageStarted():
                self._stage(event.stage).total = event.total
            case StageFinished():
                stage = self._stage(event.stage)
                stage.is_finished, stage.learned = True, event.learned
            case WorkerStarted():
                self._device(event.device).startup_s += event.startup_s
                self._tracks.see(event)
            case WorkerExited():
                self._tracks.see(event)
                if event.reason != "closed":
                    self._device(event.device).n_lost += 1
            case Restored():
                self._on_restored(event)
            case ItemFailed():
                self._on_failed(event)
            case Moved():
                self._n["moves"] += 1
                self._n["moved"] += event.n_items
            case Counted():
                self._counted = event
            case Note(level="error"):
                self._error = event.text[:TRACEBACK_CHARS]
            case RunFinished():
                self._finished = event

    def _device(self, name: str) -> DeviceCount:
        return self._devices.setdefault(name, DeviceCount())

    def _stage(self, name: str) -> StageCount:
        if name not in self._stages:
            self._stages[name] = StageCount(work=StageWork(self._devices, self.lanes, self.likes, self._used))
        return self._stages[name]

    def _on_started(self, event: RunStarted) -> None:
        self._started = self._started or event
        self._finished = None
        for name, facts in event.devices.items():
            self._device(name).facts = dict(facts)
            self._take_like(name, name)

    def _take_like(self, track: str, device: str) -> None:
        if track not in self.likes or track == device:
            self.likes[track] = like_of(self._device(device).facts) or device

    def _on_span(self, span: Span) -> None:
        stage, device = self._stage(span.stage), self._device(span.device)
        busy_s = span.task_s
        device.n_chunks += 1
        device.busy_s += busy_s
        device.span_s += span.length_s
        stage.start_s = min(stage.start_s, span.start_s)
        stage.stop_s = max(stage.stop_s, span.stop_s)
        self._n["chunks"] += 1
        self._n["duplicates"] += span.duplicate
        track = self._tracks.key(span.device, span.worker)
        self._take_like(track, span.device)
        n_needed = self._needed.take(span)
        inside = self._inside.seconds(span, busy_s)
        self._losses.add_span(span, track, busy_s, n_needed, inside)
        if span.status not in ("superseded", "lost"):
            device.waited_s, device.unknown_s = device.waited_s + inside[0], device.unknown_s + inside[1]
        self._share(span, track, busy_s, stage)
        if span.status in ("superseded", "lost"):
            device.wasted_s += busy_s
            self._n["redone"] += span.n_items if span.status == "lost" else 0
            return
        device.n_items += n_needed
        if span.device not in self._used:
            self._used.update((span.device, *span.device.split("+")))
        stage.useful_s[span.device] = stage.useful_s.get(span.device, 0.0) + busy_s
        if span.n_items > 0:
            self.lanes.add(track, span.start_s, span.stop_s)
        good = span.status == "ok"
        stage.work.add(
            track, busy_s, span.n_items, cost=span.cost, is_good=good, n_needed=n_needed,
            waited_s=inside[0],
        )  # fmt: skip
        if span.items is None:
            stage.items.add(span.index, span.n_items)
        else:
            for index in span.items:
                stage.items.add(index, 1)
        if span.n_items > 0:
            self._keep_if_slow(span, busy_s / span.n_items)

    @staticmethod
    def _share(span: Span, track: str, busy_s: float, stage: StageCount) -> None:
        """Have devices compared by items that both had; a copy that ended second has its seconds, too."""
        is_done = span.status == "ok" or (span.status == "superseded" and span.busy_s > 0)
        # Nobody knows how long a copy of an item that waited would have waited.
        if span.n_items > 0 and (is_done or span.status == "superseded") and not span.waited_s:
            start_s, stop_s = (0.0, busy_s) if is_done else (span.start_s, span.stop_s)
            stage.work.add_shared(track, items_key(span), start_s, stop_s, is_done=is_done)

    def _keep_if_slow(self, span: Span, seconds: float) -> None:
        entry = (seconds, -self._n["chunks"], span)
        if len(self._slow) < N_SLOWEST:
            heappush(self._slow, entry)
        elif seconds > self._slow[0][0]:
            heapreplace(self._slow, entry)

    def _on_idle(self, event: Idle) -> None:
        waits = self._device(event.device).waits
        why = event.why if event.why in waits or len(waits) < 50 else "other reasons"
        waits[why] = waits.get(why, 0.0) + max(0.0, event.stop_s - event.start_s)

    def _on_item(self, event: ItemFinished) -> None:
        self._stage(event.stage).items.finish(event.index)
        self._remember(event)
        if (name := self._cost_output(event.stage)) is not None:
            cost = event.outputs.get(name)
            self._answers += amount_of(cost)
            self._n_untold += cost is None

    def _cost_output(self, stage: str) -> str | None:
        """The output of the stage with what an answer cost; None if it asks nobody who is paid."""
        told = self._started.facts.get("costs") if self._started else None
        outputs = told.get("outputs") if isinstance(told, dict) else None
        name = outputs.get(stage) if isinstance(outputs, dict) else None
        return None if name is None else str(name)

    def _on_restored(self, event: Restored) -> None:
        stage = self._stage(event.stage)
        if event.items is None:
            stage.items.add(event.index, event.n_items)
        for index in event.items or ():
            stage.items.add(index, 1)

    def _remember(self, event: ItemFinished | ItemFailed) -> None:
        self._names[event.stage, event.index] = event.item
        if len(self._names) > N_RECENT_NAMES:
            kept = {(span.stage, span.index) for _, _, span in self._slow}
            oldest, name = self._names.popitem(last=False)
            if oldest in kept:
                self._names[oldest] = name

    def _on_failed(self, event: ItemFailed) -> None:
        self._stage(event.stage).items.fail(event.index)
        self._remember(event)
        self._n_unpaid += bool(event.device) and self._cost_output(event.stage) is not None
        self._errors[event.error if len(self._errors) < 100 else "others"] += 1
        if len(self._failures) < N_FAILURES:
            cut = {
                "message": event.message[:TRACEBACK_CHARS],
                "traceback": event.traceback[-TRACEBACK_CHARS:],
            }
            self._failures.append(replace(event, **cut))

    def _on_sample(self, event: DeviceSample) -> None:
        device = self._device(event.device)
        if event.memory_used_bytes is not None:
            device.memory_peak = max(device.memory_peak or 0, event.memory_used_bytes)
        device.memory_total = event.memory_total_bytes or device.memory_total

    def summary(self) -> Summary:
        begun_s, work_s, bound_s, up_to_s = self._times()
        devices, status = self._device_summaries(work_s), self._status()
        stages = tuple(stage.summary(name, self._devices) for name, stage in self._stages.items())
        total, n_done, n_failed = self._items()
        error = self._error if status == "failed" else ""
        factors, advice = self._factors(status != "unfinished" and not error)
        started = self._started or RunStarted(0.0, next(iter(self._stages), ""), unix_s=0.0)
        return Summary(
            name=started.name,
            status=status,
            error=error,
            unix_s=started.unix_s,
            total=total,
            n_done=n_done, n_failed=n_failed,
            wall_s=self._end_s, work_s=work_s, startup_s=begun_s,
            items_per_s=n_done / work_s if work_s > 0 else 0.0,
            bound_s=bound_s,
            bound_up_to_s=up_to_s,
            bound_by=_common_limit(stages),
            ratio=ratio_to(bound_s, work_s),
            imbalance=imbalance([device.useful_s for device in self._devices.values()]),
            utilisation=sum(d.utilisation for d in devices) / len(devices) if devices else 0.0,
            utilisation_std=utilisation_deviation([d.utilisation for d in devices], 1.0),
            devices=devices,
            stages=stages,
            unmeasured=self._unmeasured(),
            waits=summed(device.waits for device in self._devices.values()),
            n_chunks=self._n["chunks"], n_duplicates=self._n["duplicates"],
            n_redone=self._n["redone"],
            wasted_s=sum(device.wasted_s for device in devices),
            n_moves=self._n["moves"], n_moved_items=self._n["moved"],
            n_lost_workers=sum(device.n_lost_workers for device in devices),
            slowest=self._slowest(),
            failures=tuple(self._failures),
            failures_by_error=dict(self._errors.most_common()),
            facts=dict(started.facts),
            finish=dict(self._finished.facts) if self._finished else {}, counts=self._counts(),
            cost=cost_of(
                started.facts.get("costs"), self._end_s, self._answers, self._n_unpaid, self._n_untold
            ),
            factors=factors, advice=advice,
        )  # fmt: skip

    def _factors(self, is_over: bool) -> tuple[Factors | None, Advice | None]:
        longest = next((one.text() for one in self._slowest()), "")
        return self._losses.factors(self._end_s, self._bounds(), is_over=is_over, longest=longest)

    def _times(self) -> tuple[float, float, float, float]:
        """Seconds until work began, of work, its bound and up to what that may be, added up by stretches."""
        stretches = self.stretches()
        begun_s = min((start_s for start_s, _, _ in stretches), default=0.0)
        work_s = sum(stop_s - start_s for start_s, stop_s, _ in stretches)
        bounds = [bound_together(stages.values()) for _, _, stages in stretches]
        bound_s, up_to_s = (math.fsum(row[k] for row in bounds) for k in (0, 1))
        return begun_s, work_s, bound_s, up_to_s

    def stretches(self) -> list[tuple[float, float, dict[str, StageWork]]]:
        """``(start_s, stop_s, work of each stage)`` of each time in which stages overlapped, in order."""
        names = {id(stage): name for name, stage in self._stages.items()}
        found = groups(self._stages)
        return [(start, stop, {names[id(one)]: one.work for one in some}) for start, stop, some in found]

    def _bounds(self) -> dict[str, tuple[int, Bound]]:
        """stage -> the number of its stretch of time, and its bound."""
        members = [stages for _, _, stages in groups(self._stages)]
        stretch = {id(stage): number for number, stages in enumerate(members) for stage in stages}
        return {name: (stretch.get(id(one), -1), one.work.bound()) for name, one in self._stages.items()}

    def _device_summaries(self, work_s: float) -> tuple[DeviceSummary, ...]:
        counts = self._devices.items()
        return tuple(one.summary(name, work_s, max(1, self._tracks.n(name))) for name, one in counts)

    def _status(self) -> str:
        if self._finished:
            return self._finished.status
        # A plain map is not announced as a run: it is over when its stages are.
        is_over = self._started is None and all(stage.is_finished for stage in self._stages.values())
        if not is_over or not self._stages:
            return "unfinished"
        return "failures" if any(stage.items.n_failed for stage in self._stages.values()) else "done"

    def _counts(self) -> dict[str, Mapping[str, int]]:
        told = self._counted
        if told is None:
            return {}
        parts = {"parts": told.parts} if told.parts.get("total") else {}
        return {"items": told.ends, "samples": told.samples, **parts}

    def _items(self) -> tuple[int | None, int, int]:
        """Items expected, through the last stage, and failed in any stage; as told, if that was."""
        if self._counted is not None:
            ends = self._counted.ends
            return ends.get("total", 0), ends.get("done", 0), ends.get("failed", 0)
        total = self._started.total if self._started else None
        stages = list(self._stages.values())
        if total is None and stages:
            total = stages[0].total
        n_failed = sum(stage.items.n_failed for stage in stages)
        n_done = stages[-1].items.n_done if stages else 0
        planned = self._started.facts.get("stages") if self._started else None
        if isinstance(planned, list) and planned and isinstance(planned[-1], str):
            n_done = self._stages[planned[-1]].items.n_done if planned[-1] in self._stages else 0
        return total, n_done, n_failed

    def _unmeasured(self) -> tuple[str, ...]:
        return tuple(name for name, one in self._devices.items() if one.n_items == 0)

    def _slowest(self) -> tuple[SlowItem, ...]:
        return tuple(
            SlowItem(
                span.stage,
                span.index,
                span.n_items,
                span.device,
                seconds,
                self._names.get((span.stage, span.index), "") if span.n_items == 1 else "",
            )
            for seconds, _, span in sorted(self._slow, key=lambda one: one[:2], reverse=True)
        )


def _common_limit(stages: Iterable[StageSummary]) -> str:
    """What bounds every stage that has a bound, if it is one thing; else the work."""
    limits = {stage.bound_by for stage in stages if stage.bound_s}
    return limits.pop() if len(limits) == 1 else "work"


def summarise(events: Iterable[Event]) -> Summary:
    """The numbers of one run, read once in memory that does not grow with it (but one byte per item).

    events  of a run that has ended, is still going, or was cut short
    """
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally.summary()
