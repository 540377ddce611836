"""What a run tells of its plan, and of how much waits before each stage."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evenload.events import Counted, EventLog, Planned, Queued
from evenload.pipeline.dispatch.item_flow import ItemFlow
from evenload.pipeline.dispatch.results import count_ends
from evenload.report.page.bars import Bars

if TYPE_CHECKING:
    from evenload.pipeline.dispatch.dispatcher import GroupScheduler
    from evenload.pipeline.job.spec_stage import StageSpec
    from evenload.pipeline.plan import Plan

MOST_SLICES = 2000  # of a plan in one line of events.jsonl; more are drawn together
EVERY_S = 1.0  # from one word on the queues, or the items, to the next
COUNTING_SHARE = 0.01  # of the time, at most, is spent on counting


def declared_work(stages: "Sequence[StageSpec]") -> dict[str, dict[str, float]]:
    """stage -> what an item needs by its ``estimate``: flop, bytes; without stages that do not say."""
    known = {stage.name: {"flop": stage.estimate.flop, "bytes": stage.estimate.bytes} for stage in stages}
    given = {name: {k: v for k, v in work.items() if v is not None} for name, work in known.items()}
    return {name: work for name, work in given.items() if work}


def planned_event(plan: "Plan", now_s: float) -> Planned:
    """``plan`` as it is told at ``now_s`` on the run's clock, before the first worker is started."""
    slices: list[list[Any]] = [
        [one.device, one.stage, one.kind, one.start_s, one.stop_s, one.n_items] for one in plan.slices
    ]
    if len(slices) > MOST_SLICES:
        bars = Bars(n_bins=256)
        for device, stage, kind, start_s, stop_s, n_items in slices:
            bars.add(device, f"{kind} {stage}", start_s, stop_s, n_items)
        slices = [
            [device, stage, kind, bar.start_s, bar.stop_s, bar.n_items]
            for device, row in bars.rows().items()
            for bar in row
            for kind, _, stage in [bar.kind.partition(" ")]
        ]
    rounded = [[*one[:3], round(one[3], 6), round(one[4], 6), one[5]] for one in slices]
    return Planned(now_s, plan.mode, plan.why, plan.makespan_s, plan.bound_s, rounded)


class _Meter(ABC):
    """Something that is told now and then. ``look`` in each round of the run's loop."""

    def __init__(self, log: EventLog):
        self._log, self._next_s = log, 0.0

    def look(self) -> None:
        now = self._log.now()
        if now >= self._next_s:
            self.tell()
            self._next_s = now + max(EVERY_S, (self._log.now() - now) / COUNTING_SHARE)

    @abstractmethod
    def tell(self) -> None:
        """Tell it now, whenever it was told last."""


class ItemCounts(_Meter):
    """A meter of how many items have come to which end, told if anything has changed since."""

    def __init__(self, log: EventLog, flow: ItemFlow):
        super().__init__(log)
        self._flow = flow
        self._told: tuple[dict[str, int], ...] = ()

    def tell(self) -> None:
        counts = count_ends(self._flow)
        if counts != self._told:
            self._told = counts
            self._log.emit(Counted(self._log.now(), *counts))


class QueueLengths(_Meter):
    """A meter of what waits at each stage: it is told once in ``EVERY_S``, and when it has emptied.

    An item waits if its stage may run on it and no device has begun. Stages that nobody has come to are not
    told.
    """

    def __init__(self, log: EventLog, dispatcher: "GroupScheduler", stages: Sequence[str]):
        super().__init__(log)
        self._dispatcher, self._stages = dispatcher, tuple(stages)
        self._told: dict[int, bool] = {}  # stage -> had it anything?

    def tell(self) -> None:
        running: dict[int, Counter[str]] = {}
        for group in self._dispatcher.groups.values():
            for task in group.running.keys() - group.extra:
                running.setdefault(task.stage, Counter())[group.id] += 1
        for at, name in enumerate(self._stages):
            waiting, at_work = self._dispatcher.n_waiting(at), running.get(at, Counter())
            has_any = bool(waiting or at_work)
            if has_any or self._told.get(at):
                self._told[at] = has_any
                self._log.emit(Queued(self._log.now(), name, waiting, dict(at_work)))
