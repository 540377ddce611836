"""How long items took on each worker slot, in bins of 5 %, so that a run can be simulated again from them."""

import math

__all__ = ["Lengths"]

BINS_PER_E = 20
LEAST_S = 1e-9


class Lengths:
    """The lengths of one stage's items by slot: memory for one run's bins, however many items there are."""

    __slots__ = ("_bins",)

    def __init__(self) -> None:
        self._bins: dict[tuple[str, int], tuple[float, float]] = {}

    def add(self, track: str, n_items: float, seconds: float) -> None:
        """Count ``n_items`` that took ``seconds`` together on the slot ``track``."""
        if n_items <= 0 or not LEAST_S <= seconds < math.inf:
            return
        at = track, math.floor(math.log(max(LEAST_S, seconds / n_items)) * BINS_PER_E)
        n, total_s = self._bins.get(at, (0.0, 0.0))
        self._bins[at] = n + n_items, total_s + seconds

    @property
    def n_items(self) -> float:
        return sum(n for n, _ in self._bins.values())

    def pieces(self, most: int) -> list[tuple[str, float]]:
        """``(slot, seconds)`` for each item, their sum being that of the items.

        Where there are more than ``most``, items of like length are put together, and at least one of each
        length is left.
        """
        share = min(1.0, most / max(1.0, self.n_items))
        rows = []
        for (track, _), (n, total_s) in self._bins.items():
            n_pieces = max(1, round(n * share))
            rows += [(track, total_s / n_pieces)] * n_pieces
        return rows
