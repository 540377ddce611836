"""The simulated time of each device as slices of loads and work."""

from collections.abc import Sequence
from dataclasses import replace

from evenload.pipeline.plan import TimelineSlice
from evenload.pipeline.planning.simulation.workers import SimulatedWorker
from evenload.pipeline.problem import Problem


class PlanTimeline:
    """The slices of a simulated run. ``joins``: a slice that goes on where the last one of its device ended,
    with the same kind of work, is one with it; else a worker on several devices has one slice, of device
    "a+b", for each item.
    """

    def __init__(self, problem: Problem, workers: Sequence[SimulatedWorker], *, joins: bool):
        self.slices: list[TimelineSlice] = []
        self._names = [stage.name for stage in problem.stages]
        self._workers, self._joins = workers, joins
        self._last: dict[str, int] = {}

    def add(
        self, members: Sequence[int], stage: int, kind: str, start_s: float, stop_s: float, n_each: int
    ) -> None:
        """Add a slice for each device of each of these workers; with several items at once, one for each."""
        for number in members:
            devices = self._workers[number].devices
            for device in devices if self._joins else ("+".join(devices),):
                for _ in range(1 if self._joins else max(1, n_each)):
                    n_items = n_each if self._joins else min(1, n_each)
                    self._add(TimelineSlice(device, self._names[stage], kind, start_s, stop_s, n_items))

    def _add(self, new: TimelineSlice) -> None:
        at = self._last.get(new.device)
        last = self.slices[at] if at is not None and self._joins else None
        is_same = last is not None and (last.stage, last.kind) == (new.stage, new.kind)
        if at is not None and last is not None and is_same and new.start_s <= last.stop_s + 1e-6:
            n_items = last.n_items + new.n_items
            self.slices[at] = replace(last, stop_s=max(last.stop_s, new.stop_s), n_items=n_items)
        else:
            self._last[new.device] = len(self.slices)
            self.slices.append(new)
