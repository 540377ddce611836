"""Tasks that can begin, stage by stage, as ranges of their numbers."""

import heapq
from collections.abc import Iterable, Iterator

from evenload.pipeline.problem import Problem

TaskRange = tuple[int, int]  # first and one behind the last


class ReadyTasks:
    """The tasks of a job that can begin now, and those that are not done yet.

    n_ready   of each stage, tasks that can begin
    n_left    of each stage, tasks that were not taken
    """

    def __init__(self, problem: Problem):
        self._stages, self._graph = problem.stages, problem.graph
        numbers = range(len(problem.stages))
        self.n_left = [problem.n_left(number) for number in numbers]
        self._n_done_before = [
            stage.n_tasks * problem.n_items - n for stage, n in zip(problem.stages, self.n_left, strict=True)
        ]
        self.n_ready = [0 for _ in numbers]
        self._heaps: list[list[TaskRange]] = [[] for _ in numbers]
        self._n_arrived = {
            (need, number): [0] * problem.n_items
            for number in numbers
            for need in self._graph.needs[number]
            if not self._is_made_of_one(need, number)
        }
        self._n_missing = {  # of each task of a join, the needs that are not there
            number: [len(needs)] * (self._stages[number].n_tasks * problem.n_items)
            for number, needs in enumerate(self._graph.needs)
            if len(needs) > 1
        }
        self._queue_first(problem)

    def _queue_first(self, problem: Problem) -> None:
        """Queue the tasks that can begin at once: those not done whose earlier stages are."""
        for number, stage in enumerate(self._stages):
            first, last = self._n_done_before[number], stage.n_tasks * problem.n_items
            for need in self._graph.needs[number]:
                n_reached = self._n_reached(need, number, self._n_done_before[need])
                last = min(last, n_reached)
                for task in range(n_reached if number in self._n_missing else 0):
                    self._n_missing[number][task] -= 1
            if last > first:
                self._add(number, (first, last))

    def _add(self, stage: int, tasks: TaskRange) -> None:
        heapq.heappush(self._heaps[stage], tasks)
        self.n_ready[stage] += tasks[1] - tasks[0]

    def take(self, stage: int, n: int) -> list[TaskRange]:
        """Take out the first ``n`` tasks that can begin; there must be so many."""
        heap, taken = self._heaps[stage], []
        self.n_ready[stage] -= n
        self.n_left[stage] -= n
        while n:
            first, last = heap[0]
            if last - first > n:
                heapq.heapreplace(heap, (first + n, last))
                last = first + n
            else:
                heapq.heappop(heap)
            taken.append((first, last))
            n -= last - first
        return taken

    def _n_reached(self, need: int, stage: int, n_done: int) -> int:
        """Return how many tasks of ``stage`` follow from ``n_done`` of ``need``; note items half there."""
        before, after = self._stages[need].n_tasks, self._stages[stage].n_tasks
        if self._is_made_of_one(need, stage):
            return n_done * (after // before)
        arrived = self._n_arrived[need, stage]
        for item in range(len(arrived)):
            arrived[item] = min(before, max(0, n_done - item * before))
        return n_done // before * after

    def _is_made_of_one(self, need: int, stage: int) -> bool:
        """Whether a task of ``stage`` follows one of ``need``, and not all of an item's."""
        return self._stages[stage].n_tasks % self._stages[need].n_tasks == 0

    def done(self, stage: int, tasks: Iterable[TaskRange]) -> None:
        """Queue what can begin now that ``tasks`` are done."""
        for later in self._graph.next[stage]:
            for some in tasks:
                for first, last in self._following(stage, some, later):
                    first = max(first, self._n_done_before[later])
                    if first < last:
                        self._add(later, (first, last))

    def _following(self, stage: int, tasks: TaskRange, later: int) -> Iterator[TaskRange]:
        """Yield the tasks of the stage ``later`` that ``tasks`` were the last needs of.

        A sample follows what it is made of; what is made of several follows once all of its item are done.
        """
        if self._is_made_of_one(stage, later):
            width = self._stages[later].n_tasks // self._stages[stage].n_tasks
            reached: Iterable[TaskRange] = ((tasks[0] * width, tasks[1] * width),)
        else:
            reached = self._items_complete(stage, tasks, later)
        missing = self._n_missing.get(later)
        if missing is None:
            yield from reached
            return
        for task in (task for some in reached for task in range(*some)):
            missing[task] -= 1
            if not missing[task]:
                yield task, task + 1

    def _items_complete(self, stage: int, tasks: TaskRange, later: int) -> Iterator[TaskRange]:
        before, after = self._stages[stage].n_tasks, self._stages[later].n_tasks
        arrived = self._n_arrived[stage, later]
        for task in range(*tasks):
            item = task // before
            arrived[item] += 1
            if arrived[item] == before:
                yield item * after, (item + 1) * after


def n_in(tasks: Iterable[TaskRange]) -> int:
    """Count the tasks of ranges."""
    return sum(last - first for first, last in tasks)
