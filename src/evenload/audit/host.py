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

from evenload.audit.occupancy import Occupancy, Stretches, both, minus, sorted_union, together, within
from evenload.audit.recording import EXCHANGE, LATE, WORK, HostSpans, Recording

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


USES = ("kernels", "copies", "transfers", "late ranks", "other spans", *HOST_CAUSES)


class DeviceTime:
    """Stretches of each device by USES: kernels first, where they overlap; gaps by what the host did.

    copies       copies between memories, and other exchange that is no collective
    transfers    collectives, once all ranks have come
    other spans  repeats, loading, and samples in part
    """

    def __init__(
        self,
        recording: Recording,
        rows: list[NDArray[np.int64]],
        occupancy: list[Occupancy],
        window_ns: tuple[int, int],
    ) -> None:
        host = HostActivity(recording)
        is_collective = np.zeros(recording.n_spans, bool)
        if recording.collectives is not None:
            is_collective[recording.collectives.row] = True
        whole = Stretches(np.array(window_ns[:1]), np.array(window_ns[1:]))
        self._of: list[dict[str, Stretches]] = []
        for device, (own, one) in enumerate(zip(rows, occupancy, strict=True)):
            kind, start, stop = recording.kind[own], recording.start_ns[own], recording.stop_ns[own]
            is_use = {
                "kernels": kind == WORK,
                "copies": (kind == EXCHANGE) & ~is_collective[own],
                "transfers": (kind == EXCHANGE) & is_collective[own],
                "late ranks": kind == LATE,
                "other spans": kind > LATE,
            }
            found, taken = {}, Stretches.none()
            for use, chosen in is_use.items():
                spans = sorted_union(start[chosen], stop[chosen]) if chosen.any() else Stretches.none()
                found[use] = minus(spans, taken)
                taken = together((taken, spans))
            self._of.append({**found, **host.split(device, minus(whole, one.busy))})

    def between(self, device: int, use: str, start_ns: NDArray, stop_ns: NDArray) -> NDArray[np.int64]:
        """Nanoseconds that a device spent on ``use`` between each pair of times."""
        stretches = self._of[device][use]
        return within(stretches, np.maximum(start_ns, stop_ns)) - within(stretches, start_ns)

    def gaps_ns(self) -> dict[str, int]:
        """Nanoseconds of all devices in which nothing ran on them, by what the host did meanwhile."""
        return {cause: sum(one[cause].total_ns for one in self._of) for cause in HOST_CAUSES}
