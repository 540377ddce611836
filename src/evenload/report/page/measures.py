"""The numbers that items leave behind, over the order of the items: loss over rounds, stage times of proofs.

Bounded: of many items neighbours are averaged into bins, which double their width whenever there are more.
"""

import math
from collections.abc import Mapping
from typing import Any

from evenload.events import Event, ItemFinished

__all__ = ["Measures"]

N_BINS = 240
MAX_SERIES = 24


class Measures:
    """The numbers that items left: ``add`` every event. A run whose items leave pictures or other files has
    a gallery instead.

    ``to_json()`` is ``{stage: {"width", "n", "series": {name: [mean or None per bin]}}}``; a bin holds
    ``width`` items, the first one from item 0.
    """

    def __init__(self, n_bins: int = N_BINS) -> None:
        self.n_bins = n_bins
        self._stages: dict[str, _Stage] = {}
        self._has_files = False

    def add(self, event: Event) -> None:
        if not isinstance(event, ItemFinished) or not event.outputs or event.index < 0:
            return
        self._has_files = self._has_files or any(isinstance(value, str) for value in event.outputs.values())
        if self._has_files:
            return
        n_series = sum(len(stage.series) for stage in self._stages.values())
        for name, value in event.outputs.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                continue
            stage = self._stages.setdefault(event.stage, _Stage(self.n_bins))
            if name not in stage.series:
                if n_series >= MAX_SERIES:
                    continue
                n_series += 1
            stage.put(name, event.index, float(value))

    def to_json(self) -> Mapping[str, Any]:
        if self._has_files:
            return {}
        return {name: stage.to_json() for name, stage in self._stages.items() if stage.series}


class _Stage:
    """The numbers of one stage."""

    def __init__(self, n_bins: int) -> None:
        self.n_bins = n_bins
        self.width = 1
        self.n = 0
        self.series: dict[str, list[list[float]]] = {}  # name -> bins of [sum, count]

    def put(self, name: str, index: int, value: float) -> None:
        while index >= self.n_bins * self.width:
            self.width *= 2
            self.series = {key: _halved(bins) for key, bins in self.series.items()}
        self.n = max(self.n, index + 1)
        bins = self.series.setdefault(name, [[0.0, 0] for _ in range(self.n_bins)])
        one = bins[index // self.width]
        one[0] += value
        one[1] += 1

    def to_json(self) -> dict[str, Any]:
        n = -(-self.n // self.width)
        return {
            "width": self.width,
            "n": self.n,
            "series": {
                name: [round(total / count, 9) if count else None for total, count in bins[:n]]
                for name, bins in self.series.items()
            },
        }


def _halved(bins: list[list[float]]) -> list[list[float]]:
    pairs = [[a[0] + b[0], a[1] + b[1]] for a, b in zip(bins[::2], bins[1::2], strict=True)]
    return pairs + [[0.0, 0] for _ in range(len(bins) - len(pairs))]
