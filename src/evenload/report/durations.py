"""How long items took, in bins of equal ratio: bounded whatever the run, from nanoseconds to months."""

import math

from evenload.events import Event, Span

PER_DECADE = 10
LOWEST_S = 1e-9


class Durations:
    """Counts of items by the seconds that they took; ``add`` every event.

    ``bins(stage)`` are ``(from_s, to_s, n_items)``, empty ones between full ones too.

    A chunk of several items counts as that many of its mean.
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[int, int]] = {}

    @property
    def stages(self) -> list[str]:
        return list(self._counts)

    def add(self, event: Event) -> None:
        if not isinstance(event, Span) or event.status != "ok" or event.n_items <= 0:
            return
        at = math.floor(math.log10(max(LOWEST_S, event.task_s / event.n_items)) * PER_DECADE)
        counts = self._counts.setdefault(event.stage, {})
        counts[at] = counts.get(at, 0) + event.n_items

    def bins(self, stage: str, most: int = 24) -> list[tuple[float, float, int]]:
        """At most about ``most`` bins: neighbours are put together until they are so few."""
        counts = self._counts.get(stage, {})
        if not counts:
            return []
        low, high = min(counts), max(counts) + 1
        step = max(1, -(-(high - low) // most))
        edges = range(low, high, step)
        return [
            (_edge(at), _edge(at + step), sum(counts.get(i, 0) for i in range(at, at + step))) for at in edges
        ]


def _edge(at: int) -> float:
    return 10 ** (at / PER_DECADE)
