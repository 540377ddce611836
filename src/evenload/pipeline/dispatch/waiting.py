"""Tasks that may run now, by priority and longest first, and the groups that should not run them."""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from evenload.pipeline.dispatch.item_flow import StageTask

__all__ = ["Waiting"]


class Waiting:
    """The tasks that may run now: a heap for each stage.

    avoid        task -> groups where it did not fit
    priority_of  strand -> number; the highest goes first, the longest of equals, then in order
    """

    def __init__(self, n_stages: int, priority_of: Callable[[int], float] | None = None):
        self.avoid: dict[StageTask, set[str]] = {}
        self._priority_of = priority_of
        self._heaps: list[list[tuple[float, float, int, StageTask]]] = [[] for _ in range(n_stages)]
        self._costs: dict[int, float] = {}

    def add(self, tasks: Iterable[StageTask], costs: Mapping[int, float] | None = None) -> None:
        """``costs``: strand -> size in any unit; kept for its later stages."""
        self._costs.update(costs or {})
        for task in tasks:
            first = -self._priority_of(task.strand) if self._priority_of is not None else 0.0
            entry = (first, -self._costs.get(task.strand, 0.0), task.strand, task)
            heapq.heappush(self._heaps[task.stage], entry)

    def __len__(self) -> int:
        return sum(map(len, self._heaps))

    def __iter__(self) -> Iterator[StageTask]:
        return (entry[-1] for heap in self._heaps for entry in heap)

    def count(self, stage: int) -> int:
        return len(self._heaps[stage])

    def of(self, stage: int) -> list[StageTask]:
        return [entry[-1] for entry in self._heaps[stage]]

    @property
    def order(self) -> str:
        """What comes first, in words."""
        if self._priority_of is not None:
            return "highest priority first"
        return "longest first" if self._costs else "next in line"

    def has_for(self, group: str, stage: int) -> bool:
        """Is there a task of ``stage`` that ``group`` may run?"""
        if not self.avoid:
            return bool(self._heaps[stage])
        return any(group not in self.avoid.get(entry[-1], ()) for entry in self._heaps[stage])

    def take(self, group: str, stage: int) -> StageTask:
        """The first that ``group`` may run; there must be one."""
        heap = self._heaps[stage]
        if not self.avoid:
            return heapq.heappop(heap)[-1]
        entry = min(one for one in heap if group not in self.avoid.get(one[-1], ()))
        heap.remove(entry)
        heapq.heapify(heap)
        return entry[-1]

    def remove(self, strands: Collection[int]) -> list[StageTask]:
        """Take out the tasks of ``strands``, and return them."""
        gone = [task for task in self if task.strand in strands]
        for stage in {task.stage for task in gone}:
            self._heaps[stage] = [one for one in self._heaps[stage] if one[-1].strand not in strands]
            heapq.heapify(self._heaps[stage])
        return gone

    def give_back(self, task: StageTask) -> None:
        """It was taken, and not run."""
        self.add([task])
