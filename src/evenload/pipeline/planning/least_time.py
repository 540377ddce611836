"""Compute the least time that any plan could take, however it holds, orders and overlaps the stages.

What a device can do in T seconds depends on the set A of stages that it ever loads. It loads each of them
once. It has nothing to do before ``head``, the earliest time at which an item can reach the first stage of A,
and nothing useful to do after ``T - tail``, when the last item must have left the last stage of A. So it
works for at most

    window(A) = T - tail(A) - max(sum of loads in A, head(A)).

In a graph of stages, head and tail of a stage are the longest ways to it and from it; those of A are the
least of its stages'.

By linear programming duality, T is too short if there are prices for the stages' tasks such that all devices
together earn less than all tasks are worth, each with the best set A and the best whole numbers of tasks in
its window. We take the prices that solve the problem in fractions of tasks: a task of stage s is worth its
seconds over the widest window that a device working on s can have. Each stage by itself, and the work as a
whole, are special cases.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from evenload.pipeline.planning.placement_options import device_options
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem

__all__ = ["least_time"]

_STEPS = 50
_ROUNDING = 1e-9
_MOST_TRIED = 200  # counts of a device's longer tasks; beyond, fractions are as good


def least_time(problem: Problem) -> float:
    """Return the seconds that no plan on these devices can beat; infinite if a stage fits nowhere."""
    costs = [_cost(number, problem) for number in range(len(problem.stages))]
    if any(not any(cost.speeds) for cost in costs):
        return math.inf
    left = [number for number, cost in enumerate(costs) if cost.n_left]
    if not left:
        return 0.0
    bound = _Bound(problem, costs, left)
    low = bound.path_s()
    low = _last_impossible(bound.could_in_fractions, low)
    low = max([low, *(_last_impossible(lambda t, s=s: bound.could_alone(s, t), low) for s in left)])
    return _last_impossible(bound.could_in_whole_tasks, low) if problem.sizes is None else low


@dataclass(frozen=True, slots=True)
class _Cost:
    """The least that a stage costs. ``speeds``: of each device on it, 0 where it cannot hold the stage."""

    n_left: int
    item_s: float
    load_s: float
    speeds: tuple[float, ...]
    work_s: float
    longest_s: float
    shortest_s: float
    is_split: bool


def _cost(number: int, problem: Problem) -> _Cost:
    stage, sizes = problem.stages[number], problem.sizes
    least = min(sizes) if sizes else 1.0  # which items are left is not known
    is_split = "layer_split" in stage.fits and len(problem.devices) > 1
    is_split = is_split and stage.weights is not None and stage.weights.n_blocks > 1
    speeds = tuple(_best_speed(stage, device, problem, is_split) for device in problem.devices)
    is_held = any(stage.name in device.holds for device in problem.devices)
    n_left = problem.n_left(number)
    return _Cost(
        n_left=n_left,
        item_s=stage.item_s,
        load_s=0.0 if is_held else stage.load_s,
        speeds=speeds,
        work_s=n_left * stage.item_s * (least if problem.done else problem.mean_size),
        longest_s=stage.item_s * (least if problem.done or not sizes else max(sizes)),
        shortest_s=stage.item_s * least,
        is_split=is_split,
    )


def _best_speed(stage: PlanStage, device: PlanDevice, problem: Problem, is_split: bool) -> float:
    """Return the device's speed on the stage, 1 for a whole model on a device of speed 1.

    In a group that splits the layers, a device counts with the speed that it has with the whole model.
    """
    ways = [stage.item_s / option.item_s for option in device_options(stage, device, problem)]
    return max([*ways, device.speed if is_split and stage.name not in device.barred else 0.0])


class _Bound:
    """Tests of whether all work can be done by a time ``t``; each says False only if it surely cannot."""

    def __init__(self, problem: Problem, costs: Sequence[_Cost], left: Sequence[int]):
        self.problem, self.costs, self.left = problem, costs, left
        self.ready = [device.ready_s for device in problem.devices]
        graph = problem.graph
        passes = [cost.shortest_s / max(cost.speeds) for cost in costs]
        first = [0.0 if needs else cost.load_s + min(self.ready)
                 for cost, needs in zip(costs, graph.needs, strict=True)]  # fmt: skip
        leads = [lead + seconds for lead, seconds in zip(first, passes, strict=True)]
        self.head = [0.0] * len(costs) if any(problem.done) else graph.longest_before(leads)
        self.tail = graph.longest_after([p if c.n_left else 0.0 for p, c in zip(passes, costs, strict=True)])
        most = min(3, len(left))
        self.sets = [a for size in range(1, most + 1) for a in combinations(left, size)]

    def path_s(self) -> float:
        """Return the seconds of an item on its longest way through the stages, on the fastest devices."""
        costs, lead = self.costs, [max(head, c.load_s) for head, c in zip(self.head, self.costs, strict=True)]
        return max(lead[s] + costs[s].longest_s / max(costs[s].speeds) + self.tail[s] for s in self.left)

    def window(self, a: Sequence[int], t: float) -> float:
        """Return the seconds that a device which loads the stages ``a`` can work until ``t``."""
        loads = sum(self.costs[s].load_s for s in a)
        return max(0.0, t - min(self.tail[s] for s in a) - max(loads, min(self.head[s] for s in a)))

    def widest(self, t: float) -> dict[int, float]:
        """Return the widest window for each stage that has tasks left."""
        windows = {a: self.window(a, t) for a in self.sets}
        return {s: max(window for a, window in windows.items() if s in a) for s in self.left}

    def total_speed(self, t: float) -> float:
        """Return the speed of all devices, less the share of the time before they are ready."""
        fastest = [max(self.costs[s].speeds[d] for s in self.left) for d in range(len(self.ready))]
        return sum(speed * max(0.0, 1 - ready / t) for speed, ready in zip(fastest, self.ready, strict=True))

    def could_in_fractions(self, t: float) -> bool:
        """Test all stages, with fractions of tasks."""
        widest = self.widest(t)
        if min(widest.values()) <= 0:
            return False
        return sum(self.costs[s].work_s / widest[s] for s in self.left) <= self.total_speed(t)

    def could_alone(self, s: int, t: float) -> bool:
        """Test one stage, on devices that do nothing else."""
        cost, possible = self.costs[s], 0.0
        whole = not cost.is_split and self.problem.sizes is None
        for speed, ready in zip(cost.speeds, self.ready, strict=True):
            window = max(0.0, t - self.tail[s] - max(cost.load_s, self.head[s], ready))
            n_tasks = window * speed / cost.item_s
            possible += math.floor(n_tasks + _ROUNDING) if whole else n_tasks
        return possible * cost.item_s >= cost.work_s * (1 - _ROUNDING)

    def could_in_whole_tasks(self, t: float) -> bool:
        """Test all stages in whole tasks, at the prices of the problem in fractions."""
        widest = self.widest(t)
        if min(widest.values()) <= 0:
            return False
        price = {s: self.costs[s].item_s / widest[s] for s in self.left}
        earned = sum(self._most_earned(d, t, price) for d in range(len(self.ready)))
        return earned >= sum(price[s] * self.costs[s].n_left for s in self.left) * (1 - _ROUNDING)

    def _most_earned(self, device: int, t: float, price: dict[int, float]) -> float:
        """Return the most that one device can earn by ``t``."""
        return max(
            self._earned(a, min(self.window(a, t), max(0.0, t - self.ready[device])), device, price)
            for a in self.sets
        )

    def _earned(self, a: Sequence[int], window: float, device: int, price: dict[int, float]) -> float:
        costs = {s: self.costs[s] for s in a if self.costs[s].speeds[device]}
        task_s = {s: cost.item_s / cost.speeds[device] for s, cost in costs.items()}
        if not task_s:
            return 0.0
        best = max(price[s] / seconds * window for s, seconds in task_s.items())  # in fractions of tasks
        if any(cost.is_split for cost in costs.values()) or len(task_s) > 2:
            return best
        if len(task_s) == 1:
            ((s, seconds),) = task_s.items()
            return price[s] * math.floor(window / seconds + _ROUNDING)
        (first, first_s), (second, second_s) = sorted(task_s.items(), key=lambda pair: -pair[1])
        most = math.floor(window / first_s + _ROUNDING)
        if most > _MOST_TRIED:
            return best
        return max(
            price[first] * n + price[second] * math.floor((window - n * first_s) / second_s + _ROUNDING)
            for n in range(most + 1)
        )


def _last_impossible(could: Callable[[float], bool], low: float) -> float:
    """Return the largest time found, from ``low`` on, at which ``could`` is False; bisection."""
    if low <= 0:
        low = 1e-12
    if could(low):
        return low
    high = low * 2
    while not could(high):
        low, high = high, high * 2
        if high > 1e15:
            return math.inf
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if could(middle) else (middle, high)
    return low
