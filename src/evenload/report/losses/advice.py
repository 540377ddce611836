"""The largest loss of a run, what would remove it, and how long the run would take without it."""

from dataclasses import dataclass

from evenload._plain_text import seconds_text
from evenload.balance.factors import FACTORS, Factors
from evenload.report.losses.remedies import Cause, LostRun, Remedy, remedies, without

LEAST_SHARE = 0.01  # a loss below this share of the run is nothing to act on
MOST_CAUSES = 3
LEAST_CAUSE = 0.1  # of the loss


@dataclass(frozen=True, slots=True)
class Advice:
    """The largest loss of a run, and what to do about it.

    factor     one of ``FACTORS``
    lost_s     seconds that it took of the run's
    without_s  seconds that the run takes if it is simulated again without this loss
    causes     what it came from, the largest first
    remedies   what to change, each with the seconds of the run simulated so, the best first
    """

    factor: str
    wall_s: float
    lost_s: float
    without_s: float
    causes: tuple[Cause, ...]
    remedies: tuple[Remedy, ...]

    def text(self) -> str:
        """Return the paragraph for a report."""
        shown = [one for one in self.causes[:MOST_CAUSES] if one.lost_s >= LEAST_CAUSE * self.lost_s]
        came = "; ".join(
            f"{seconds_text(one.lost_s)} {one.cause}" + (f" on {', '.join(one.slots)}" if one.slots else "")
            for one in shown
        )
        actions = "; or ".join(map(str, self.remedies))
        return (
            f"{seconds_text(self.lost_s)} of {seconds_text(self.wall_s)} went into {self.factor} "
            f"({FACTORS[self.factor]}){f': {came}' if came else ''}. "
            f"Without it, this run takes {seconds_text(self.without_s)}, simulated with its own times. "
            + (f"To do: {actions}." if actions else "Nothing that was tried would save a twentieth of that.")
        )


def advice_on(factors: Factors, run: LostRun) -> Advice | None:
    """What to do about the largest loss; None if nothing is worth it."""
    if run.lost_s < LEAST_SHARE * factors.wall_s:
        return None
    return Advice(
        run.factor,
        run.wall_s,
        run.lost_s,
        without(run),
        tuple(run.causes[:MOST_CAUSES]),
        tuple(remedies(run)),
    )
