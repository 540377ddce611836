"""``HiddenWaits``: finds a rank that waits for the others within the time that it measures. Pure.

Where one rank's time has a wait for another, both measure the same, whatever their speeds, and shares stay
equal. The processor tells them apart: it computes for the slow rank all the while, for the other in part.
"""

from collections.abc import Sequence

N_STEPS = 6  # in a row
ALIKE = 0.1  # seconds of all ranks differ by no more than this share
BUSY, LAZY = 0.8, 0.6  # of its seconds the slow rank computes at least, the one that waits at most
SAYS = (
    "all ranks measure the same time, of which rank {rank} computes in {busy:.0%} only: it seems to wait for "
    "the others in an exchange that is not seen, and shares cannot follow the speeds. "
    "Put that exchange into `with even.waiting():`"
)


class HiddenWaits:
    """A judge of the steps of all ranks; ranks that observe the same find the same.

    unit  samples by which equal shares may differ
    """

    def __init__(self, unit: int = 1) -> None:
        self._unit = unit
        self._n_alike: dict[int, int] = {}  # of each rank that looked as if it waited, steps in a row
        self._is_told = False

    def observe(self, counts: Sequence[int], seconds: Sequence[float], busy_s: Sequence[float]) -> str:
        """Take in one step; returns a sentence that names the rank that waits, once, else "".

        counts, seconds  [ranks] as measured
        busy_s           [ranks] of these seconds those in which the processor computed, NaN if not known
        """
        is_equal = max(counts) - min(counts) <= self._unit
        if not is_equal or min(seconds) <= 0 or max(seconds) > (1 + ALIKE) * min(seconds):
            self._n_alike.clear()
            return ""
        busy = [one_s / of_s for one_s, of_s in zip(busy_s, seconds, strict=True)]
        lazy = [rank for rank, one in enumerate(busy) if one < LAZY] if max(busy) >= BUSY else []
        self._n_alike = {rank: self._n_alike.get(rank, 0) + 1 for rank in lazy}
        found = min((rank for rank, n in self._n_alike.items() if n >= N_STEPS), default=None)
        if found is None or self._is_told:
            return ""
        self._is_told = True
        return SAYS.format(rank=found, busy=busy[found])
