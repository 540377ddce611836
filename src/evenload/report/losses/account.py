"""What a run's factors are made of, gathered from its events in memory bounded by devices and items."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenload.balance.bound import Bound
from evenload.balance.factors import (
    AMOUNTS,
    DEVICE,
    UNKNOWN,
    Factors,
    StageOfFactors,
    TrackOfFactors,
    factors_of,
    least_seconds,
    like_of,
    prices_of,
    speeds_of,
)
from evenload.events import Event, Idle, RunStarted, Span, StageFinished, StageStarted, WorkerStarted
from evenload.report.losses.remedies import Advice, Cause, LostRun, advice_on
from evenload.report.losses.replay import ReplaySlot, RunReplay
from evenload.report.losses.track_seconds import INSIDE, RunTimes, TrackSeconds
from evenload.report.worker_tracks import WorkerTracks

MOST_STEPS = 20_000  # of a replay: items times slots
MOST_LOADS = 1000
STANDS_OUT = 0.5  # of what the slot has that lost most
MOST_SLOTS = 3


BINS_PER_E = 20
LEAST_S = 1e-9


class Lengths:
    """The lengths of one stage's items by slot: memory for one run's bins, however many items there are."""

    __slots__ = ("_bins",)

    def __init__(self) -> None:
        self._bins: dict[tuple[str, int], tuple[float, float]] = {}

    def add(self, track: str, n_items: float, seconds: float) -> None:
        """Count ``n_items`` that took ``seconds`` together on the slot ``track``."""
        if n_items <= 0 or not LEAST_S <= seconds < math.inf:
            return
        at = track, math.floor(math.log(max(LEAST_S, seconds / n_items)) * BINS_PER_E)
        n, total_s = self._bins.get(at, (0.0, 0.0))
        self._bins[at] = n + n_items, total_s + seconds

    def pieces(self, most: int, speeds: Mapping[str, float]) -> list[float]:
        """The work of each item (its seconds times its slot's speed), whose sum is that of all items.

        Where there are more than ``most``, items of like work are put together, and at least one of each is
        left; items of slots without a speed are left out.
        """
        bins: dict[int, tuple[float, float]] = {}
        for (track, _), (n, total_s) in self._bins.items():
            work = total_s * speeds.get(track, 0.0)
            if work > 0:
                at = math.floor(math.log(work / n) * BINS_PER_E)
                n_before, before = bins.get(at, (0.0, 0.0))
                bins[at] = n_before + n, before + work
        share = min(1.0, most / max(1.0, sum(n for n, _ in bins.values())))
        rows = []
        for n, work in bins.values():
            n_pieces = max(1, round(n * share))
            rows += [work / n_pieces] * n_pieces
        return rows


@dataclass(slots=True)
class _Seen:
    """The items of a stage that came back."""

    n_by_track: dict[str, float] = field(default_factory=dict)
    lengths: Lengths = field(default_factory=Lengths)


class LossAccount:
    """An account of the seconds of every worker slot: ``add`` every event, then ``factors()`` at any time.

    tracks  which slot a worker's spans are in; whoever owns it shows it the workers that come and go
    """

    def __init__(self, tracks: WorkerTracks) -> None:
        self._tracks = tracks
        self._seconds: dict[str, dict[str, TrackSeconds]] = {}  # device -> slot -> seconds
        self._times = RunTimes()
        self._seen: dict[str, _Seen] = {}
        self._facts: dict[str, Mapping[str, Any]] = {}
        self._work: Mapping[str, Any] = {}
        self._loads: dict[tuple[str, str], float] = {}  # device, stage that it loaded -> seconds
        self._run_facts: Mapping[str, Any] = {}
        self._n_chunks, self._knows_costs = 0, False
        self._result_bytes: int | None = None

    def add(self, event: Event) -> None:
        """Count an event; a span goes to ``add_span``."""
        if isinstance(event, Idle):
            for one in self._slots(event.device).values():
                one.idle(event.start_s, event.stop_s, event.why)
            if event.why.startswith("loads "):
                stage = event.why.removeprefix("loads ")
                self._load(event.device, stage, max(0.0, event.stop_s - event.start_s))
        elif isinstance(event, WorkerStarted):
            slot = self._slot(event.device, self._tracks.key(event.device, event.worker))
            slot.startup(event.t - max(0.0, event.startup_s), event.t, max(0.0, event.build_s or 0.0))
        elif isinstance(event, StageStarted):
            self._times.stage_started(event.stage, event.t)
        elif isinstance(event, StageFinished):
            self._times.stage_finished(event.stage, event.t)
            if event.result_bytes is not None:
                self._result_bytes = (self._result_bytes or 0) + event.result_bytes
            self._knows_costs = self._knows_costs or bool(event.learned)
        elif isinstance(event, RunStarted):
            self._facts.update({name: dict(facts) for name, facts in event.devices.items()})
            self._run_facts = dict(event.facts)
            work = event.facts.get("item_work")
            self._work = work if isinstance(work, Mapping) else self._work

    def add_span(
        self, span: Span, track: str, busy_s: float, n_needed: int, inside: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Count a span in the slot ``track``, of which ``busy_s`` seconds were inside the task.

        n_needed  of its items, those that had not come back before
        inside    of ``busy_s``, seconds that it told it waits, and those that are not known
        """
        useful = 0.0
        self._n_chunks += 1
        self._knows_costs = self._knows_costs or span.cost is not None
        if span.n_items > 0 and span.status not in ("superseded", "lost"):
            useful = min(1.0, n_needed / span.n_items)
            seen = self._seen.setdefault(span.stage, _Seen())
            seen.n_by_track[track] = seen.n_by_track.get(track, 0.0) + n_needed
            seen.lengths.add(track, n_needed, (busy_s - sum(inside)) * useful)
        self._times.work(span.start_s, span.stop_s, is_useful=useful > 0)
        slot = self._slot(span.device, track)
        in_task_s = busy_s if span.n_items > 0 else 0.0
        began_s = self._times.began_s(span.stage)
        slot.span(span.stage, span.start_s, span.stop_s, in_task_s, useful, began_s, span.status, *inside)

    def factors(
        self, wall_s: float, bounds: Mapping[str, tuple[int, Bound]], *, is_over: bool, longest: str = ""
    ) -> tuple[Factors | None, Advice | None]:
        """The factors of ``wall_s`` seconds, None without work, and what to do about the largest loss.

        bounds   stage -> the number of the stretch of time that it ran in, and what was measured of it
        is_over  False for a run that goes on: of that nobody knows what to do yet
        longest  the longest item, in words
        """
        tracks, causes = self._rows(wall_s, is_over)
        stages = {
            name: StageOfFactors(bound.speeds, bound.longest_s, stretch, self._least_s(name, tracks))
            for name, (stretch, bound) in bounds.items()
        }
        found = factors_of(wall_s, tracks, stages)
        worst = found.largest if found is not None else None
        if found is None or worst is None or not is_over:
            return found, None
        speeds = {name: speeds_of(name, stage.speeds, tracks) for name, stage in stages.items()}
        prices = prices_of(tracks, speeds)
        if worst.name == DEVICE:
            causes = {track: _idle_units(one, track, stages) for track, one in tracks.items()}
        named = _causes(worst.name, causes, prices)
        replay = self._replay(tracks, stages, speeds)
        loads: dict[str, dict[str, float]] = {}
        for (device, stage), seconds in self._loads.items():
            if device in tracks:
                loads.setdefault(device, {})[stage] = seconds
        run = LostRun(
            worst.name, wall_s, worst.lost_s, named, replay, loads, longest, self._run_facts, causes,
            self._n_chunks, self._result_bytes, self._knows_costs,
        )  # fmt: skip
        return found, advice_on(found, run)

    def _rows(
        self, wall_s: float, is_over: bool
    ) -> tuple[dict[str, TrackOfFactors], dict[str, Mapping[tuple[str, str], float]]]:
        """The seconds of each slot, and by cause; without devices that worked only in a group ("a+b")."""
        grouped = {part for name in self._seconds if "+" in name for part in name.split("+")}
        tracks, causes = {}, {}
        for device in {**self._facts, **self._seconds}:
            slots = self._slots(device)
            if device in grouped and not any(one.n_spans for one in slots.values()):
                continue
            for track, one in slots.items():
                useful, lost, causes[track], inside = one.seconds(wall_s, self._times, is_over=is_over)
                like = like_of(self._facts.get(device, {}))
                tracks[track] = TrackOfFactors(useful, lost, like, inside)
        return tracks, causes

    def _replay(
        self,
        tracks: Mapping[str, TrackOfFactors],
        stages: Mapping[str, StageOfFactors],
        speeds: Mapping[str, Mapping[str, float]],
    ) -> RunReplay:
        most = max(64, MOST_STEPS // max(1, len(tracks)))
        stretches: dict[int, list[tuple[str, float]]] = {}
        for name, stage in stages.items():
            pieces = self._seen[name].lengths.pieces(most, speeds[name]) if name in self._seen else []
            stretches.setdefault(stage.group, []).extend((name, work) for work in pieces)
        slots = {}
        for name, track in tracks.items():
            useful_s = sum(track.useful_s.values()) - track.inside()
            causes = ("waiting", "overhead", "repeats") if useful_s > 0 else ()
            more = {cause: track.lost_s.get(cause, 0.0) / useful_s for cause in causes}
            inside = {"waiting": INSIDE, UNKNOWN: UNKNOWN} if causes else {}
            more |= {name: track.inside(kind) / useful_s for kind, name in inside.items()}
            slots[name] = ReplaySlot(track.lost_s.get("start-up", 0.0), more)
        return RunReplay([stretches[at] for at in sorted(stretches)], slots, speeds)

    def _load(self, device: str, why: str, seconds: float) -> None:
        if (device, why) in self._loads or len(self._loads) < MOST_LOADS:
            self._loads[device, why] = self._loads.get((device, why), 0.0) + seconds

    def _slots(self, device: str) -> dict[str, TrackSeconds]:
        return self._seconds.setdefault(device, {}) or {device: self._slot(device, device)}

    def _slot(self, device: str, track: str) -> TrackSeconds:
        slots = self._seconds.setdefault(device, {})
        if track not in slots:
            slots[track] = TrackSeconds()
        return slots[track]

    def _least_s(self, stage: str, tracks: Mapping[str, TrackOfFactors]) -> dict[str, float]:
        """Seconds that a stage's items need by what it declares and by the devices' data sheets."""
        work = self._work.get(stage)
        if not isinstance(work, Mapping):
            return {}
        counts = self._seen[stage].n_by_track if stage in self._seen else {}
        least = {}
        for track in tracks:
            item_s = least_seconds(work, self._rates(track))
            if item_s is not None:
                least[track] = item_s * counts.get(track, 0.0)
        return least

    def _rates(self, track: str) -> dict[str, float]:
        """What a slot reaches at most: a group what its devices do together, a shared device a part."""
        device = next((name for name, slots in self._seconds.items() if track in slots), track)
        known = [self._facts.get(part, {}) for part in device.split("+")]
        rates = {}
        for rate in AMOUNTS.values():
            parts = [one[rate] for one in known if isinstance(one.get(rate), int | float)]
            if len(parts) == len(known):
                rates[rate] = sum(parts) / len(self._seconds.get(device, (0,)))
        return rates


def _idle_units(
    track: TrackOfFactors, name: str, stages: Mapping[str, StageOfFactors]
) -> dict[tuple[str, str], float]:
    """Seconds of each stage on a slot beyond those that its work needs at the most that the device does."""
    took = {stage: s - track.inside(stage=stage) for stage, s in track.useful_s.items() if stage in stages}
    least = {stage: stages[stage].least_s.get(name, seconds) for stage, seconds in took.items()}
    return {(DEVICE, f"in {stage}"): max(0.0, took[stage] - least[stage]) for stage in took}


def _causes(
    factor: str, by_slot: Mapping[str, Mapping[tuple[str, str], float]], prices: Mapping[str, float]
) -> list[Cause]:
    """What a loss came from, the largest first, with the slots that lost most by it."""
    found: dict[str, dict[str, float]] = {}
    for slot, causes in by_slot.items():
        for (name, cause), seconds in causes.items():
            if name == factor:
                found.setdefault(cause, {})[slot] = prices.get(slot, 0.0) * seconds
    rows = []
    for cause, lost in found.items():
        most = max(lost.values())
        slots = [slot for slot in lost if lost[slot] >= STANDS_OUT * most]
        more = [f"{len(slots) - MOST_SLOTS} more"] if len(slots) > MOST_SLOTS else []
        rows.append(Cause(cause, sum(lost.values()), (*slots[:MOST_SLOTS], *more)))
    return sorted((one for one in rows if one.lost_s > 0), key=lambda one: -one.lost_s)
