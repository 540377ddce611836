"""Compute the least time that any plan could take, however it holds, orders and overlaps the stages.

What a device can do in T seconds depends on the set A of stages that it ever loads. It loads each of them
once, and no faster than the device that is fastest at it (which may have the model parked in host memory).
It has nothing to do before ``head``, the earliest time at which an item can reach the first stage of A, and
nothing useful to do after ``T - tail``, when the last item must have left the last stage of A. So it works
for at most

    window(A) = T - tail(A) - max(sum of loads in A, head(A)).

In a graph of stages, head and tail of a stage are the longest ways to it and from it; those of A are the
least of its stages'.

By linear programming duality, T is too short if there are prices for the stages' tasks such that all devices
together earn less than all tasks are worth, each with the best set A and the best whole numbers of tasks in
its window. Any prices prove a bound; we take those of the linear program that shares fractions of tasks over
the kinds of devices there are, each with the widest window that it can have for a stage. So it is known that
some stages fit on few devices, or are slow on some. Each stage by itself is a special case.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from evenload.pipeline.planning.placement_options import ALIKE, device_options
from evenload.pipeline.planning.work_shares import Way, share_work
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem

_ROUNDING = 1e-9
_EARLIEST_S = 1e-12
_MANY = 100  # tasks for each device: whether they are whole makes no difference
_ROUNDS = 4  # of prices, each at the time that those before have proved too short
_MOST_TRIED = 200  # counts of a device's longer tasks; beyond, fractions are as good


def least_time(problem: Problem) -> float:
    """Return the seconds that no plan on these devices can beat; infinite if a stage fits nowhere."""
    costs = _costs(problem)
    if any(not any(cost.speeds) for cost in costs):
        return math.inf
    bound = _Bound(problem, costs)
    if not bound.left:
        return 0.0
    low = max(bound.path_s(), _EARLIEST_S)
    low = max([low, *(_last_impossible(lambda t, s=s: bound.could_alone(s, t), low) for s in bound.left)])
    low, prices = _priced(bound, low)
    is_many = sum(cost.n_left for cost in costs) > _MANY * len(problem.devices)
    return low if is_many else _last_impossible(bound.in_whole_tasks(prices), low)


def _priced(bound: "_Bound", low: float) -> tuple[float, Mapping[int, float]]:
    """Return the largest time that prices prove too short, and the prices, of a second of work."""
    prices: Mapping[int, float] = {}
    for _ in range(_ROUNDS):
        before, prices = low, bound.prices(low)
        low = _last_impossible(bound.in_fractions(prices), low)
        if low <= before * (1 + _ROUNDING):
            break
    return low, prices


def task_prices(problem: Problem) -> list[float]:
    """Return a price for a task of each stage, at which the bound of all stages together is proved."""
    costs = _costs(problem)
    bound = _Bound(problem, costs)
    prices = _priced(bound, max(bound.path_s(), _EARLIEST_S))[1] if bound.left else {}
    return [prices.get(number, 0.0) * cost.item_s for number, cost in enumerate(costs)]


def task_rates(problem: Problem) -> list[list[float]]:
    """Return the tasks a second of each device, of each stage; 0 where it cannot hold the stage."""
    costs = _costs(problem)
    return [[speed / cost.item_s for speed in cost.speeds] for cost in costs]


@dataclass(frozen=True, slots=True)
class _LeastWork:
    """The least that a stage costs. ``speeds``: of each device on it, 0 where it cannot hold the stage."""

    n_left: int
    item_s: float
    load_s: float
    speeds: tuple[float, ...]
    work_s: float
    is_split: bool


def _costs(problem: Problem) -> list[_LeastWork]:
    return [_cost(number, problem) for number in range(len(problem.stages))]


def _cost(number: int, problem: Problem) -> _LeastWork:
    stage = problem.stages[number]
    is_split = "layer_split" in stage.fits and len(problem.devices) > 1
    is_split = is_split and stage.weights is not None and stage.weights.n_blocks > 1
    speeds = tuple(_best_speed(stage, device, problem, is_split) for device in problem.devices)
    is_held = any(stage.name in device.holds for device in problem.devices)
    returns = (seconds for one in problem.devices for name, seconds in one.returns if name == stage.name)
    n_left = problem.n_left(number)
    return _LeastWork(
        n_left=n_left,
        item_s=stage.item_s,
        load_s=0.0 if is_held else min([stage.load_s, *returns]),
        speeds=speeds,
        work_s=n_left * stage.item_s,
        is_split=is_split,
    )


def _best_speed(stage: PlanStage, device: PlanDevice, problem: Problem, is_split: bool) -> float:
    """Return the device's speed on the stage, 1 for a whole model on a device of speed 1.

    In a group that splits the layers, a device counts with the speed that it has with the whole model.
    """
    ways = [stage.item_s / option.item_s for option in device_options(stage, device, problem)]
    return max([*ways, device.speed if is_split and stage.name not in device.barred else 0.0])


_Kind = tuple[tuple[float, ...], float]  # devices that are alike: speed on each stage, seconds until ready


class _Bound:
    """Tests of whether all work can be done by a time ``t``; each says False only if it surely cannot."""

    def __init__(self, problem: Problem, costs: Sequence[_LeastWork]):
        self.costs = costs
        self.left = left = [number for number, cost in enumerate(costs) if cost.n_left]
        speeds = zip(*(cost.speeds for cost in costs), strict=True)
        ready = [device.ready_s for device in problem.devices]
        self.kinds: Counter[_Kind] = Counter(zip(speeds, ready, strict=True))
        graph = problem.graph
        passes = [cost.item_s / max(cost.speeds) for cost in costs]
        first = [0.0 if needs else cost.load_s + min(ready)
                 for cost, needs in zip(costs, graph.needs, strict=True)]  # fmt: skip
        leads = [lead + seconds for lead, seconds in zip(first, passes, strict=True)]
        self.head = [0.0] * len(costs) if any(problem.done) else graph.longest_before(leads)
        self.tail = graph.longest_after([p if c.n_left else 0.0 for p, c in zip(passes, costs, strict=True)])
        most = min(3, len(left))
        self.sets = [a for size in range(1, most + 1) for a in combinations(left, size)]
        self._least_lost = {
            one: {s: min(self.lost(a, one) for a in self.sets if s in a) for s in left} for one in {*ready}
        }

    def path_s(self) -> float:
        """Return the seconds of an item on its longest way through the stages, on the fastest devices."""
        costs, lead = self.costs, [max(head, c.load_s) for head, c in zip(self.head, self.costs, strict=True)]
        return max(lead[s] + costs[s].item_s / max(costs[s].speeds) + self.tail[s] for s in self.left)

    def lost(self, a: tuple[int, ...], ready: float) -> float:
        """Return the seconds that are none for work of a device that loads ``a`` once it is ready."""
        loaded_s = ready + sum(self.costs[s].load_s for s in a)
        return min(self.tail[s] for s in a) + max(loaded_s, min(self.head[s] for s in a))

    def prices(self, t: float) -> dict[int, float]:
        """Return the prices of a second of work on each stage at which the least is earned by ``t``."""
        alike: dict[tuple, int] = {}
        for (speeds, ready), n_devices in self.kinds.items():
            key = (tuple(round(math.log(speed, ALIKE)) if speed else None for speed in speeds), ready)
            alike[key] = alike.get(key, 0) + n_devices
        ways = []
        for number, (logs, ready) in enumerate(alike):
            widest = ((s, max(0.0, t - lost)) for s, lost in self._least_lost[ready].items())
            ways += [Way(s, w * ALIKE ** logs[s], ((number, 1),)) for s, w in widest if logs[s] is not None]
        work_s = [self.costs[s].work_s if s in self.left else 0.0 for s in range(len(self.costs))]
        found = share_work(ways, work_s, list(alike.values())).prices
        return {s: found[s] for s in self.left}

    def in_fractions(self, prices: Mapping[int, float]) -> Callable[[float], bool]:
        """Return the test of all stages, with fractions of tasks, at these prices of a second of work."""
        due = sum(prices[s] * self.costs[s].work_s for s in self.left) * (1 - _ROUNDING)
        kinds = [
            (n, [(lost, speeds[s] * prices[s]) for s, lost in self._least_lost[ready].items()])
            for (speeds, ready), n in self.kinds.items()
        ]
        return lambda t: sum(n * max(0.0, *((t - lost) * pay for lost, pay in a)) for n, a in kinds) >= due

    def could_alone(self, s: int, t: float) -> bool:
        """Test one stage, on devices that do nothing else."""
        cost, possible = self.costs[s], 0.0
        whole = not cost.is_split
        for (speeds, ready), n_devices in self.kinds.items():
            n_tasks = max(0.0, t - self.lost((s,), ready)) * speeds[s] / cost.item_s
            possible += n_devices * (math.floor(n_tasks + _ROUNDING) if whole else n_tasks)
        return possible * cost.item_s >= cost.work_s * (1 - _ROUNDING)

    def in_whole_tasks(self, prices: Mapping[int, float]) -> Callable[[float], bool]:
        """Return the test of all stages in whole tasks, at these prices of a second of work."""
        price = {s: prices[s] * self.costs[s].item_s for s in self.left}
        due = sum(price[s] * self.costs[s].n_left for s in self.left) * (1 - _ROUNDING)
        kinds = [
            (n, [(self.lost(a, ready), self._tasks(a, speeds, price)) for a in self.sets])
            for (speeds, ready), n in self.kinds.items()
        ]
        return lambda t: sum(n * max(_earned(one, t - lost) for lost, one in a) for n, a in kinds) >= due

    def _tasks(self, a: Sequence[int], speeds: Sequence[float], price: Mapping[int, float]) -> "_Tasks":
        """Return what a device of these speeds can earn with a task of each of ``a``, and in which time."""
        able = [(s, self.costs[s]) for s in a if speeds[s]]
        tasks = sorted(((cost.item_s / speeds[s], price[s]) for s, cost in able), reverse=True)
        return tasks, any(cost.is_split for _, cost in able)


_Tasks = tuple[list[tuple[float, float]], bool]  # seconds and price, the longest first; may be in fractions


def _earned(some: _Tasks, window: float) -> float:
    """Return the most that a device can earn in a window with these tasks, or somewhat more."""
    tasks, is_split = some
    if not tasks or window <= 0:
        return 0.0
    if len(tasks) == 1 and not is_split:
        return tasks[0][1] * int(window / tasks[0][0] + _ROUNDING)
    best = max(price / seconds for seconds, price in tasks) * window  # in fractions of tasks
    if is_split or len(tasks) > 2:
        return best
    (first_s, first), (second_s, second) = tasks
    most = int(window / first_s + _ROUNDING)
    if most > _MOST_TRIED:
        return best
    return max(
        first * n + second * int((window - n * first_s) / second_s + _ROUNDING) for n in range(most + 1)
    )


def _last_impossible(could: Callable[[float], bool], low: float) -> float:
    """Return the largest time found, from ``low`` on, at which ``could`` is False; bisection."""
    if could(low):
        return low
    high = low * 2
    while not could(high):
        low, high = high, high * 2
        if high > 1e15:
            return math.inf
    while high - low > low * _ROUNDING:
        middle = (low + high) / 2
        low, high = (low, middle) if could(middle) else (middle, high)
    return low
