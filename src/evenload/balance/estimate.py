"""What a chunk costs on a device: launch + per item, learned while results come in."""

from dataclasses import dataclass

__all__ = ["Cost", "Estimate"]


@dataclass(frozen=True, slots=True)
class Cost:
    """A chunk of ``n`` items takes ``launch_s + n * per_item_s`` seconds."""

    launch_s: float
    per_item_s: float

    @property
    def rate(self) -> float:
        """Items per second, launch not counted."""
        return 1.0 / self.per_item_s

    def seconds(self, n: float) -> float:
        return self.launch_s + n * self.per_item_s


class Estimate:
    """Running estimate of one device's cost, per unit of work (an item is 1 without size hints)."""

    DECAY = 0.75

    def __init__(self, history: Cost | None = None):
        self.n_samples = 0
        self._cost = history
        self._work = self._busy = self._chunks = self._launch = 0.0

    @property
    def cost(self) -> Cost | None:
        return self._cost

    def observe(self, work: float, elapsed_s: float, busy_s: float | None = None) -> None:
        """A chunk of ``work`` took ``elapsed_s``, ``busy_s`` of them inside the user's function."""
        busy = elapsed_s if busy_s is None else min(busy_s, elapsed_s)
        self.n_samples += 1
        if self.n_samples == 2:
            self._work = self._busy = self._chunks = self._launch = 0.0
        keep = self.DECAY
        self._work = keep * self._work + work
        self._busy = keep * self._busy + busy
        self._launch = keep * self._launch + (elapsed_s - busy)
        self._chunks = keep * self._chunks + 1.0
        self._cost = Cost(self._launch / self._chunks, max(self._busy, 1e-9) / self._work)

    def rescale(self, unit: float) -> None:
        """What was one unit of work so far counts as ``unit`` from now on."""
        self._work *= unit
        if self._cost is not None:
            self._cost = Cost(self._cost.launch_s, self._cost.per_item_s / unit)
