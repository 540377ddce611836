"""``MachineLosses``: items that were on machines when these were lost, and how often that is an accident."""

from collections import Counter
from collections.abc import Iterable

__all__ = ["MachineLosses"]

MOST_ACCIDENTS = 4  # of one item; then it may be what ends machines


class MachineLosses:
    """A count for each item of a run: of machines lost while they had it, or of connections to them."""

    def __init__(self) -> None:
        self._n_lost: Counter[int] = Counter()

    def excuse(self, items: Iterable[int]) -> bool:
        """Count the loss of a machine that had ``items``; returns whether none of them is to blame for it."""
        items = tuple(items)
        self._n_lost.update(items)
        return all(self._n_lost[item] <= MOST_ACCIDENTS for item in items)
