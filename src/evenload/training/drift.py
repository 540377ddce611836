"""``Drift``: follows the speeds of all ranks, and says when other shares are worth it. Pure.

    counts, seconds of a step ──► RankSpeed of each rank ──► share(...) ──► other counts, or the same

One odd step (a checkpoint, a pause) is forgotten. ``N_ODD`` odd ones in a row, all too slow or all too fast,
are a change of speed: what was known before them no longer counts. Only +, -, x and / are used, no
library of the machine: ranks on unlike processors have to come to the same numbers. Shares change only if
that saves more of a step than is noise: so they do not go to and fro with it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from math import isfinite
from statistics import median

from evenload.errors import ConfigError
from evenload.training.shares import LEAST_S, MOST_S, Cost, Shares, share

WINDOW = 7  # steps that are remembered
N_ODD = 3
ODD = 0.2  # a step is odd if it is off by this share of what was expected
MOST_FIXED = 0.8  # of a step's seconds can be taken for fixed
LEAST_CHANGE = 0.1  # of the samples, to tell fixed seconds from those of samples


class RankSpeed:
    """A running estimate of one rank's cost, None before the first measurement."""

    def __init__(self, cost: Cost | None = None):
        self.cost = cost
        self._seen: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._odd: list[tuple[int, float]] = []

    def observe(self, n_samples: int, seconds: float) -> None:
        """Take in a step in which the rank had ``n_samples``; seconds that make no sense are left out."""
        if n_samples < 1 or not isfinite(seconds) or not LEAST_S <= seconds / n_samples <= MOST_S:
            return
        if self.cost is None or not self._seen:
            self._seen.append((n_samples, seconds))
            self.cost = _cost(
                self._seen, 0.0 if self.cost is None else self.cost.launch_s / self.cost.seconds(n_samples)
            )
            return
        off = self._off(n_samples, seconds)
        if abs(off) <= ODD:
            self._odd.clear()
            self._seen.append((n_samples, seconds))
            self._estimate()
            return
        if self._odd and (self._off(*self._odd[-1]) > 0) != (off > 0):
            self._odd.clear()
        self._odd.append((n_samples, seconds))
        if len(self._odd) == N_ODD:
            self._change()

    def _off(self, n_samples: int, seconds: float) -> float:
        """By which share a step differs from what was expected."""
        return seconds / self.cost.seconds(n_samples) - 1 if self.cost else 0.0

    @property
    def spread(self) -> float:
        """The usual deviation of a step, as a share of its seconds."""
        return 1.4826 * median(abs(self._off(*one)) for one in self._seen) if self._seen else 0.0

    def _change(self) -> None:
        """Believe the odd steps: another share explains them by a fixed cost, or the speed is another."""
        before, odd = _middle(self._seen), list(self._odd)
        self._odd.clear()
        fixed = _fixed(before, _middle(odd))
        if fixed is None:
            n_samples, _ = _middle(odd)
            fixed = self.cost.launch_s / self.cost.seconds(n_samples) if self.cost else 0.0
            self._seen.clear()
        self._seen.extend(odd)
        self.cost = _cost(odd, fixed)

    def _estimate(self) -> None:
        """Fit the cost to the steps that are remembered."""
        last = self._seen[-1][0]
        near = [one for one in self._seen if abs(one[0] - last) <= LEAST_CHANGE * last]
        far = [one for one in self._seen if abs(one[0] - last) > LEAST_CHANGE * last]
        fixed = _fixed(_middle(far), _middle(near)) if far else None
        if fixed is None:
            fixed = self.cost.launch_s / self.cost.seconds(last) if self.cost else 0.0
        self.cost = _cost(near, fixed)


def _middle(steps: Iterable[tuple[int, float]]) -> tuple[float, float]:
    """Samples and seconds in the middle of some steps."""
    steps = list(steps)
    return median(n for n, _ in steps), median(seconds for _, seconds in steps)


def _fixed(one: tuple[float, float], other: tuple[float, float]) -> float | None:
    """The share of ``other`` that is fixed, if both have the same cost; None if they cannot."""
    if abs(one[0] - other[0]) <= LEAST_CHANGE * other[0]:
        return None
    per_sample = (other[1] - one[1]) / (other[0] - one[0])
    share = 1 - per_sample * other[0] / other[1]
    return max(0.0, share) if -ODD <= share <= MOST_FIXED else None


def _cost(steps: Iterable[tuple[int, float]], fixed: float) -> Cost:
    """The cost that explains the middle of some steps, ``fixed`` of it whatever the samples."""
    n_samples, seconds = _middle(steps)
    fixed_s = min(fixed, MOST_FIXED) * seconds
    return Cost(fixed_s, max(LEAST_S, (seconds - fixed_s) / n_samples))


N_SPREADS = 0.75  # of the usual deviations of a step: shares that save less stay as they are
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

    def observe(self, counts: Sequence[int], seconds: Sequence[float]) -> bool:
        """Take in one step; returns whether ``shares`` are others now.

        counts   [ranks] samples that each rank had
        seconds  [ranks] of computing, without the wait for others; NaN or 0 where not measured
        """
        for rank, n_samples, one_s in zip(self._ranks, counts, seconds, strict=True):
            rank.observe(n_samples, one_s)
        found = self._share(self._global_batch, self._unit)
        now_s = max(cost.seconds(n) for cost, n in zip(found.costs, self.shares.counts, strict=True))
        is_worth = now_s > found.step_s * (1 + N_SPREADS * max(rank.spread for rank in self._ranks))
        counts_now = self.shares.counts
        # The same counts with the new costs: what is expected of the next step.
        self.shares = found if is_worth else Shares(counts_now, found.costs, now_s, found.bound_s, self._unit)
        return self.shares.counts != counts_now

    def _share(self, n_samples: int, unit: int) -> Shares:
        return share(n_samples, self._known(), most=self._most, unit=unit)

    def _known(self) -> list[Cost]:
        """The cost of each rank; where nothing is known, the middle of the others."""
        n = max(1, self._global_batch // len(self._ranks))
        known = sorted((one.cost for one in self._ranks if one.cost), key=lambda cost: cost.seconds(n))
        usual = known[len(known) // 2] if known else UNKNOWN
        return [one.cost or usual for one in self._ranks]


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
