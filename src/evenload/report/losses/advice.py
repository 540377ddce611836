"""The largest loss of a run, what would remove it, and how long the run would take without it."""

from collections.abc import Mapping
from dataclasses import dataclass

from evenload.balance.factors import DEVICE, FACTORS, Factors
from evenload.report.losses.replay import Replay

__all__ = ["REMEDIES", "Advice", "advice_on"]

LEAST_SHARE = 0.01  # a loss below this share of the run is nothing to act on
CUT = 4

REMEDIES = {
    "start-up": "Keep workers and their models: one Executor (or one pipeline) for several runs, not a "
    "new one for each; load on several devices at once (--devices); import less at the top of the task.",
    "balance": "Tell what items cost (cost=), so that the long ones go first; use the policy `measured`; let "
    "a stage run on more of the devices.",
    "longest item": "Cut the longest items, or have more devices work at one of them (a gang); no order of "
    "the items helps.",
    "waiting": "Read ahead (look_ahead=), or read items inside of the task; give the stage that the others "
    "wait for more devices; put inputs on a faster disk.",
    "overhead": "Deal larger chunks, return less, and send paths instead of arrays; look at what the run "
    "does after its last item.",
    "repeats": "Look at what was lost or failed and why; copies of the last items cost less where sizes are "
    "known (cost=).",
    "device efficiency": "Let the device do more at once: larger batches, 16 bits, a compiled or fused task.",
}
"""What to do about each factor."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The largest loss of a run, and what to do about it.

    factor     one of ``FACTORS``
    lost_s     seconds that it took of the run's
    without_s  seconds that the run takes if it is simulated again without this loss
    where      the worker that lost most by it, and what it did; "" if it was no one in particular
    remedy     what would remove it
    """

    factor: str
    wall_s: float
    lost_s: float
    without_s: float
    where: str
    remedy: str

    def text(self) -> str:
        """Return the sentence for a report."""
        where = f", most on {self.where}" if self.where else ""
        return (
            f"{self.lost_s:.3g} s of {self.wall_s:.3g} s went into {self.factor}: "
            f"{FACTORS[self.factor]}{where}. "
            f"Without it, this run takes {self.without_s:.3g} s, simulated with its own times. {self.remedy}"
        )


def advice_on(factors: Factors, replay: Replay, where: Mapping[str, str]) -> Advice | None:
    """What to do about the largest loss; None if nothing is worth it.

    where  factor -> the worker that lost most by it
    """
    worst = factors.largest
    if worst is None or worst.lost_s < LEAST_SHARE * factors.wall_s:
        return None
    without_s = _without_s(worst.name, worst.lost_s, factors.wall_s, replay)
    return Advice(
        worst.name, factors.wall_s, worst.lost_s, without_s, where.get(worst.name, ""), REMEDIES[worst.name]
    )


def _without_s(name: str, lost_s: float, wall_s: float, replay: Replay) -> float:
    """Seconds of the run without the loss: as much shorter as its replay is."""
    if name == DEVICE:
        return wall_s - lost_s
    before_s = replay.makespan_s()
    if name == "balance":  # the replay deals the longest first, to whoever ends it first
        return min(wall_s, before_s)
    after_s = replay.makespan_s(parts=CUT) if name == "longest item" else replay.makespan_s(name)
    return wall_s * min(1.0, after_s / before_s) if before_s > 0 else wall_s
