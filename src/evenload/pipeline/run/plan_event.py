"""The plan as an event, so that reports and live pages can lay what happens beside it."""

from typing import TYPE_CHECKING

from evenload.events import Planned
from evenload.report.page.bars import Bars

if TYPE_CHECKING:
    from evenload.pipeline.plan import Plan

__all__ = ["planned_event"]

MOST_SLICES = 2000  # in one line of events.jsonl; more are drawn together


def planned_event(plan: "Plan", now_s: float) -> Planned:
    """``plan`` as it is told at ``now_s`` on the run's clock, before the first worker is started."""
    slices = [[one.device, one.stage, one.kind, one.start_s, one.stop_s, one.n_items] for one in plan.slices]
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
