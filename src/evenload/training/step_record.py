"""``Step``: what was measured of one step of a training, and ``StepLog``, which makes events of steps."""

from dataclasses import dataclass
from typing import Any

from evenload.balance.bound import bound_of_spans
from evenload.balance.run_claim import StageChunks, Stretch, claim_run

STAGE = "step"


@dataclass(frozen=True, slots=True)
class Step:
    """A step as it was measured, the same on all ranks.

    number   of the step, from 0, over all epochs of this program
    counts   [ranks] samples
    seconds  [ranks] from the end of the last exchange until the rank's own gradients were ready
    """

    number: int
    counts: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def step_s(self) -> float:
        """Seconds until the last rank had done its part."""
        return max(self.seconds)

    @property
    def bound_s(self) -> float:
        """The least seconds in which these ranks, as fast as they were, could have done the batch."""
        spans = ((str(rank), one_s, n) for rank, (n, one_s) in enumerate(self._parts()))
        return min(self.step_s, bound_of_spans(spans).work_s)

    @property
    def ratio(self) -> float:
        """``step_s`` over ``bound_s``; 1 is the best possible."""
        return self.step_s / self.bound_s

    def certificate(self) -> dict[str, Any]:
        """Return the step as a certificate, for ``json.dumps``; see ``evenload.certificate``."""
        stage, first = StageChunks(STAGE), 0
        for rank, (n, seconds) in enumerate(self._parts()):
            ns = max(1, round(seconds * 1e9))
            if n:
                stage.add(rank, 0, ns, ns, [first, n], n, n, True)  # samples of a batch are of one size
            first += n
        lanes = {f"rank {rank}": 1 for rank in range(len(self.counts))}
        stop = max(row[2] for row in stage.rows)
        return claim_run(f"step {self.number}", [stage], lanes, [Stretch(0, stop, [stage], [1.0])], {})

    def _parts(self) -> list[tuple[int, float]]:
        return list(zip(self.counts, self.seconds, strict=True))
