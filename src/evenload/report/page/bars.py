"""What each row did when, coarse enough to be drawn: bins of time, of each the kind that filled it."""

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T", int, float)
N_BINS = 1024
FIRST_WIDTH_S = 1e-3
LEAST_SHARE = 0.5  # of a bin; with less in it the row was at rest


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of ``kind`` from ``start_s`` to ``stop_s``; ``n_items`` in it, by their middle."""

    kind: str
    start_s: float
    stop_s: float
    n_items: int


class Bars:
    """A timeline's bars, merged from pieces of work: ``add`` pieces in any order, ``rows()`` gives the bars.

    Memory is bounded by the number of rows and kinds. Bins double their width whenever there is more
    time to hold: a bar's ends are right to 1/512 of the whole.
    """

    def __init__(self, n_bins: int = N_BINS) -> None:
        self.n_bins = n_bins
        self.width_s = FIRST_WIDTH_S
        self.end_s = 0.0
        self._seconds: dict[str, dict[str, list[float]]] = {}
        self._items: dict[str, dict[str, list[int]]] = {}

    def add(self, row: str, kind: str, start_s: float, stop_s: float, n_items: int = 0) -> None:
        """What began before 0 is cut there."""
        start_s = max(0.0, start_s)
        if not start_s <= stop_s < float("inf"):
            return
        self._reach(stop_s)
        seconds = self._seconds.setdefault(row, {}).setdefault(kind, [0.0] * self.n_bins)
        items = self._items.setdefault(row, {}).setdefault(kind, [0] * self.n_bins)
        first, last = self._bin(start_s), self._bin(stop_s)
        items[self._bin((start_s + stop_s) / 2)] += n_items
        for at in range(first, last + 1):
            left, right = at * self.width_s, (at + 1) * self.width_s
            seconds[at] += min(stop_s, right) - max(start_s, left)

    def rows(self) -> dict[str, list[Bar]]:
        return {row: self._bars(row) for row in self._seconds}

    def _bars(self, row: str) -> list[Bar]:
        kinds, bars = self._seconds[row], []
        n = self._bin(self.end_s) + 1
        before: str | None = None
        begin = n_items = 0
        for at in range(n + 1):
            now = self._kind_at(kinds, at) if at < n else None
            if now != before or at == n:
                if before is not None:
                    stop_s = min(at * self.width_s, self.end_s)
                    bars.append(Bar(before, begin * self.width_s, stop_s, n_items))
                before, begin, n_items = now, at, 0
            if now is not None:
                n_items += self._items[row][now][at]
        return bars

    def _kind_at(self, kinds: dict[str, list[float]], at: int) -> str | None:
        most = max(kinds, key=lambda kind: kinds[kind][at])
        width_s = min(self.width_s, self.end_s - at * self.width_s) or self.width_s
        is_busy = sum(seconds[at] for seconds in kinds.values()) >= LEAST_SHARE * width_s
        return most if is_busy and kinds[most][at] > 0 else None

    def _bin(self, t: float) -> int:
        return min(self.n_bins - 1, int(t / self.width_s))

    def _reach(self, t: float) -> None:
        self.end_s = max(self.end_s, t)
        while t >= self.n_bins * self.width_s:
            self.width_s *= 2
            self._seconds = {row: _halved(kinds) for row, kinds in self._seconds.items()}
            self._items = {row: _halved(kinds) for row, kinds in self._items.items()}


def _halved(kinds: "dict[str, list[T]]") -> "dict[str, list[T]]":
    halves = {}
    for kind, bins in kinds.items():
        half = [a + b for a, b in zip(bins[::2], bins[1::2], strict=True)]
        halves[kind] = half + [type(bins[0])()] * (len(bins) - len(half))
    return halves
