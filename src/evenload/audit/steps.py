"""The steps of a run: how long each took on each rank, which were slow, and what they did more of.

A step lasts from its mark (``ProfilerStep#3``, an engine's ``execute_...``) to the next one's. A device's
work for it may begin after the mark and end after the next one: what a step took is the program's time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenload.audit.device_time import USES, DeviceTime
from evenload.audit.host import StepTimes
from evenload.audit.recording import Recording

__all__ = ["RankSteps", "SlowStep", "rank_steps"]

SLOW = 1.2  # times the median step
MOST_SLOW = 5


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A step that took clearly longer than the median: its number, and what its devices did more of."""

    number: int
    took_s: float
    use: str
    more_s: float


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The steps of one trace file. ``devices`` are those that it shows."""

    devices: tuple[str, ...]
    n_steps: int
    median_s: float
    longest_s: float
    slow: tuple[SlowStep, ...]


def rank_steps(recording: Recording, steps: Sequence[StepTimes], time: DeviceTime) -> list[RankSteps]:
    """Return the steps of each file, in the order of the files."""
    found = []
    for one in steps:
        devices = [at for at, clock in enumerate(recording.clock) if clock == one.clock]
        took = (one.stop_ns - one.start_ns) / 1e9
        middle = float(np.median(took))
        used = np.stack(
            [
                np.sum([time.between(at, use, one.start_ns, one.stop_ns) for at in devices], axis=0)
                for use in USES
            ]
        )
        more = used - np.median(used, axis=1, keepdims=True)
        order = np.argsort(-took, kind="stable")
        slow = [int(at) for at in order if took[at] > SLOW * middle][:MOST_SLOW]
        told = [
            SlowStep(at + 1, float(took[at]), USES[use], float(more[use, at]) / 1e9)
            for at in slow
            for use in [int(more[:, at].argmax())]
        ]
        names = tuple(recording.devices[at] for at in devices)
        found.append(RankSteps(names, len(took), middle, float(took.max()), tuple(told)))
    return found
