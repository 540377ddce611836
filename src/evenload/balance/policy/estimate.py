"""A chunk's cost on a device, launch + per item, estimated while results come in."""

from dataclasses import dataclass

__all__ = ["Cost", "CostEstimate"]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of work on a device: ``n`` items at once (a chunk; samples of a training step) take
    ``launch_s + n * per_item_s`` seconds.
    """

    launch_s: float
    per_item_s: float

    @property
    def rate(self) -> float:
        """Items per second, launch not counted."""
        return 1.0 / self.per_item_s

    def seconds(self, n: float) -> float:
        """Seconds that ``n`` items take together; none take none."""
        return self.launch_s + n * self.per_item_s if n else 0.0


class RunningLine:
    """A least-squares fit of ``y = level + slope * x``; each sample shrinks the weight of older ones."""

    __slots__ = ("keep", "w", "x", "xx", "xy", "y", "yy")

    def __init__(self, keep: float):
        self.keep = keep
        self.w = self.x = self.y = self.xx = self.xy = self.yy = 0.0

    def add(self, x: float, y: float) -> None:
        keep = self.keep
        self.w = keep * self.w + 1.0
        self.x = keep * self.x + x
        self.y = keep * self.y + y
        self.xx = keep * self.xx + x * x
        self.xy = keep * self.xy + x * y
        self.yy = keep * self.yy + y * y

    @property
    def mean(self) -> float:
        return self.y / self.w

    def fit(self) -> tuple[float, float] | None:
        """(level, slope) if both are above 0 and the samples lie within 3 % of the line, else None."""
        spread = self.xx - self.x * self.x / self.w if self.w else 0.0
        if self.w < 2.5 or spread <= 1e-3 * self.xx:
            return None
        slope = (self.xy - self.x * self.y / self.w) / spread
        level = (self.y - slope * self.x) / self.w
        residual = max(0.0, self.yy - level * self.y - slope * self.xy)
        is_exact = residual * self.w < (0.03 * self.y) ** 2
        return (level, slope) if level > 0 and slope > 0 and is_exact else None


class OutlierFilter:
    """A limit of samples to ``factor`` times what is expected, unless the one before was above it, too."""

    __slots__ = ("_factor", "_was_above")

    def __init__(self, factor: float):
        self._factor = factor
        self._was_above = False

    def limited(self, seconds: float, expected: float) -> float:
        was_above, self._was_above = self._was_above, seconds > self._factor * expected
        return self._factor * expected if self._was_above and not was_above else seconds


class CostEstimate:
    """A running estimate of one device's cost, per unit of work (an average item is 1).

    A launch has two parts: the time between sending and result outside the user's function, and the part of
    the function's own time that does not grow with the chunk. The second is the slope of seconds per item
    against 1 / chunk size, if the samples lie on a line. It is estimated only if the function takes a
    ``whole`` chunk at once (a kernel over a slice), or if busy seconds are not reported: elsewhere a drift of
    speed while chunks shrink would be mistaken for it.

    The first sample (loading, compiling, warming up) is used only until the second is there. One sample that
    is far too long is limited, as it may be an exception; two in a row are taken for a change.
    """

    KEEP = 0.85

    def __init__(self, history: Cost | None = None, *, whole: bool = False):
        self.whole = whole
        self.n_samples = 0
        self._cost = history
        self._history = history
        self._shows_busy = False
        self._restart()

    def renewed(self) -> "CostEstimate":
        """One that has seen no sample."""
        return CostEstimate(self._history, whole=self.whole)

    @property
    def cost(self) -> Cost | None:
        """The estimate now; None before the first sample, unless there is a history."""
        return self._cost

    @property
    def knows_launch(self) -> bool:
        """Whether launch and items can be told apart: not from chunks of one size without busy seconds."""
        return (
            (self._shows_busy and not self.whole)
            or self._history is not None
            or self._item.w < 0.5
            or self._item.fit() is not None
        )

    def observe(self, work: float, elapsed_s: float, busy_s: float | None = None) -> None:
        """Add a sample: a chunk of ``work`` took ``elapsed_s``, ``busy_s`` of them in the user's function."""
        busy = elapsed_s if busy_s is None else min(busy_s, elapsed_s)
        self._shows_busy = busy_s is not None
        self.n_samples += 1
        if self.n_samples == 1 and self._history is not None:
            return
        if self.n_samples == 2:
            self._restart()
        overhead = elapsed_s - busy
        if self._cost is not None and self._item.w > 1.5:
            expected_s = self._in_function_s + work * self._cost.per_item_s
            busy = self._busy_filter.limited(busy, expected_s)
            overhead = self._overhead_filter.limited(overhead, self._overhead.mean)
        self._item.add(1.0 / work, busy / work)
        self._busy.add(work, busy)
        self._overhead.add(work, overhead)
        self._update()

    def _restart(self) -> None:
        self._in_function_s = 0.0
        self._item = RunningLine(self.KEEP)  # x = 1 / work, y = busy seconds / work
        self._busy = RunningLine(self.KEEP)  # x = work, y = busy seconds
        self._overhead = RunningLine(self.KEEP)  # x = work, y = seconds outside the function
        self._busy_filter = OutlierFilter(8.0)  # items of one kind may well differ by that much
        self._overhead_filter = OutlierFilter(3.0)
        if self._history is not None:
            self._busy.add(1.0, self._history.per_item_s)

    def _update(self) -> None:
        item, overhead = self._item, self._overhead
        line = item.fit() if self.whole or not self._shows_busy else None
        if line is not None:
            per_item, self._in_function_s = line
        else:
            busy = self._busy
            per_item = max(busy.y - self._in_function_s * busy.w, 0.1 * busy.y) / busy.x
        outside = overhead.mean
        line = overhead.fit()
        if line is not None and line[0] < outside:
            outside, per_item = line[0], per_item + line[1]
        self._cost = Cost(outside + self._in_function_s, max(per_item, 1e-12))
