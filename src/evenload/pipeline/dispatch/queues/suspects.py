"""Tasks that were with a worker when it ended, or held it up: whether and how they are run again."""

from collections.abc import Collection, Iterable

from evenload.pipeline.dispatch.course.strand import StageTask

__all__ = ["Suspects"]

MOST_DEATHS = 2  # a task that has ended so many workers is given up
MOST_MACHINES = 5  # or that so many machines were lost with: it may be what ends them


class Suspects:
    """The tasks of a run that are run alone, last or no more, because of what they did to a worker.

    once  stages whose tasks may be run once only
    """

    def __init__(self, once: Collection[int] = ()) -> None:
        self._once = frozenset(once)
        self._deaths: dict[StageTask, int] = {}
        self._machines: dict[StageTask, int] = {}
        self._alone: set[StageTask] = set()
        self._held: list[StageTask] = []

    def after_loss(
        self, running: Iterable[StageTask], saving: Iterable[StageTask], *, blames: bool = True
    ) -> tuple[list[StageTask], list[StageTask]]:
        """Count a worker that ended while it ran ``running``; returns the tasks to run again, and the others.

        saving  tasks that were computed there, and lost before their files were on disk
        blames  False: its machine was lost, which says little against what ran there

        Of several that ran together, one may have ended it: nothing is counted, and each runs alone next.
        """
        running = list(running)
        if blames and len(running) > 1:
            self.separate(running)
            return self.after_end((*saving, *running))
        counts, most = (self._deaths, MOST_DEATHS) if blames else (self._machines, MOST_MACHINES)
        again, given_up = self.after_end(saving)
        for task in running:
            counts[task] = counts.get(task, 0) + 1
            is_over = counts[task] >= most or self.is_once_only(task)
            (given_up if is_over else again).append(task)
        return again, given_up

    def after_end(self, tasks: Iterable[StageTask]) -> tuple[list[StageTask], list[StageTask]]:
        """Return those of a worker that was ended from outside that may run again, and the others."""
        tasks = list(tasks)
        given_up = [task for task in tasks if self.is_once_only(task)]
        return [task for task in tasks if not self.is_once_only(task)], given_up

    def is_once_only(self, task: StageTask) -> bool:
        """Whether it may not be run a second time."""
        return task.stage in self._once

    def separate(self, tasks: Iterable[StageTask]) -> None:
        """Run each of these alone in its worker from now on."""
        self._alone.update(tasks)

    def is_single(self, task: StageTask) -> bool:
        """Whether nothing else may run in its worker."""
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
