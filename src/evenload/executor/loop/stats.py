"""What an executor has done so far."""

from dataclasses import dataclass, field

from evenload.executor.decide.summary import Summary


@dataclass(frozen=True, slots=True)
class Stats:
    """The totals of an executor so far: finished runs, their items, and items and busy seconds by device."""

    n_runs: int = 0
    n_items: int = 0
    n_failed: int = 0
    items: dict[str, int] = field(default_factory=dict)
    busy_s: dict[str, float] = field(default_factory=dict)

    def plus(self, run: Summary) -> "Stats":
        """With one more run."""
        return Stats(
            self.n_runs + 1,
            self.n_items + run.total,
            self.n_failed + run.failed,
            {d: self.items.get(d, 0) + share.items for d, share in run.devices.items()},
            {d: self.busy_s.get(d, 0.0) + share.busy_s for d, share in run.devices.items()},
        )
