"""What each row did when, coarse enough to be drawn: bins of time, of each the kind that filled it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

N_BINS = 1024
FIRST_WIDTH_S = 1e-3
LEAST_SHARE = 0.5  # of a bin; with less in it the row was at rest


class Bins:
    """Rows of ``n`` bins from 0 to ``end``, which double their ``width``, two into one, to reach further.

    sums   row's key -> what was added to each bin
    peaks  row's key -> the largest value seen in each bin, None where there was none
    """

    def __init__(self, n: int, width: float) -> None:
        self.n, self.width, self.end = n, width, 0.0
        self.sums: dict[Any, list[float]] = {}
        self.peaks: dict[Any, list[float | None]] = {}

    def at(self, t: float) -> int:
        """The bin that holds ``t``, which is not below 0."""
        self.end = max(self.end, t)
        while t >= self.n * self.width:
            self.width *= 2
            self.sums = {key: _halved(row, sum, 0) for key, row in self.sums.items()}
            self.peaks = {key: _halved(row, _largest, None) for key, row in self.peaks.items()}
        return min(self.n - 1, int(t / self.width))

    def row(self, key: Any) -> list[float]:
        """The sums of ``key``, with nothing in them at first."""
        return self.sums.setdefault(key, [0] * self.n)  # pyrefly: ignore

    def add(self, key: Any, t: float, amount: float) -> None:
        at = self.at(t)
        self.row(key)[at] += amount

    def spread(self, key: Any, start: float, stop: float, share: float = 1.0) -> None:
        """Add ``share`` of the time between the two to the bins that it lies in."""
        last, first = self.at(stop), self.at(start)
        row = self.row(key)
        for at in range(first, last + 1):
            row[at] += share * (min(stop, (at + 1) * self.width) - max(start, at * self.width))

    def peak(self, key: Any, t: float, value: float) -> None:
        at = self.at(t)
        row = self.peaks.setdefault(key, [None] * self.n)  # pyrefly: ignore
        row[at] = _largest((row[at], value))


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of ``kind`` from ``start_s`` to ``stop_s``; ``n_items`` in it, by their middle."""

    kind: str
    start_s: float
    stop_s: float
    n_items: int


class Bars:
    """A timeline's bars, merged from pieces of work: ``add`` pieces in any order, ``rows()`` gives the bars.

    Memory is bounded by the number of rows and kinds. A bar's ends are right to 1/512 of the whole.
    """

    def __init__(self, n_bins: int = N_BINS) -> None:
        self._seconds, self._items = Bins(n_bins, FIRST_WIDTH_S), Bins(n_bins, FIRST_WIDTH_S)
        self._kinds: dict[str, dict[str, None]] = {}

    def add(self, row: str, kind: str, start_s: float, stop_s: float, n_items: int = 0) -> None:
        """What began before 0 is cut there."""
        start_s = max(0.0, start_s)
        if not start_s <= stop_s < float("inf"):
            return
        self._kinds.setdefault(row, {}).setdefault(kind)
        self._seconds.spread((row, kind), start_s, stop_s)
        self._items.at(stop_s)  # as wide as those of the seconds
        self._items.add((row, kind), (start_s + stop_s) / 2, n_items)

    def rows(self) -> dict[str, list[Bar]]:
        return {row: self._bars(row) for row in self._kinds}

    def _bars(self, row: str) -> list[Bar]:
        width_s, end_s = self._seconds.width, self._seconds.end
        bars: list[Bar] = []
        n = self._seconds.at(end_s) + 1
        before: str | None = None
        begin = n_items = 0
        for at in range(n + 1):
            now = self._kind_at(row, at) if at < n else None
            if now != before or at == n:
                if before is not None:
                    bars.append(Bar(before, begin * width_s, min(at * width_s, end_s), n_items))
                before, begin, n_items = now, at, 0
            if now is not None:
                n_items += int(self._items.sums[row, now][at])
        return bars

    def _kind_at(self, row: str, at: int) -> str | None:
        bins = self._seconds
        seconds = {kind: bins.sums[row, kind][at] for kind in self._kinds[row]}
        most = max(seconds, key=lambda kind: seconds[kind])
        width_s = min(bins.width, bins.end - at * bins.width) or bins.width
        is_busy = sum(seconds.values()) >= LEAST_SHARE * width_s
        return most if is_busy and seconds[most] > 0 else None


def _halved(row: list[Any], merge: Callable[[Any], Any], empty: Any) -> list[Any]:
    merged = [merge(row[at : at + 2]) for at in range(0, len(row), 2)]
    return merged + [empty] * (len(row) - len(merged))


def _largest(values: Any) -> float | None:
    return max((one for one in values if one is not None), default=None)
