"""Clocks: the least and the median time of calls."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LeastTime:
    """The least wall and the least CPU seconds of several calls, and what the last call returned."""

    wall_s: float
    cpu_s: float
    result: Any = None


def least_time(
    work: Callable[[], Any],
    n: int,
    *,
    cpu_clock: Callable[[], float] = time.process_time,
    for_s: float = 0.0,
    warms_up: bool = True,
) -> LeastTime:
    """Time ``n`` calls of ``work``, more until ``for_s`` seconds are over; by default after one that is not
    counted.
    """
    return least_in_turns({"": work}, n, cpu_clock=cpu_clock, for_s=for_s, warms_up=warms_up)[""]


def least_in_turns(
    works: Mapping[str, Callable[[], Any]],
    n: int,
    *,
    cpu_clock: Callable[[], float] = time.process_time,
    for_s: float = 0.0,
    warms_up: bool = True,
) -> dict[str, LeastTime]:
    """Time each of ``works`` in ``n`` rounds in which all take turns, so that what disturbs the machine
    disturbs all alike.
    """
    if warms_up:
        for work in works.values():
            work()
    best: dict[str, LeastTime] = {}
    n_rounds, until = 0, time.perf_counter() + for_s
    while n_rounds < n or time.perf_counter() < until:
        n_rounds += 1
        for name, work in works.items():
            cpu, wall = cpu_clock(), time.perf_counter()
            result = work()
            wall_s, cpu_s = time.perf_counter() - wall, cpu_clock() - cpu
            old = best.get(name, LeastTime(wall_s, cpu_s))
            best[name] = LeastTime(min(wall_s, old.wall_s), min(cpu_s, old.cpu_s), result)
    return best


def median_cpu_s(
    call: Callable[..., T], n: int, arguments: Sequence[tuple[Any, ...]] = ((),)
) -> tuple[float, T]:
    """The median CPU seconds (of this process) of ``call`` in ``n`` passes over ``arguments``, after one call
    that may compile; and its last answer.
    """
    answer = call(*arguments[0])
    spent = []
    for _ in range(max(1, n)):
        for given in arguments:
            began = time.process_time()
            answer = call(*given)
            spent.append(time.process_time() - began)
    return statistics.median(spent), answer
