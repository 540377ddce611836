"""Tasks that may have ended or held up a worker: how often, and how they are run from then on."""

from collections.abc import Collection, Iterable

from evenload.pipeline.dispatch.item_flow import StageTask

__all__ = ["Suspects"]

MOST_DEATHS = 2  # a task that has ended so many workers is given up


class Suspects:
    """The tasks of a run that are run alone, or last, because of what they did to a worker."""

    def __init__(self) -> None:
        self._deaths: dict[StageTask, int] = {}
        self._alone: set[StageTask] = set()
        self._held: list[StageTask] = []

    def died(self, task: StageTask) -> bool:
        """Count a worker that ended while it ran ``task``. Returns True if the task is given up."""
        self._deaths[task] = self._deaths.get(task, 0) + 1
        return self._deaths[task] >= MOST_DEATHS

    def separate(self, tasks: Iterable[StageTask]) -> None:
        """Run each of these alone in its worker from now on."""
        self._alone.update(tasks)

    def is_alone(self, task: StageTask) -> bool:
        """Whether nothing else may run in its worker."""
        return task in self._alone

    def is_single(self, task: StageTask) -> bool:
        """Whether it is in no batch."""
        return task in self._deaths or task in self._alone

    def hold(self, tasks: Iterable[StageTask]) -> None:
        """Keep these until nothing else waits."""
        self._held += tasks

    def remove(self, strands: Collection[int]) -> list[StageTask]:
        """Take out the tasks of ``strands`` that were held, and return them."""
        gone = [task for task in self._held if task.strand in strands]
        self._held = [task for task in self._held if task.strand not in strands]
        return gone

    def release(self) -> list[StageTask]:
        """What was held; it may run now."""
        held, self._held = self._held, []
        return held
