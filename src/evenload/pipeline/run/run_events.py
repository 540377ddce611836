"""What a run tells of its plan, and of how much waits before each stage."""

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
COUNTING_SHARE = 0.01  # of the time, at most, is spent on counting items


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


class ItemCounts:
    """A meter of how many items have come to which end. ``look`` in each round of the run's loop."""

    def __init__(self, log: EventLog, flow: ItemFlow):
        self._log, self._flow = log, flow
        self._told: tuple[dict[str, int], ...] | None = None
        self._next_s = 0.0

    def look(self) -> None:
        now = self._log.now()
        if now >= self._next_s:
            self.tell()
            took_s = self._log.now() - now
            self._next_s = now + max(EVERY_S, took_s / COUNTING_SHARE)

    def tell(self) -> None:
        """Now, if anything has changed since."""
        counts = count_ends(self._flow)
        if counts != self._told:
            self._told = counts
            self._log.emit(Counted(self._log.now(), *counts))


class QueueLengths:
    """A meter of what waits at each stage. ``look`` in each round of the run's loop: a stage is told once
    in ``EVERY_S``, and when it has emptied.

    An item waits if its stage may run on it and no device has begun. Stages that nobody has come to are not
    told.
    """

    def __init__(self, log: EventLog, dispatcher: "GroupScheduler", stages: Sequence[str]):
        self._log, self._dispatcher, self._stages = log, dispatcher, tuple(stages)
        self._told: dict[int, bool] = {}  # stage -> had it anything?
        self._next_s = log.now()

    def look(self) -> None:
        now = self._log.now()
        if now < self._next_s:
            return
        self._next_s = now + EVERY_S
        self.tell()

    def tell(self) -> None:
        """Now, whenever that was told last; at the end of a run its queues are seen to be empty."""
        running: dict[int, Counter[str]] = {}
        view = self._dispatcher.view()
        for group in view.groups:
            for task in group.running.keys() - group.extra:
                running.setdefault(task.stage, Counter())[group.id] += 1
        for at, name in enumerate(self._stages):
            waiting, at_work = view.n_waiting[at], running.get(at, Counter())
            has_any = bool(waiting or at_work)
            if has_any or self._told.get(at):
                self._told[at] = has_any
                self._log.emit(Queued(self._log.now(), name, waiting, dict(at_work)))
