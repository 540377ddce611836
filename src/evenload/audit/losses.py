"""Lost device time by cause: every nanosecond in which a device did no work has exactly one.

    cause            a device's time                                                     factor
    not used         all of it, if nothing ever ran on the device                        balance
    start-up         before its first work; and spans that load                          start-up
    exchange         only copies, transfers and collectives ran                          overhead
    late ranks       in a collective, until the last rank had come to it                 waiting
    repeats          only work ran that failed, or was done twice                        repeats
    launch gaps      between two spans, shorter than the recording's ``gap_ns``          overhead
    no device works  a longer gap, while no other device was busy either                 waiting
    serial           a longer gap, while exactly one other was busy                      waiting
    waiting          a longer gap, while two or more others were busy                    waiting
    tail             after its last span, while others still worked                      balance
    within samples   of a sample with a share below 1, the rest                          overhead
    not recorded     a hole between two samples: nobody knows                            none

The factor is that of docs/explanation/bounds.md which the cause belongs to. In its launch gaps a device
counts as busy for the others. In an excerpt of a run, the time before a device's first span and after its
last is a longer gap. All is in whole nanoseconds, so the causes sum to the lost time exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenload.audit.occupancy import Occupancy, Stretches, closed
from evenload.audit.recording import EXCHANGE, HOLE, LATE, LOADING, PARTLY, REPEAT, WORK


@dataclass(frozen=True, slots=True)
class IdleCause:
    """A reason why a device did no work: what it is, the factor that it belongs to, and what helps."""

    says: str
    factor: str
    remedy: str


CAUSES = {
    "not used": IdleCause(
        "nothing ever ran on the device",
        "balance",
        "Give the device work, or give it back: see what the job was told of its devices.",
    ),
    "start-up": IdleCause(
        "before the device's first work: processes start, packages are imported, models are loaded",
        "start-up",
        "Keep processes and models for several runs, and load on all devices at once.",
    ),
    "exchange": IdleCause(
        "only copies, transfers or collectives ran",
        "overhead",
        "Overlap communication with work, send less, use pinned memory.",
    ),
    "late ranks": IdleCause(
        "within a collective, until the last rank had come to it",
        "waiting",
        "Speed up the rank that comes late, or give it a smaller share of the batch.",
    ),
    "repeats": IdleCause(
        "only work ran that failed or was done twice", "repeats", "Look at what failed and why."
    ),
    "launch gaps": IdleCause(
        "short gaps between two spans: launches, and handing out the next task",
        "overhead",
        "Do more in one launch: larger batches, a compiled or fused step, CUDA graphs; larger tasks.",
    ),
    "no device works": IdleCause(
        "longer gaps in which no device worked: all wait for the host, the disk or the reader",
        "waiting",
        "Read ahead in more processes, move checks and logging off the path, and remove synchronisation.",
    ),
    "serial": IdleCause(
        "longer gaps in which exactly one other device worked",
        "waiting",
        "Spread what that device does over the others, or let their next work begin meanwhile.",
    ),
    "waiting": IdleCause(
        "longer gaps in which two or more other devices worked",
        "waiting",
        "Hand out work as devices get free, rather than in rounds; make the pieces more equal.",
    ),
    "tail": IdleCause(
        "after the device's last work, while others still worked",
        "balance",
        "Deal while running (policy measured), the longest pieces first, or cut them.",
    ),
    "within samples": IdleCause(
        "samples say that the device was busy for a part of their time, not when",
        "overhead",
        "Record a trace: samples do not tell why.",
    ),
    "not recorded": IdleCause(
        "no samples for much longer than usual: what the device did is not known",
        "none",
        "Record without holes, or audit what lies before and after them by itself.",
    ),
}
"""The causes of lost device time, in the order in which they are shown."""


class Activity:
    """A count of busy devices as a step function of time, with exact integrals of it.

    Stretches of a device that are less than ``gap_ns`` apart are one.

    excerpt_ns  the window, if it was cut out of a longer run: then it is told from its start to its end
    """

    def __init__(
        self, busy: Sequence[Stretches], gap_ns: int, excerpt_ns: tuple[int, int] | None = None
    ) -> None:
        self.excerpt_ns = excerpt_ns
        self.busy = busy = [closed(one, gap_ns) for one in busy]
        empty = np.empty(0, np.int64)
        starts = np.concatenate([empty, *(one.start_ns for one in busy)])
        stops = np.concatenate([empty, *(one.stop_ns for one in busy)])
        edges = np.array(excerpt_ns or (), np.int64)
        times, at = np.unique(np.concatenate([starts, stops, edges]), return_inverse=True)
        change = np.zeros(len(times), np.int64)
        np.add.at(change, at[: len(starts)], 1)
        np.add.at(change, at[len(starts) : len(starts) + len(stops)], -1)
        self.times = times
        self.n_busy = np.cumsum(change)  # from times[i] to times[i + 1]
        step_ns = np.diff(times)
        self._within = [  # before each time, the nanoseconds in which none and exactly one were busy
            np.concatenate([[0], np.cumsum(step_ns * (self.n_busy[:-1] == n))]) for n in (0, 1)
        ]

    def gaps(self, busy: Stretches) -> Stretches:
        """The gaps between a device's stretches; of an excerpt, also before the first and after the last."""
        before, after = ((one,) for one in self.excerpt_ns) if self.excerpt_ns else ((), ())
        starts = np.concatenate([np.array(before, np.int64), busy.stop_ns])
        stops = np.concatenate([busy.start_ns, np.array(after, np.int64)])
        return Stretches(starts, stops) if self.excerpt_ns else Stretches(starts[:-1], stops[1:])

    def split(self, gaps: Stretches) -> NDArray[np.int64]:
        """Nanoseconds of each gap [gaps, 3] in which no device, exactly one, and more were busy."""
        split = np.empty((len(gaps.start_ns), 3), np.int64)
        for column in (0, 1):
            split[:, column] = self._until(gaps.stop_ns, column) - self._until(gaps.start_ns, column)
        split[:, 2] = gaps.stop_ns - gaps.start_ns - split[:, 0] - split[:, 1]
        return split

    def _until(self, t: NDArray[np.int64], column: int) -> NDArray[np.int64]:
        """Nanoseconds before ``t`` in which ``column`` devices were busy; a gap lies between two times."""
        at = np.searchsorted(self.times, t, side="right") - 1
        return self._within[column][at] + (t - self.times[at]) * (self.n_busy[at] == column)


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of the run in which at most one device worked: ``device`` counts it, -1 for none."""

    start_ns: int
    stop_ns: int
    device: int


def device_losses(
    one: Occupancy, window_ns: tuple[int, int], gap_ns: int, activity: Activity
) -> dict[str, int]:
    """Nanoseconds that a device lost to each of ``CAUSES``; with its work they sum to the window."""
    lost = dict.fromkeys(CAUSES, 0)
    begin, end = window_ns
    busy = one.later
    if not len(busy.start_ns):
        lost["not used"] = end - begin
        return lost
    lost["exchange"], lost["repeats"] = one.kind_ns[EXCHANGE], one.kind_ns[REPEAT]
    lost["late ranks"], lost["not recorded"] = one.kind_ns[LATE], one.kind_ns[HOLE]
    lost["within samples"] = one.kind_ns[PARTLY]
    lost["start-up"] = one.kind_ns[LOADING]
    between = activity.gaps(busy)
    is_short = between.stop_ns - between.start_ns < gap_ns
    if activity.excerpt_ns:
        is_short[[0, -1]] = False
    else:
        lost["start-up"] += one.first_ns - begin
        lost["tail"] = end - int(busy.stop_ns[-1])
    lost["launch gaps"] = Stretches(between.start_ns[is_short], between.stop_ns[is_short]).total_ns
    split = activity.split(Stretches(between.start_ns[~is_short], between.stop_ns[~is_short])).sum(axis=0)
    lost["no device works"], lost["serial"], lost["waiting"] = (int(ns) for ns in split)
    assert sum(lost.values()) + one.kind_ns[WORK] == end - begin
    return lost


def narrow_stretches(activity: Activity, gap_ns: int, n_most: int) -> list[Gap]:
    """The longest stretches, from ``gap_ns`` on, in which at most one device of several was busy.

    Stretches without any are told only between the first span and the last, but of an excerpt in all of it.
    """
    busy = activity.busy
    n_busy, times = activity.n_busy[:-1], activity.times
    is_narrow = (n_busy == 0) | ((n_busy == 1) & (len(busy) > 1))
    long = np.flatnonzero(is_narrow & (np.diff(times) >= gap_ns))
    long = long[np.argsort(-(times[long + 1] - times[long]), kind="stable")][:n_most]
    found = [Gap(int(times[at]), int(times[at + 1]), _who(busy, int(times[at]))) for at in long]
    return sorted(found, key=lambda gap: gap.start_ns)


def _who(busy: Sequence[Stretches], t: int) -> int:
    """The device that is busy from ``t`` on, -1 if none is."""
    for device, one in enumerate(busy):
        at = int(np.searchsorted(one.start_ns, t, side="right")) - 1
        if at >= 0 and one.stop_ns[at] > t:
            return device
    return -1
