"""How long items took on each worker slot, in bins of 5 %, so that a run can be simulated again from them."""

import math
from collections.abc import Mapping

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

    def pieces(self, most: int, speeds: Mapping[str, float]) -> list[float]:
        """The work of each item (its seconds times its slot's speed), whose sum is that of all items.

        Where there are more than ``most``, items of like work are put together, and at least one of each is
        left; items of slots without a speed are left out.
        """
        bins: dict[int, tuple[float, float]] = {}
        for (track, _), (n, total_s) in self._bins.items():
            work = total_s * speeds.get(track, 0.0)
            if work > 0:
                at = math.floor(math.log(work / n) * BINS_PER_E)
                n_before, before = bins.get(at, (0.0, 0.0))
                bins[at] = n_before + n, before + work
        share = min(1.0, most / max(1.0, sum(n for n, _ in bins.values())))
        rows = []
        for n, work in bins.values():
            n_pieces = max(1, round(n * share))
            rows += [work / n_pieces] * n_pieces
        return rows
