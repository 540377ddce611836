"""Workers that may be on other machines: what they are told first, and what their answers mean here.

answer ──► times by this machine's clock ──► site: what its machine has ──► (order for what it lacks)
                                         ──► piece: into the run folder ──► done, once it is on disk
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from evenload.executor.decide.record import Record
from evenload.executor.supervisor.worker import Worker
from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.worker_protocol import OrderOutcome
from evenload.pipeline.run.machines.fetched_files import FetchedFiles
from evenload.pipeline.run.machines.site_visits import SiteVisits
from evenload.pipeline.stage import StageSetup


class RemoteWorkers:
    """The machines of a run's workers, and the files that go to and fro.

    place_of  where a task's output belongs, relative to the run folder; None if that is no file of its stage
    file_limit  bytes of the longest file that is fetched
    wake      called from a thread when there is something for ``done``
    """

    def __init__(
        self,
        stages: Sequence[StageSetup],
        run_folder: Path,
        record: Record,
        place_of: Callable[[StageTask, str], str | None],
        wake: Callable[[], None],
        file_limit: int,
    ):
        self.visits = SiteVisits(stages, run_folder, record)
        self._fetched = FetchedFiles(run_folder, place_of, wake, file_limit)

    def take(
        self,
        worker: Worker,
        outcome: OrderOutcome,
        answered_s: float,
        has: Callable[[StageTask | None], bool],
    ) -> OrderOutcome | None:
        """Return the outcome as one of a worker on this machine; None for a part of one that is to come.

        answered_s  when the worker answered, by this machine's clock
        has         whether a task is one that it runs or saves
        """
        ahead_s = answered_s - outcome.told_s
        outcome.start_s, outcome.stop_s = outcome.start_s + ahead_s, outcome.stop_s + ahead_s
        if outcome.piece is not None:
            if has(outcome.piece.task):
                self._fetched.take(worker.number, outcome.piece)
            return None
        is_far = outcome.files and not self.visits.has_run_folder(worker)
        if outcome.kind == "done" and is_far and has(outcome.task):
            self._fetched.finish(worker.number, outcome)
            return None
        return outcome

    def done(self) -> list[tuple[int, OrderOutcome]]:
        """Return what is over as its files are on disk here now, with the numbers of the workers."""
        return self._fetched.done()

    def forget(self, worker: Worker) -> None:
        """``worker`` is gone."""
        self.visits.forget(worker)
        self._fetched.forget(worker.number)

    def close(self) -> None:
        self._fetched.close()
        self.visits.close()
