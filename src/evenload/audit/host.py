"""What the host did while a device had nothing to do, and the steps of a run, from the rows of the program.

Of a gap in a device's work belongs to the first of these that fits, so that they sum to the gap exactly:

    input            the program waited for its data loader
    synchronisation  it waited for the device, by a call that does nothing else
    launching        it ran operators or calls of the driver
    other code       it did something that the profiler does not show: Python, mostly
    not known        the trace shows no operators of the program
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenload.audit.occupancy import Stretches, both, minus, sorted_union
from evenload.audit.recording import HostSpans, Recording

INPUT, SYNC, LAUNCH, OPERATE, STEP = range(5)
HOST_CAUSES = ("input", "synchronisation", "launching", "other code", "not known")
HOST_REMEDIES = {
    "input": "Read ahead: more workers of the data loader, pinned memory, a faster disk.",
    "synchronisation": "Ask devices less often for values (.item(), printing a loss), or later.",
    "launching": "Do more in one launch: larger batches, a compiled or fused step, CUDA graphs.",
    "other code": "Move checks, logging and other code of the program off the path.",
}

_OPERATORS = ("cpu_op", "Operator")
_NOTES = ("user_annotation", *_OPERATORS)
_INPUT_NAME = re.compile(r"DataLoader\)|DataLoaderIter|^## data_load|^\[pl\].*fetch", re.IGNORECASE)
_STEP_NAME = re.compile(r"^(ProfilerStep#\d+|execute_\d|execute_context_\d|step\[)")
_SYNC_NAME = re.compile(r"synchroni[sz]e", re.IGNORECASE)


def host_kind(category: str, name: str) -> int:
    """Return what a span of the program is: INPUT, SYNC, LAUNCH, OPERATE or STEP; -1 if it says nothing."""
    if category in _NOTES:
        if _STEP_NAME.match(name):
            return STEP
        if _INPUT_NAME.search(name):
            return INPUT
    if category in _OPERATORS:
        return OPERATE
    if category.endswith(("_runtime", "_driver", "Runtime")):
        return SYNC if _SYNC_NAME.search(name) else LAUNCH
    return -1


class HostActivity:
    """The program's stretches in each file by cause; None where a file shows no operators."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._clock = recording.clock or (0,) * len(recording.devices)
        self._clocks = {clock: self._of(clock) for clock in set(self._clock)}

    def _of(self, clock: int) -> tuple[Stretches, ...] | None:
        host = self._recording.host
        own = np.flatnonzero(host.clock == clock) if host is not None else np.empty(0, np.int64)
        if host is None or not len(own):
            return None
        kinds = host.kind[own]
        if not (kinds == OPERATE).any():
            return None
        of_kinds = (kinds == INPUT, kinds == SYNC, (kinds == LAUNCH) | (kinds == OPERATE))
        return tuple(sorted_union(host.start_ns[own[one]], host.stop_ns[own[one]]) for one in of_kinds)

    def split(self, device: int, gaps: Stretches) -> dict[str, Stretches]:
        """Cut the gaps of a device by what the program did meanwhile: HOST_CAUSES, which do not overlap."""
        clock = self._clocks[self._clock[device]]
        found = dict.fromkeys(HOST_CAUSES, gaps.none())
        if clock is None:
            return {**found, "not known": gaps}
        for cause, one in zip(HOST_CAUSES, clock, strict=False):
            found[cause], gaps = both(gaps, one), minus(gaps, one)
        return {**found, "other code": gaps}


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The steps of one file: when each began and ended, by time."""

    clock: int
    start_ns: NDArray[np.int64]
    stop_ns: NDArray[np.int64]


def steps_of(host: HostSpans | None, clocks: Sequence[int]) -> list[StepTimes]:
    """Return the steps of each file that has two or more: from one's start to the next one's, or its end."""
    found: list[StepTimes] = []
    if host is None:
        return found
    for clock in clocks:
        own = np.flatnonzero((host.clock == clock) & (host.kind == STEP))
        if len(own) < 2:
            continue
        own = own[np.argsort(host.start_ns[own], kind="stable")]
        start, stop = host.start_ns[own], host.stop_ns[own]
        outer = np.concatenate([[True], start[1:] >= np.maximum.accumulate(stop)[:-1]])
        start, stop = start[outer], stop[outer]
        if len(start) > 1:
            found.append(StepTimes(clock, start, np.concatenate([start[1:], stop[-1:]])))
    return found
