"""Where the time of a run went: factors that multiply to the share of it that was useful work.

    seconds of each worker by what they went into ──► priced by the devices' speeds ──► Factors

A second of a device that is twice as fast is worth twice as much. So every device has a *price*, its share
of the speed of all, and the prices sum to 1: all devices together have as many priced seconds as the run has
seconds. Each priced second is useful or lost to exactly one cause, so ``useful_s`` and the seconds lost to
the causes sum to the run's time. The factors take the losses away one after the other:

    time ─ start-up ─ balance ─ longest item ─ waiting ─ overhead ─ repeats ─ not known ─► useful

Each factor is what is left after its loss over what there was before it, so they multiply to useful over
time. This is the scheme of POP (parallel efficiency = load balance x communication x ..., pop-coe.eu) and of
TALP, for devices of unequal speed and for causes that a run's events tell apart.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

FACTORS = {
    "start-up": "processes start, packages are imported, models are loaded",
    "balance": "devices have nothing to do while others work, or do what others do faster",
    "longest item": "an item cannot be cut: no plan ends before the longest ones",
    "waiting": "devices wait for other stages, the disk, whoever reads the items; items say that they wait",
    "overhead": "messages, copies, and what comes after the last item",
    "repeats": "copies that came second, work of lost workers, items done twice",
    "not known": "no processor worked in an item that told no waiting: it slept, or a disk, network or lock",
    "device efficiency": "what the work needs at the most that the device does, over the time that it took",
}
"""The names of the factors, in the order in which they are taken away, and what each one loses."""

DEVICE, UNKNOWN = "device efficiency", "not known"
AMOUNTS = {"flop": "flop_per_s", "bytes": "bytes_per_s"}  # what an item needs, and which rate gives it
KINDS = ("start-up", "balance", "waiting", "overhead", "repeats")  # what a worker's lost second may be
# Reasons of idle stretches by their first words; all others are a policy's reasons not to deal.
LOADING = ("loads ", "brings ", "has ")
RESULTS_WAIT = "results wait to be fetched"
NOTHING_THERE = ("no item is ready", "nothing is ready", "nothing was ready", RESULTS_WAIT)
LEAST_SHARE = 1e-12  # with less work than this there is nothing to tell of
LITTLE = 0.5  # of the seconds of a chunk; with less of a processor, what it did is not known


def kind_of_idle(why: str) -> str:
    """Say which loss an idle stretch with the reason ``why`` belongs to, if work follows it."""
    if why.startswith(LOADING):
        return "start-up"
    return "waiting" if why.startswith(NOTHING_THERE) else "balance"


def waited_seconds(span: Any, busy_s: float) -> float:
    """Seconds of a chunk's ``busy_s`` in which its items told that they wait."""
    waited_s = span.waited_s
    return min(waited_s, busy_s) if isinstance(waited_s, int | float) and waited_s > 0 else 0.0


def unknown_seconds(busy_s: float, waited_s: float, cpu_s: float | None) -> float:
    """Seconds of a chunk, on a device that did nothing else, in which nobody knows what it did.

    0 where its process was on a processor for half of the time in which it did not tell that it waits.
    """
    is_known = isinstance(cpu_s, int | float) and cpu_s >= 0
    rest_s = busy_s - waited_s
    return rest_s - cpu_s if is_known and cpu_s < LITTLE * rest_s else 0.0


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor: ``value`` in [0, 1], None if not known; ``lost_s`` seconds of the run that it took."""

    name: str
    value: float | None
    lost_s: float
    says: str


@dataclass(frozen=True, slots=True)
class WorkerSeconds:
    """The seconds of one worker slot of a run, and what each is worth.

    price      the prices of all slots sum to 1; 0 for one whose speed nobody knows
    in_task_s  inside the task, for results that counted, without waiting that was told and what is not known
    lost_s     start-up, balance, waiting, overhead, repeats, not known -> seconds; with ``in_task_s``, the
               run's
    """

    name: str
    price: float
    in_task_s: float
    lost_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of a run.

    wall_s    seconds of the run
    useful_s  of them, those that the useful work takes if all devices share it by their speeds
    share     the product of the factors that are known
    parts     one for each of ``FACTORS``, in order
    workers   of which they are made
    """

    wall_s: float
    useful_s: float
    share: float
    parts: tuple[Factor, ...]
    workers: tuple[WorkerSeconds, ...] = ()

    @property
    def largest(self) -> Factor | None:
        """The factor that took most seconds; None if none took any."""
        worst = max(self.parts, key=lambda part: part.lost_s)
        return worst if worst.lost_s > 0 else None

    def text(self, least: float = 0.005) -> str:
        """Return "62 % of it useful work at the devices' speed (start-up 0.71 × balance 0.96)".

        least  factors that lose less than this share are left out
        """
        shown = [p for p in self.parts if p.value is not None and p.value <= 1 - least]
        product = " × ".join(f"{part.name} {part.value:.2f}" for part in shown)
        text = f"{self.share:.0%} of it useful work at the devices' speed"
        return f"{text} ({product})" if product else text


@dataclass(frozen=True, slots=True)
class TrackOfFactors:
    """The seconds of one worker slot, which sum to the run's.

    useful_s  stage -> seconds inside the task, for results that counted
    lost_s    start-up, balance, waiting, overhead, repeats -> seconds
    like      slots with the same ``like`` are equally fast; "" for one without its like
    inside_s  (waiting | not known, stage) -> seconds, of the useful ones
    """

    useful_s: Mapping[str, float]
    lost_s: Mapping[str, float]
    like: str = ""
    inside_s: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def inside(self, kind: str = "", stage: str = "") -> float:
        """Seconds inside the task in which it waited, or did what is not known; of one kind, of one stage."""
        rows = self.inside_s.items()
        return sum(s for (one, at), s in rows if kind in ("", one) and stage in ("", at))

    def worker(self, name: str, price: float) -> WorkerSeconds:
        """The seconds of the slot by what they went into in the end."""
        lost = {kind: self.lost_s.get(kind, 0.0) + self.inside(kind) for kind in {**self.lost_s, UNKNOWN: 0}}
        return WorkerSeconds(name, price, sum(self.useful_s.values()) - self.inside(), lost)


@dataclass(frozen=True, slots=True)
class StageOfFactors:
    """A stage by what was measured of it.

    speeds     slot -> items (or cost) per second, of those that were measured
    longest_s  no plan takes less, since an item cannot be cut
    group      stages with the same ``group`` ran at the same time
    least_s    slot -> seconds that its items needed at the device's data sheet; empty if not known
    """

    speeds: Mapping[str, float]
    longest_s: float = 0.0
    group: int = 0
    least_s: Mapping[str, float] = field(default_factory=dict)


def like_of(device: Mapping[str, Any]) -> str:
    """What devices of the same kind share, of what is known of one; "" where that is not known."""
    name = device.get("name")
    return f"{name} {device.get('kind', '')}" if isinstance(name, str) and name else ""


def least_seconds(work: Mapping[str, Any], rates: Mapping[str, Any]) -> float | None:
    """Seconds that an item needs at least: the longest of each amount over its rate; None if not known.

    work   ``flop`` and ``bytes``, one or both
    rates  ``flop_per_s`` and ``bytes_per_s`` of the device
    Source: the roofline model (Williams, Waterman and Patterson, 2009).
    """
    times = []
    for amount, rate in AMOUNTS.items():
        if amount in work:
            pair = work[amount], rates.get(rate)
            if not all(isinstance(one, int | float) and 0 < one < math.inf for one in pair):
                return None
            times.append(pair[0] / pair[1])
    return max(times, default=None)


def factors_of(
    wall_s: float, tracks: Mapping[str, TrackOfFactors], stages: Mapping[str, StageOfFactors]
) -> Factors | None:
    """The factors of a run of ``wall_s`` seconds; None if nothing useful was done.

    tracks  by slot, such as ``cuda:0``; stages: by name
    """
    speeds = {name: speeds_of(name, stage.speeds, tracks) for name, stage in stages.items()}
    prices = prices_of(tracks, speeds)
    if not prices or not 0 < wall_s < math.inf:
        return None
    in_task_s = sum(prices[name] * sum(one.useful_s.values()) for name, one in tracks.items())
    bought = {name: _bought_s(name, tracks, speeds[name], prices) for name in speeds}
    useful_s = min(in_task_s, sum(bought.values()))
    if not useful_s > LEAST_SHARE * wall_s:
        return None
    lost = {
        name: sum(prices[at] * one.lost_s.get(name, 0.0) for at, one in tracks.items()) for name in FACTORS
    }
    waited = {
        name: sum(prices[at] * one.inside("waiting", name) for at, one in tracks.items()) for name in stages
    }
    uncut_s = min(lost["balance"] + lost["repeats"], _uncut_s(stages, bought, waited))
    idle_s = min(lost["balance"], uncut_s)
    lost["longest item"] = uncut_s
    lost["balance"] += in_task_s - useful_s - idle_s
    lost["repeats"] -= uncut_s - idle_s  # a copy where there was nothing else to do costs nothing
    cheapest = useful_s / in_task_s
    for kind in ("waiting", UNKNOWN):
        inside_s = cheapest * sum(prices[at] * one.inside(kind) for at, one in tracks.items())
        lost[kind], useful_s = lost[kind] + inside_s, max(0.0, useful_s - inside_s)
    device = _device_share(tracks, stages, prices)
    found = _multiplied(wall_s, useful_s, {name: max(0.0, s) for name, s in lost.items()}, device)
    workers = (one.worker(name, prices[name]) for name, one in tracks.items())
    return replace(found, workers=tuple(workers))


def _multiplied(wall_s: float, useful_s: float, lost: Mapping[str, float], device: float | None) -> Factors:
    """Make the factors, from the useful seconds up: each is what is left over what there was."""
    parts, left_s = [], useful_s
    for name in reversed([name for name in FACTORS if name != DEVICE]):
        before_s = left_s + lost[name]
        parts.append(Factor(name, left_s / before_s if before_s > 0 else 1.0, lost[name], FACTORS[name]))
        left_s = before_s
    parts.reverse()
    lost_s = 0.0 if device is None else useful_s * (1.0 - device)
    parts.append(Factor(DEVICE, device, lost_s, FACTORS[DEVICE]))
    return Factors(wall_s, useful_s - lost_s, useful_s / left_s * (device or 1.0), tuple(parts))


def speeds_of(
    stage: str, measured: Mapping[str, float], tracks: Mapping[str, TrackOfFactors]
) -> dict[str, float]:
    """Speeds in a stage of the slots that were measured, of their likes, and of who failed in all items."""
    speeds = {name: speed for name, speed in measured.items() if name in tracks and 0 < speed < math.inf}
    likes: dict[str, list[float]] = {}
    for name, speed in speeds.items():
        likes.setdefault(tracks[name].like, []).append(speed)
    mean = sum(speeds.values()) / len(speeds) if speeds else 1.0
    found = {}
    for name, track in tracks.items():
        alike = likes.get(track.like) if track.like else None
        if name in speeds:
            found[name] = speeds[name]
        elif alike:
            found[name] = sum(alike) / len(alike)
        elif track.useful_s.get(stage, 0.0) > 0:
            found[name] = mean
    return found


def prices_of(
    tracks: Mapping[str, TrackOfFactors], speeds: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """What a second of each slot is worth: its share of the speed, in each stage by the stage's work."""
    prices = dict.fromkeys(tracks, 0.0)
    for stage, by_track in speeds.items():
        fleet = sum(by_track.values())
        whole_s = sum(
            tracks[name].useful_s.get(stage, 0.0) * speed / fleet for name, speed in by_track.items()
        )
        for name, speed in by_track.items():
            prices[name] += whole_s * speed / fleet
    total = sum(prices.values())
    return {name: price / total for name, price in prices.items()} if 0 < total < math.inf else {}


def _bought_s(
    stage: str, tracks: Mapping[str, TrackOfFactors], speeds: Mapping[str, float], prices: Mapping[str, float]
) -> float:
    """Priced seconds of a stage's work where it is cheapest (see ``balance.bound.bound_together``)."""
    work = sum(tracks[name].useful_s.get(stage, 0.0) * speed for name, speed in speeds.items())
    return work * min((prices[name] / speed for name, speed in speeds.items()), default=0.0)


def _uncut_s(
    stages: Mapping[str, StageOfFactors], bought: Mapping[str, float], waited: Mapping[str, float]
) -> float:
    """Seconds beyond the work's own that no plan avoids, as an item cannot be on two devices at once."""
    groups: dict[int, list[str]] = {}
    for name, stage in stages.items():
        groups.setdefault(stage.group, []).append(name)
    return sum(
        max(
            0.0,
            max(stages[name].longest_s for name in names)
            - sum(bought[name] - waited[name] for name in names),
        )
        for names in groups.values()
    )


def _device_share(
    tracks: Mapping[str, TrackOfFactors], stages: Mapping[str, StageOfFactors], prices: Mapping[str, float]
) -> float | None:
    """Seconds that the work needs by data sheet over seconds that it took; None unless known of all work."""
    took_s = least_s = 0.0
    for name, track in tracks.items():
        for stage, seconds in track.useful_s.items():
            seconds -= track.inside(stage=stage)
            if seconds <= 0 or prices[name] <= 0:
                continue
            least = stages[stage].least_s.get(name) if stage in stages else None
            if least is None:
                return None
            took_s, least_s = took_s + prices[name] * seconds, least_s + prices[name] * least
    share = least_s / took_s if took_s > 0 else 0.0
    return (
        share if 0 < share <= 1 else None
    )  # a share above 1: what was declared, or the data sheet, is wrong
