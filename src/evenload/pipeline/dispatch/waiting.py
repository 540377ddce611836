"""Tasks that may run now, longest first, and the groups that should not run them."""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping

from evenload.pipeline.dispatch.item_flow import StageTask

__all__ = ["Waiting"]


class Waiting:
    """The tasks that may run now: a heap for each stage. ``avoid``: task -> groups where it did not fit."""

    def __init__(self, n_stages: int):
        self.avoid: dict[StageTask, set[str]] = {}
        self._heaps: list[list[tuple[float, int, StageTask]]] = [[] for _ in range(n_stages)]
        self._costs: dict[int, float] = {}

    def add(self, tasks: Iterable[StageTask], costs: Mapping[int, float] | None = None) -> None:
        """``costs``: strand -> size in any unit; kept for its later stages."""
        self._costs.update(costs or {})
        for task in tasks:
            entry = (-self._costs.get(task.strand, 0.0), task.strand, task)
            heapq.heappush(self._heaps[task.stage], entry)

    def __len__(self) -> int:
        return sum(map(len, self._heaps))

    def __iter__(self) -> Iterator[StageTask]:
        return (task for heap in self._heaps for _, _, task in heap)

    def count(self, stage: int) -> int:
        return len(self._heaps[stage])

    def of(self, stage: int) -> list[StageTask]:
        return [task for _, _, task in self._heaps[stage]]

    @property
    def has_costs(self) -> bool:
        return bool(self._costs)

    def has_for(self, group: str, stage: int) -> bool:
        """Is there a task of ``stage`` that ``group`` may run?"""
        if not self.avoid:
            return bool(self._heaps[stage])
        return any(group not in self.avoid.get(task, ()) for _, _, task in self._heaps[stage])

    def take(self, group: str, stage: int) -> StageTask:
        """The longest that ``group`` may run; there must be one."""
        heap = self._heaps[stage]
        if not self.avoid:
            return heapq.heappop(heap)[2]
        entry = min(one for one in heap if group not in self.avoid.get(one[2], ()))
        heap.remove(entry)
        heapq.heapify(heap)
        return entry[2]

    def remove(self, strands: Collection[int]) -> list[StageTask]:
        """Take out the tasks of ``strands``, and return them."""
        gone = [task for task in self if task.strand in strands]
        for stage in {task.stage for task in gone}:
            self._heaps[stage] = [one for one in self._heaps[stage] if one[2].strand not in strands]
            heapq.heapify(self._heaps[stage])
        return gone

    def give_back(self, task: StageTask) -> None:
        """It was taken, and not run."""
        self.add([task])
