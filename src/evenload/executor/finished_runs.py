"""What is kept of the runs of an executor that are over."""

from evenload.devices import DevicePool
from evenload.executor.loop.cost_history import CostHistory
from evenload.executor.loop.stats import Stats
from evenload.executor.run.run import Run

__all__ = ["FinishedRuns"]


class FinishedRuns:
    """The counts of an executor's finished runs, and what they have measured for those to come.

    It holds on to no executor: a run may last as long as its engine.
    """

    def __init__(self, costs: CostHistory):
        self.stats = Stats()
        self._costs = costs

    def take(self, pool: DevicePool, run: Run) -> None:
        """Keep what ``run`` on ``pool`` has measured, for the next one of the same task."""
        assert run.summary is not None
        self._costs.learn(run, run.summary, pool)
        self.stats = self.stats.plus(run.summary)
