"""What is kept of runs that are over: of an executor's, and the last of this process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from evenload.devices import DevicePool
from evenload.executor.decide.summary import Summary
from evenload.executor.loop.cost_history import CostHistory
from evenload.executor.run.run import Run


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


@dataclass(frozen=True, slots=True)
class LastRun:
    """A run that is over: of a map, or of the calls that were submitted to an executor.

    task         the name of the function, of an LLM's engine, or "submitted calls"
    status       done | failures (of items) | interrupted | failed
    summary      its figures: bound, ratio, factors, what each device did
    certificate  makes its certificate; see ``Results.certificate``
    """

    task: str
    stage: str
    status: str
    summary: Summary
    certificate: Callable[[], dict[str, Any]] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.task}: {self.summary}"


_last: list[LastRun] = []  # one at most; a list is changed as a whole, from any thread


def last_run() -> LastRun | None:
    """Return the run of this process that ended last; None before the first.

    That of a map ends with its results, that of ``joblib.Parallel`` with its call, and that of submitted
    calls with ``finish_calls``, ``shutdown`` or ``close``.
    """
    return next(iter(_last), None)


class FinishedRuns:
    """The counts of an executor's finished runs, and what they have measured for those to come.

    status  of the run that ended last; see LastRun

    It holds on to no executor: a run may last as long as its engine.
    """

    def __init__(self, costs: CostHistory):
        self.stats = Stats()
        self.status = "interrupted"
        self._costs = costs

    def take(self, pool: DevicePool, run: Run) -> None:
        """Keep what ``run`` on ``pool`` has measured, for the next one of the same task."""
        assert run.summary is not None
        self.status = run.status
        if run.summary.total:  # one without items says nothing, and hides the one before
            _last[:] = [LastRun(run.task.name, run.options.stage, run.status, run.summary, run.certificate)]
        self._costs.learn(run, run.summary, pool)
        self.stats = self.stats.plus(run.summary)
