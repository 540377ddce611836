"""``Drift``: follows the speeds of all ranks, and says when other shares are worth it. Pure.

    counts, seconds of a step ──► RankSpeed of each rank ──► share(...) ──► other counts, or the same

Shares change only if that saves more of a step than is noise: so they do not go to and fro with it.
"""

from collections.abc import Sequence

from evenload.errors import ConfigError
from evenload.training.rank_speed import RankSpeed
from evenload.training.shares import Cost, Shares, share

__all__ = ["Drift", "counts_of"]

LEAST_GAIN = 0.02  # of a step's seconds,
N_SPREADS = 0.75  # and so many of the deviations that are usual,
MOST_GAIN = 0.1  # but not more: who is far off moves, however noisy it is
UNKNOWN = Cost(0.0, 1.0)


class Drift:
    """A decider of the shares of the next steps; ranks that observe the same decide the same.

    global_batch, most, unit  as of ``share``
    costs    [ranks] seconds known from before, None for a rank of which nothing is known
    shares   of the next steps: equal at first, if nothing is known

    Raises ConfigError as ``share`` does.
    """

    def __init__(
        self,
        n_ranks: int,
        global_batch: int,
        *,
        most: Sequence[int | None] | None = None,
        unit: int = 1,
        costs: Sequence[Cost | None] | None = None,
    ):
        if costs is not None and len(costs) != n_ranks:
            raise ConfigError(f"{len(costs)} costs for {n_ranks} ranks", hint="give one for each rank")
        self._global_batch, self._most, self._unit = global_batch, most, unit
        self._ranks = [RankSpeed(cost) for cost in costs or [None] * n_ranks]
        self.shares = self._share(global_batch, unit)

    @property
    def costs(self) -> tuple[Cost | None, ...]:
        """What is known of each rank."""
        return tuple(rank.cost for rank in self._ranks)

    @property
    def n_changes(self) -> tuple[int, ...]:
        """How often each rank's speed was found to have changed."""
        return tuple(rank.n_changes for rank in self._ranks)

    def observe(self, counts: Sequence[int], seconds: Sequence[float]) -> bool:
        """Take in one step; returns whether ``shares`` are others now.

        counts   [ranks] samples that each rank had
        seconds  [ranks] of computing, without the wait for others; NaN or 0 where not measured
        """
        for rank, n_samples, one_s in zip(self._ranks, counts, seconds, strict=True):
            rank.observe(n_samples, one_s)
        found = self._share(self._global_batch, self._unit)
        now_s = max(cost.seconds(n) for cost, n in zip(found.costs, self.shares.counts, strict=True))
        gain = min(MOST_GAIN, max(LEAST_GAIN, *(N_SPREADS * rank.spread for rank in self._ranks)))
        is_worth = now_s > found.step_s * (1 + gain)
        counts_now = self.shares.counts
        # The same counts with the new costs: what is expected of the next step.
        self.shares = found if is_worth else Shares(counts_now, found.costs, now_s, found.bound_s, self._unit)
        return self.shares.counts != counts_now

    def _share(self, n_samples: int, unit: int) -> Shares:
        return share(n_samples, self._known(), most=self._most, unit=unit)

    def _known(self) -> list[Cost]:
        """The cost of each rank; where nothing is known, the middle of the others."""
        known = sorted(
            (one.cost for one in self._ranks if one.cost), key=lambda cost: cost.seconds(self._usual)
        )
        usual = known[len(known) // 2] if known else UNKNOWN
        return [one.cost or usual for one in self._ranks]

    @property
    def _usual(self) -> int:
        return max(1, self._global_batch // len(self._ranks))


def counts_of(
    shares: Shares, n_samples: int, most: Sequence[int | None] | None = None, unit: int = 1
) -> tuple[int, ...]:
    """Return counts for a batch of ``n_samples``; for the last of an epoch, of which ranks may have none.

    unit  samples that stay together: counts are multiples of it, but for what is left over at the end
    """
    if n_samples == sum(shares.counts):
        return shares.counts
    n_units = -(-n_samples // unit)
    least = int(n_units >= len(shares.costs))
    counts = list(share(n_units * unit, shares.costs, most=most, unit=unit, least=least).counts)
    last = max(rank for rank, n in enumerate(counts) if n)
    counts[last] -= n_units * unit - n_samples
    return tuple(counts)
