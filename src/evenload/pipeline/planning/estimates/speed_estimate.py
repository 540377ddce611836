"""Estimate the speeds of devices and the seconds of stages from what was measured so far."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median_high, median_low

from evenload.pipeline.problem import Problem

MOST_COUNTED = 20  # items of one device and stage; more say nothing new
SPEED_WEIGHT = 2.0  # the planned speed of a device counts as so many measured items
TIME_WEIGHT = {"measured": 10.0, "given": 5.0, "computed": 2.0}  # the same for a stage's seconds, by source
NOISE = 0.25  # standard deviation of one item's seconds, as a share: items differ
SPREAD = 0.3  # usual error of a device's planned speed, in its logarithm
_ROUNDS = 30


@dataclass(frozen=True, slots=True)
class MeanTime:
    """The mean seconds of ``n`` items."""

    n: int
    mean_s: float


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """An estimate of how fast everything is.

    speed   of each device
    item_s  seconds for an item of each stage, on a device of speed 1
    error   by device and by stage, the share by which that may be off by chance
    """

    speed: Mapping[str, float]
    item_s: Mapping[str, float]
    error: Mapping[str, float] = field(default_factory=dict)


def estimate_speeds(
    problem: Problem, timings: Mapping[tuple[str, str], MeanTime], sources: Mapping[str, str] | None = None
) -> SpeedEstimate:
    """Fit speeds and seconds to ``timings``, by device and stage, and to what was planned.

    An item takes ``item_s / speed``: the logarithms of both are fitted in turns, weighted by the number of
    items. Planned values count as a few items, because a slow device cannot be told from a long stage while
    each device has done another stage. A change that most devices share is put down to the stages.
    ``sources``: from where each stage's planned seconds are known.
    """
    weight = {name: TIME_WEIGHT.get(source, 0.0) for name, source in (sources or {}).items()}
    stages = {stage.name: math.log(stage.item_s) for stage in problem.stages}
    speeds = {device.id: math.log(device.speed) for device in problem.devices}
    seen = {
        (device, stage): (min(timing.n, MOST_COUNTED), math.log(timing.mean_s))
        for (device, stage), timing in timings.items()
        if device in speeds and stage in stages and timing.n > 0 and timing.mean_s > 0
    }
    planned = dict(speeds)
    if seen:
        _fit(speeds, stages, seen, weight)
    off = [speeds[device] - planned[device] for device in speeds]
    common = min(median_low(off), median_high(off), key=abs)
    n_of = dict.fromkeys(speeds, SPEED_WEIGHT) | {stage: weight.get(stage, 0.0) for stage in stages}
    for (device, stage), (n, _) in seen.items():
        n_of[device] += n
        n_of[stage] += n
    return SpeedEstimate(
        {device: math.exp(value - common) for device, value in speeds.items()},
        {stage: math.exp(value - common) for stage, value in stages.items()},
        {name: NOISE / math.sqrt(n) if n else math.inf for name, n in n_of.items()},
    )


def _fit(
    speeds: dict[str, float],
    stages: dict[str, float],
    seen: Mapping[tuple[str, str], tuple[int, float]],
    weight: Mapping[str, float],
) -> None:
    """Move the logarithms ``speeds`` and ``stages`` to what fits ``seen``, in turns."""
    planned, known = dict(speeds), dict(stages)
    of_stage: dict[str, list[tuple[int, float, str]]] = {stage: [] for stage in stages}
    of_device: dict[str, list[tuple[int, float, str]]] = {device: [] for device in speeds}
    for (device, stage), (n, log_s) in seen.items():
        of_stage[stage].append((n, log_s, device))
        of_device[device].append((n, log_s, stage))
    for _ in range(_ROUNDS):
        for stage, here in of_stage.items():
            if here:
                own = weight.get(stage, 0.0)
                total = own * known[stage] + sum(n * (log_s + speeds[device]) for n, log_s, device in here)
                stages[stage] = total / (own + sum(n for n, _, _ in here))
        for device, here in of_device.items():
            # A speed far off the plan makes the plan count less, as in a fit with Student's t distribution.
            own = SPEED_WEIGHT / (1 + ((speeds[device] - planned[device]) / SPREAD) ** 2)
            total = own * planned[device] + sum(n * (stages[stage] - log_s) for n, log_s, stage in here)
            speeds[device] = total / (own + sum(n for n, _, _ in here))


def find_drift(planned: SpeedEstimate, seen: SpeedEstimate, tolerance: float) -> dict[str, float]:
    """Return which devices are how many times as fast as planned, and stages how many times as long.

    Only differences beyond ``tolerance`` and beyond what chance explains count, and only of devices that
    were planned with.
    """
    found = {}
    for before, now in ((planned.speed, seen.speed), (planned.item_s, seen.item_s)):
        for name in before.keys() & now.keys():
            times = now[name] / before[name]
            if abs(math.log(times)) > math.log(1 + tolerance) + seen.error.get(name, 0.0):
                found[name] = times
    return dict(sorted(found.items()))
