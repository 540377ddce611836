"""How fast devices and stages turned out to be: speeds and seconds that fit what was measured so far."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median_high, median_low

from evenload.pipeline.problem import Problem

__all__ = ["MeanTime", "SpeedEstimate", "estimate_speeds", "find_drift"]

MOST_COUNTED = 20  # items: more of them say nothing new
WORTH_OF_SPEED = 2.0  # items that what was planned of a device's speed counts for
WORTH_OF_TIME = {"measured": 10.0, "given": 5.0, "computed": 2.0}  # and of a stage's seconds, by their source
NOISE = 0.25  # how much one item's seconds are off, as a share: items differ
SPREAD = 0.3  # how much a device's speed is off from what is known beforehand, where nothing is wrong
_ROUNDS = 30


@dataclass(frozen=True, slots=True)
class MeanTime:
    """``n`` items took ``mean_s`` each."""

    n: int
    mean_s: float


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """``speed`` of each device, and ``item_s`` of each stage on a device of speed 1.

    ``error``: by device and by stage, the share by which that may be off by chance.
    """

    speed: Mapping[str, float]
    item_s: Mapping[str, float]
    error: Mapping[str, float] = field(default_factory=dict)


def estimate_speeds(
    problem: Problem,
    timings: Mapping[tuple[str, str], MeanTime],
    sources: Mapping[str, str] | None = None,
) -> SpeedEstimate:
    """The speeds and seconds nearest to ``timings``, by device and stage, and to what was planned.

    An item takes ``item_s / speed``: both are found in turn from the logarithms, weighted by the number of
    items. What was planned counts as a few items: while each device has done another stage, nobody can tell a
    slow device from a long stage. What most devices have in common is the stages'. ``sources``: from where
    each stage's seconds were known, if they were.
    """
    worth = {name: WORTH_OF_TIME.get(source, 0.0) for name, source in (sources or {}).items()}
    stages = {stage.name: math.log(stage.item_s) for stage in problem.stages}
    speeds = {device.id: math.log(device.speed) for device in problem.devices}
    seen = {
        (device, stage): (min(timing.n, MOST_COUNTED), math.log(timing.mean_s))
        for (device, stage), timing in timings.items()
        if device in speeds and stage in stages and timing.n > 0 and timing.mean_s > 0
    }
    planned = dict(speeds)
    if seen:
        _fit(speeds, stages, seen, worth)
    off = [speeds[device] - planned[device] for device in speeds]
    common = min(median_low(off), median_high(off), key=abs)
    n_of = dict.fromkeys(speeds, WORTH_OF_SPEED) | {stage: worth.get(stage, 0.0) for stage in stages}
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
    worth: Mapping[str, float],
) -> None:
    """Change the logarithms ``speeds`` and ``stages`` to what fits ``seen``, in turns."""
    planned, known = dict(speeds), dict(stages)
    of_stage: dict[str, list[tuple[int, float, str]]] = {stage: [] for stage in stages}
    of_device: dict[str, list[tuple[int, float, str]]] = {device: [] for device in speeds}
    for (device, stage), (n, log_s) in seen.items():
        of_stage[stage].append((n, log_s, device))
        of_device[device].append((n, log_s, stage))
    for _ in range(_ROUNDS):
        for stage, here in of_stage.items():
            if here:
                own = worth.get(stage, 0.0)
                total = own * known[stage] + sum(n * (log_s + speeds[device]) for n, log_s, device in here)
                stages[stage] = total / (own + sum(n for n, _, _ in here))
        for device, here in of_device.items():
            # What is far off from the plan makes the plan count for less, as Student's t does.
            own = WORTH_OF_SPEED / (1 + ((speeds[device] - planned[device]) / SPREAD) ** 2)
            total = own * planned[device] + sum(n * (stages[stage] - log_s) for n, log_s, stage in here)
            speeds[device] = total / (own + sum(n for n, _, _ in here))


def find_drift(planned: SpeedEstimate, seen: SpeedEstimate, tolerance: float) -> dict[str, float]:
    """Devices and stages -> how many times as fast, or as long, as planned.

    Only what is off by more than ``tolerance`` and what chance explains. A device that was not planned with
    is no drift.
    """
    found = {}
    for before, now in ((planned.speed, seen.speed), (planned.item_s, seen.item_s)):
        for name in before.keys() & now.keys():
            times = now[name] / before[name]
            if abs(math.log(times)) > math.log(1 + tolerance) + seen.error.get(name, 0.0):
                found[name] = times
    return dict(sorted(found.items()))
