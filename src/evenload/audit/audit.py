"""``Audit``: where the time of a recording's devices went, its bound, and what would have helped."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._plain_text import seconds_text
from evenload.audit.culprits import Culprit, culprits_of
from evenload.audit.host import HOST_REMEDIES, USES, DeviceTime, StepTimes, steps_of
from evenload.audit.losses import CAUSES, Activity, Gap, device_losses, narrow_stretches
from evenload.audit.occupancy import occupancy_of, spans_by_device
from evenload.audit.pieces import Pieces, WorkPhase, bound_of, phases_of, pieces_of, speeds_of
from evenload.audit.recording import WORK, Recording, shown_name
from evenload.balance.fleet import ModelDevice
from evenload.balance.metrics import makespan
from evenload.balance.pack import loads, pack_lpt
from evenload.balance.simulate import simulate
from evenload.errors import ConfigError, FormatError

MOST_GAPS = 12
CLEAR_IMBALANCE = 1.05
LEAST_TOLD = 0.01  # of the devices' time


@dataclass(frozen=True, slots=True)
class AuditedDevice:
    """One device of an audit: seconds of work, seconds lost by cause, and its speed beside the others.

    The work and the losses sum to the seconds of the run.
    """

    name: str
    work_s: float
    lost_s: dict[str, float]
    n_spans: int
    speed: float


@dataclass(frozen=True, slots=True)
class AuditedGap:
    """A stretch in which at most one device worked, in seconds from the start; "" if it was none."""

    start_s: float
    stop_s: float
    device: str
    span: str


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
    """The steps of one trace file. ``devices`` are those that it shows.

    A step lasts from its mark (``ProfilerStep#3``, an engine's ``execute_...``) to the next one's. A device's
    work for it may begin after the mark and end after the next one: what a step took is the program's time.
    """

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


MOST_PIECES = 4000
MOST_DEALINGS = 256_000  # pieces x devices: each dealing looks at every device
MOST_SIMULATED_DEVICES = 128


def most_pieces(n_devices: int) -> int:
    """How many pieces are simulated at most, so that it takes seconds."""
    return min(MOST_PIECES, MOST_DEALINGS // n_devices)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One other way to place the work of a run, and the seconds that the run takes with it."""

    name: str
    says: str
    wall_s: float


def what_ifs(
    phases: Sequence[WorkPhase], fixed_s: float, more: float, speeds: Sequence[float]
) -> list[WhatIf]:
    """The ways to place the phases' work again, by the simulator of real runs.

    Pieces do not cross from one phase, between moments in which no device works, into another. Within a phase
    every piece is taken to be ready at its start, and to take as long on any other device, but for devices
    that were clearly slower or faster with spans of the same names.

    fixed_s  seconds that no dealing changes: start-up, and pauses in which no device works
    more     seconds of overhead beside each second of work
    speeds   [devices] work per second
    """
    devices = [ModelDevice(f"d{at}", speed) for at, speed in enumerate(speeds)]
    measured_s = hinted_s = placed_s = fixed_s
    for phase in phases:
        work = [s * (1 + more) * speeds[at] for s, at in zip(phase.seconds, phase.device, strict=True)]
        # Copies of pieces would gain nothing: no modelled device slows down.
        measured_s += simulate("measured", devices, work, repeatable=False).makespan_s
        hinted_s += simulate("measured", devices, work, hints=work, repeatable=False).makespan_s
        placed_s += makespan(loads(work, pack_lpt(work, speeds), len(speeds)), speeds)
    return [
        WhatIf("measured", "dealt while running, by what devices have shown so far", measured_s),
        WhatIf("size hints", "the same, with the size of each piece known: the long ones first", hinted_s),
        WhatIf("placement", "placed before the run, the longest piece first", placed_s),
    ]


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit; ``lost_ns`` and ``work_ns`` are of all devices, and sum to their time exactly.

    bound_s   seconds below which no plan for this work on these devices could have come
    overhead  seconds of launch gaps, exchange and repeats beside each second of work
    culprits  who came late to collectives, why, and what that cost others
    gaps_ns   of the time in which nothing ran on a device, what the program did meanwhile
    """

    source: str
    wall_ns: int
    work_ns: int
    lost_ns: dict[str, int]
    devices: tuple[AuditedDevice, ...]
    gaps: tuple[AuditedGap, ...]
    bound_s: float
    overhead: float
    what_ifs: tuple[WhatIf, ...]
    n_spans: int
    gap_s: float
    findings: tuple[str, ...]
    faults: tuple[str, ...]
    culprits: tuple[Culprit, ...] = ()
    gaps_ns: dict[str, int] = field(default_factory=dict)
    steps: tuple[RankSteps, ...] = ()
    is_partial: bool = False

    @property
    def wall_s(self) -> float:
        return self.wall_ns / 1e9

    @property
    def share(self) -> float:
        """The share of the devices' time that was work; time of which nothing was recorded is left out."""
        known_ns = self.wall_ns * len(self.devices) - self.lost_ns["not recorded"]
        return self.work_ns / known_ns if known_ns else 0.0

    @property
    def largest(self) -> str | None:
        """The cause that took most; None if nothing was lost."""
        causes = [one for one in self.lost_ns if one != "not recorded"]
        cause = max(causes, key=lambda one: self.lost_ns[one])
        return cause if self.lost_ns[cause] else None

    @property
    def sentence(self) -> str:
        """Who or what cost most, how much of the devices' time, and what to do, for a person in a hurry."""
        whole_ns = self.wall_ns * len(self.devices)
        if self.largest is None or self.lost_ns[self.largest] <= LEAST_TOLD * whole_ns:
            recorded = " that was recorded" if self.lost_ns["not recorded"] else ""
            return f"Nothing to mend: {self.share:.1%} of the devices' time{recorded} was work."
        lost_ns = self.lost_ns[self.largest]
        cost = f"{device_time(lost_ns)} of {device_time(whole_ns)} of device time ({lost_ns / whole_ns:.0%})"
        if self.largest != "late ranks":
            remedy, meanwhile = CAUSES[self.largest].remedy, ""
            if self.largest == "exchange" and self.is_partial:
                remedy = "Give the traces of all ranks, to see how much of it is waiting for others."
            if self.largest in ("no device works", "launch gaps") and self.gaps_ns:
                doing = max(self.gaps_ns, key=lambda one: self.gaps_ns[one])
                meanwhile = f"; the program was mostly in {doing}"
                remedy = HOST_REMEDIES.get(doing, remedy)
            return f"The largest loss: {self.largest}, {cost}{meanwhile}. {remedy}"
        late: dict[str, int] = {}
        for one in self.culprits:
            late[one.device] = late.get(one.device, 0) + one.cost_ns
        name = max(late, key=lambda one: late[one])
        first = next(one for one in self.culprits if one.device == name)
        why = f"mostly because of {first.reason}{f' ({first.span})' if first.span else ''}"
        why = "for a reason that the traces do not show" if first.reason == "not known" else why
        return (
            f"Ranks waited for late ones in collectives: {cost}. Of that, {device_time(late[name])} was for "
            f"{name}, {why}. {CAUSES[self.largest].remedy}"
        )

    def to_json(self) -> dict[str, Any]:
        """A value of JSON; seconds but for ``_h``, which are device-hours."""
        causes = {
            name: {"lost_h": ns / 3.6e12, "factor": CAUSES[name].factor, "says": CAUSES[name].says}
            for name, ns in self.lost_ns.items()
        }
        return {
            "schema": 1,
            "source": self.source,
            "n_spans": self.n_spans,
            "n_devices": len(self.devices),
            "wall_s": self.wall_s,
            "work_h": self.work_ns / 3.6e12,
            "lost_h": sum(self.lost_ns.values()) / 3.6e12,
            "share": self.share,
            "causes": causes,
            "bound_s": self.bound_s,
            "what_ifs": [asdict(one) for one in self.what_ifs],
            "devices": [asdict(one) for one in self.devices],
            "gaps": [asdict(one) for one in self.gaps],
            "gap_s": self.gap_s,
            "sentence": self.sentence,
            "culprits": [asdict(one) for one in self.culprits],
            "gaps_h": {cause: ns / 3.6e12 for cause, ns in self.gaps_ns.items()},
            "steps": [asdict(one) for one in self.steps],
            "findings": list(self.findings),
            "faults": list(self.faults),
        }


class AuditParts:
    """The steps of an audit, kept for whoever draws them: occupancy by device, and the window."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.window_ns = _window(recording)
        self.rows = spans_by_device(recording)
        self.occupancy = [occupancy_of(recording, rows, self.window_ns) for rows in self.rows]
        busy = [one.busy for one in self.occupancy]
        excerpt_ns = self.window_ns if recording.is_excerpt else None
        self.activity = Activity(busy, recording.gap_ns, excerpt_ns)
        self.lost = [
            device_losses(one, self.window_ns, recording.gap_ns, self.activity) for one in self.occupancy
        ]
        self.narrow = narrow_stretches(self.activity, recording.gap_ns, MOST_GAPS)
        self.time = (
            DeviceTime(recording, self.rows, self.occupancy, self.window_ns) if recording.n_spans else None
        )


def with_devices(recording: Recording, n_devices: int) -> Recording:
    """The recording with as many devices; those that it does not know did nothing."""
    n_known = len(recording.devices)
    if n_devices and n_devices < n_known:
        raise ConfigError(
            f"the trace has {n_known} devices, not {n_devices}",
            hint="give --count at least that, or leave it out",
        )
    more = tuple(f"not in the trace ({at})" for at in range(1, n_devices - n_known + 1))
    return replace(recording, devices=recording.devices + more, clock=recording.clock + (-1,) * len(more))


def audit_of(parts: AuditParts) -> Audit:
    """The audit of a recording whose parts are there."""
    recording = parts.recording
    speeds = speeds_of(recording) if recording.has_items else [1.0] * len(recording.devices)
    pieces = pieces_of(recording, parts.rows)
    devices = tuple(
        AuditedDevice(
            name, one.kind_ns[WORK] / 1e9, {cause: ns / 1e9 for cause, ns in lost.items()}, len(rows), speed
        )
        for name, one, lost, rows, speed in zip(
            recording.devices, parts.occupancy, parts.lost, parts.rows, speeds, strict=True
        )
    )
    wall_ns = parts.window_ns[1] - parts.window_ns[0]
    work_ns = sum(one.kind_ns[WORK] for one in parts.occupancy)
    lost_ns = {cause: sum(one[cause] for one in parts.lost) for cause in CAUSES}
    overhead_ns = sum(lost_ns[cause] for cause in ("exchange", "repeats", "launch gaps", "within samples"))
    overhead = overhead_ns / work_ns if work_ns else 0.0
    others, why_none = _what_ifs(parts, pieces, speeds, overhead)
    return Audit(
        recording.source,
        wall_ns,
        work_ns,
        lost_ns,
        devices,
        tuple(_told(gap, parts) for gap in parts.narrow),
        bound_of(pieces, speeds),
        overhead,
        tuple(others),
        recording.n_spans - (0 if recording.waits is None else len(recording.waits.device)),
        recording.gap_ns / 1e9,
        tuple(_findings(devices)),
        (*recording.faults, *why_none),
        *_told_by_program(parts),
        recording.is_partial,
    )


def _told_by_program(parts: AuditParts) -> tuple[tuple[Culprit, ...], dict[str, int], tuple[RankSteps, ...]]:
    """Who came late to collectives, what the program did in gaps, and its steps."""
    recording, time = parts.recording, parts.time
    if time is None:
        return (), {}, ()
    culprits = culprits_of(recording, parts.rows, parts.occupancy, time)
    steps = rank_steps(recording, steps_of(recording.host, sorted(set(recording.clock))), time)
    gaps = time.gaps_ns() if recording.host is not None else {}
    return tuple(culprits), gaps, tuple(steps)


def _window(recording: Recording) -> tuple[int, int]:
    if not recording.n_spans and recording.window_ns is None:
        raise FormatError(
            f"{recording.source}: no device did anything in it",
            hint="see that the trace has device activity, such as ProfilerActivity.CUDA; of a CPU, torch's "
            "profiler records what the thread that started it does",
        )
    times = recording.window_ns or (int(recording.start_ns.min()), int(recording.stop_ns.max()))
    if times[1] <= times[0]:
        raise FormatError(f"{recording.source}: all of it happens in no time", hint="record a longer run")
    if recording.n_spans and recording.window_ns:
        times = min(times[0], int(recording.start_ns.min())), max(times[1], int(recording.stop_ns.max()))
    return times


def device_time(ns: int) -> str:
    """Write device time for a person."""
    return seconds_text(ns / 1e9, 4)


def _what_ifs(
    parts: AuditParts, pieces: Pieces, speeds: Sequence[float], overhead: float
) -> tuple[list[WhatIf], list[str]]:
    """The ways to deal the work again, or why there are none."""
    n_devices = len(speeds)
    if not parts.recording.has_items or not len(pieces.start_ns):
        return [], ["Samples are no pieces of work: what other dealing would have reached is not known."]
    if not parts.recording.is_movable:
        return [], []  # kernels stay on the device that they were launched on
    if n_devices > MOST_SIMULATED_DEVICES:
        said = f"Other dealing is simulated for at most {MOST_SIMULATED_DEVICES} devices, not {n_devices}."
        return [], [said]
    busy = [one.busy for one in parts.occupancy]
    phases, idle_ns = phases_of(pieces, busy, parts.recording.gap_ns, most_pieces(n_devices))
    first = min(int(one.start_ns[0]) for one in busy if len(one.start_ns))
    last = max(int(one.stop_ns[-1]) for one in busy if len(one.start_ns))
    outside_ns = parts.window_ns[1] - last + first - parts.window_ns[0]
    late_ns = [lost["start-up"] - (first - parts.window_ns[0]) for lost in parts.lost if not lost["not used"]]
    fixed_ns = idle_ns + outside_ns + max(0, sum(late_ns)) // n_devices
    return what_ifs(phases, fixed_ns / 1e9, overhead, speeds), []


def _told(gap: Gap, parts: AuditParts) -> AuditedGap:
    begin = parts.window_ns[0]
    device, span = "", ""
    if gap.device >= 0:
        device = parts.recording.devices[gap.device]
        span = _longest_span(parts.recording, parts.rows[gap.device], gap)
    return AuditedGap((gap.start_ns - begin) / 1e9, (gap.stop_ns - begin) / 1e9, device, span)


def _longest_span(recording: Recording, rows: NDArray[np.int64], gap: Gap) -> str:
    """The name of the span that fills most of a gap."""
    within = np.minimum(recording.stop_ns[rows], gap.stop_ns)
    within -= np.maximum(recording.start_ns[rows], gap.start_ns)
    return shown_name(recording.names[recording.name[rows[int(np.argmax(within))]]])


def _findings(devices: Sequence[AuditedDevice]) -> list[str]:
    """Sentences on devices that were slower than others, or had more to do."""
    said = [
        f"{one.name} took {1 / one.speed:.2f}× as long as the others for spans of the same names."
        for one in sorted(devices, key=lambda one: one.speed)
        if one.speed < 1
    ][:5]
    mean_s = sum(one.work_s for one in devices) / len(devices)
    most = max(devices, key=lambda one: one.work_s)
    if len(devices) > 1 and mean_s > 0 and most.work_s > CLEAR_IMBALANCE * mean_s:
        said.append(f"{most.name} worked {most.work_s / mean_s:.2f}× as long as devices did on average.")
    return said
