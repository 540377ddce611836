"""How many tasks of each stage devices of each kind should do, by a linear program over the kinds."""

import math
from collections.abc import Sequence

from evenload.pipeline.planning.layouts import Layout
from evenload.pipeline.planning.placement_options import PlacementOption
from evenload.pipeline.planning.shares.work_shares import Way, share_work
from evenload.pipeline.problem import Problem

__all__ = ["Quotas"]

_ALIKE = 1.02  # times for an item that differ by less count as one
_Kind = tuple[int | None, ...]  # of each stage: the logarithm of the seconds for an item, None if it fits not


class Quotas:
    """The tasks that placement options of each kind may still take, so that all devices end together.

    windows  of each stage: when its first task can begin and its last must end
    """

    def __init__(self, problem: Problem, layouts: Sequence[Layout], windows: Sequence[tuple[float, float]]):
        self._device2kind = _device_kinds(problem, layouts)
        numbers = {kind: at for at, kind in enumerate(dict.fromkeys(self._device2kind.values()))}
        self._stages = [stage.name for stage in problem.stages]
        ways: dict[tuple, Way] = {}
        for stage, layout in enumerate(layouts):
            for option in layout:
                key = self._key(option)
                if key not in ways:
                    kinds = [numbers[self._device2kind[device]] for device in option.devices]
                    uses = tuple((kind, kinds.count(kind)) for kind in dict.fromkeys(kinds))
                    begin_s, end_s = max(windows[stage][0], option.load_s), windows[stage][1]
                    n_tasks = max(0.0, end_s - begin_s) * option.items_per_s / problem.mean_size
                    ways[key] = Way(stage, n_tasks, uses)
        held = list(self._device2kind.values())
        n_left = [problem.n_left(stage) for stage in range(len(layouts))]
        shares = share_work(list(ways.values()), n_left, [held.count(kind) for kind in numbers])
        scale = max(1.0, shares.done)
        self._left = {
            key: math.ceil(way.rate * used / scale)
            for (key, way), used in zip(ways.items(), shares.used, strict=True)
        }

    def _key(self, option: PlacementOption) -> tuple:
        return option.stage, tuple(self._device2kind[device] for device in option.devices)

    def take(self, option: PlacementOption, n_most: int) -> int:
        """Return how many tasks the option gets, at most ``n_most``; its kind has so many fewer left."""
        key = self._key(option)
        n = max(0, min(n_most, self._left[key]))
        self._left[key] -= n
        return n


def _device_kinds(problem: Problem, layouts: Sequence[Layout]) -> dict[str, _Kind]:
    """Return the kind of each device: how long it takes for each stage in these layouts."""
    logs: dict[str, list[int | None]] = {device.id: [None] * len(layouts) for device in problem.devices}
    for stage, layout in enumerate(layouts):
        for option in layout:
            for device in option.devices:
                logs[device][stage] = round(math.log(option.item_s, _ALIKE))
    return {device: tuple(kind) for device, kind in logs.items()}
