"""What to do about the largest loss of a run, each thing tried first: the run is simulated again with it.

    causes + facts of the run ──► changed replay ──► Remedy(what, without_s), the one that saves most first

What saves less than a twentieth of the loss is not told.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evenload._plain_text import seconds_text
from evenload.balance.factors import DEVICE, FACTORS, UNKNOWN, Factors
from evenload.report.losses.replay import ReplaySlot, RunReplay
from evenload.report.losses.track_seconds import BETWEEN, BUILDING, INSIDE, STARTING, UNFETCHED

LOADING = "loading "
CUT = 4
TOGETHER = 8
MOST = 2
LEAST_SAVED = 0.05  # of the loss
LEAST_LOAD = 0.1  # of all loads of a slot
LARGE_BYTES = 1e6  # of a chunk's results: more than sending any chunk takes
LONG_START_S = 1.0  # of a slot's processes: more than a bare interpreter takes
TRAINING = {
    "start-up": "train for longer in one run: ranks start once",
    "balance": "take a larger global batch: ranks differ less in longer steps, and whole shares are finer",
    "overhead": "exchange gradients less often: a larger global batch, or more micro-batches in a step",
    DEVICE: "let a rank do more at once: larger batches, 16 bits, a compiled model",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Seconds that a factor took for one reason, by the prices of the slots; ``slots``: lost most of it."""

    cause: str
    lost_s: float
    slots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to change, and the seconds that the run takes if it is simulated again with that change.

    at_best  the whole cause is taken away in the simulation; how near to that one comes is not known
    """

    what: str
    without_s: float
    at_best: bool = False

    def __str__(self) -> str:
        return f"{self.what} ({'at best ' if self.at_best else ''}{seconds_text(self.without_s)})"


@dataclass(frozen=True, slots=True)
class LostRun:
    """A run whose largest loss is ``factor``.

    causes   of that loss, the largest first
    loads    slot -> stage -> seconds that it was loaded for
    longest  the longest item, in words; "" if not known
    facts    as the run's first event has them
    by_slot  slot -> (factor, cause) -> seconds
    n_chunks      chunks that came back, of all stages
    result_bytes  bytes of their results; None if not known
    knows_costs   items had sizes, told or learned, by which they were dealt
    """

    factor: str
    wall_s: float
    lost_s: float
    causes: Sequence[Cause]
    replay: RunReplay
    loads: Mapping[str, Mapping[str, float]]
    longest: str
    facts: Mapping[str, Any]
    by_slot: Mapping[str, Mapping[tuple[str, str], float]] = field(default_factory=dict)
    n_chunks: int = 0
    result_bytes: int | None = None
    knows_costs: bool = False

    @property
    def is_pipeline(self) -> bool:
        return isinstance(self.facts.get("stages"), list)

    @property
    def is_training(self) -> bool:
        """Whether its items are samples of steps, which no worker can be dealt earlier."""
        return self.facts.get("is_training") is True

    @property
    def policy(self) -> str:
        """The name of its policy, without parameters; "" if not known."""
        text = str(self.facts.get("policy", ""))
        return text.partition(":")[0].partition("(")[0].strip().lower()[:40]

    def scaled(self, changed: float) -> float:
        """Seconds of the run whose replay takes ``changed`` seconds."""
        before_s = self.replay.makespan_s()
        return self.wall_s * min(1.0, changed / before_s) if before_s > 0 else self.wall_s

    def slot_s(self, cause: str) -> dict[str, float]:
        """Seconds that each slot lost to ``cause`` of this factor."""
        return {slot: causes.get((self.factor, cause), 0.0) for slot, causes in self.by_slot.items()}

    def started_sooner(self, seconds: Mapping[str, float]) -> float:
        """Seconds of the run if each slot had been ready so many ``seconds`` before."""
        slots = {
            name: replace(slot, start_s=max(0.0, slot.start_s - seconds.get(name, 0.0)))
            for name, slot in self.replay.slots.items()
        }
        return self.scaled(replace(self.replay, slots=slots).makespan_s())


def without(run: LostRun) -> float:
    """Seconds of the run if its largest loss were not."""
    if run.factor == DEVICE:
        return run.wall_s - run.lost_s
    if run.factor == "balance":  # the replay deals the longest first, to whoever ends it first
        return min(run.wall_s, run.replay.makespan_s())
    if run.factor == "longest item":
        # copies fill the time that one long item leaves to the others; of short ones there is no need
        return run.scaled(run.replay.makespan_s("repeats", parts=CUT))
    return run.scaled(run.replay.makespan_s(run.factor))


def remedies(run: LostRun) -> list[Remedy]:
    """Return what to do, the one that saves most first; none if nothing that was tried saves enough."""
    if run.is_training:
        found = [Remedy(TRAINING.get(run.factor, TRAINING["balance"]), without(run), at_best=True)]
    else:
        found = sorted(MAKERS[run.factor](run), key=lambda one: one.without_s)
    least_s = LEAST_SAVED * run.lost_s
    return [one for one in found if run.wall_s - one.without_s >= least_s][:MOST]


def _start_up(run: LostRun) -> Iterator[Remedy]:
    slot, stages = max(run.loads.items(), key=lambda one: sum(one[1].values()), default=("", {}))
    stages = {stage: s for stage, s in stages.items() if s > LEAST_LOAD * sum(stages.values())}
    if len(stages) > 1 and any(one.cause.startswith(LOADING) for one in run.causes):
        n_more = len(stages) - 1
        named = ", ".join(sorted(stages)[:4])
        yield Remedy(
            f"have a device for each model that {slot} loads ({named}): --devices with {n_more} more like it",
            run.scaled(_with_a_slot_for_each(run, slot, stages).makespan_s()),
        )
    keeps_s = run.scaled(run.replay.makespan_s("start-up"))
    if run.is_pipeline:
        yield Remedy("put the items of several runs into one, which loads once: from then on", keeps_s)
        return
    yield Remedy("keep the workers in one Executor for several maps: from the second map on", keeps_s)
    built_s, started_s = run.slot_s(BUILDING), run.slot_s(STARTING)
    if sum(built_s.values()) > sum(started_s.values()):
        yield Remedy("load less in the task's constructor", run.started_sooner(built_s), at_best=True)
    elif max(started_s.values(), default=0.0) > LONG_START_S:
        what = "import less at the top of the task's module"
        yield Remedy(what, run.started_sooner(started_s), at_best=True)


def _with_a_slot_for_each(run: LostRun, slot: str, stages: Mapping[str, float]) -> RunReplay:
    """The replay if each stage that ``slot`` loaded had a slot like it for itself."""
    one = run.replay.slots[slot]
    start_s = max(0.0, one.start_s - sum(stages.values()))
    slots = {**run.replay.slots}
    speeds = {stage: dict(by) for stage, by in run.replay.speeds.items()}
    for n, (stage, load_s) in enumerate(stages.items()):
        name = slot if not n else f"{slot} again {n}"
        slots[name] = ReplaySlot(start_s + load_s, one.more)
        for other, by in speeds.items():
            speed = run.replay.speeds[other].get(slot)
            if speed is not None:
                by.pop(name, None)
                if other == stage or other not in stages:
                    by[name] = speed
    return replace(run.replay, slots=slots, speeds=speeds)


def _balance(run: LostRun) -> Iterator[Remedy]:
    dealt_s = without(run)
    if run.policy and run.policy != "measured":
        yield Remedy(f'deal by policy="measured" in place of {run.policy}', dealt_s, at_best=True)
    for stage, by in run.replay.speeds.items():
        lacking = [slot for slot in run.replay.slots if slot not in by]
        if lacking and by:
            speeds = {
                **run.replay.speeds,
                stage: {**dict.fromkeys(lacking, sum(by.values()) / len(by)), **by},
            }
            yield Remedy(
                f"let {stage} run on {', '.join(lacking[:3])}, too",
                run.scaled(replace(run.replay, speeds=speeds).makespan_s()),
            )
    if not run.knows_costs:
        idle = ", ".join(run.causes[0].slots) if run.causes else "the devices that end first"
        yield Remedy(f"tell what items cost (cost=), so that {idle} gets short ones at the end", dealt_s)


def _longest(run: LostRun) -> Iterator[Remedy]:
    which = f" ({run.longest})" if run.longest else ""
    yield Remedy(f"cut the longest items in {CUT}{which}, or give them a gang of devices", without(run))


def _waiting(run: LostRun) -> Iterator[Remedy]:
    first = run.causes[0] if run.causes else None
    where = f" on {', '.join(first.slots)}" if first is not None and first.slots else ""
    if first is not None and first.cause.startswith(INSIDE):
        stage = first.cause.removeprefix(INSIDE)
        on_cpu = (
            'more workers, devices="cpu*16"' if first.slots[:1] and first.slots[0].startswith("cpu") else ""
        )
        how = "its batch, concurrency of its client" if run.is_pipeline else on_cpu or "threads in a batch="
        what = f"have more items of {stage} in flight ({how}): they wait{where}"
        yield Remedy(what, run.scaled(run.replay.makespan_s(INSIDE)), at_best=True)
    elif run.is_pipeline:
        stage = first.cause.removeprefix("for items of ") if first is not None else "the stage that waits"
        what = f"give the stages before {stage} more devices: there was nothing ready{where}"
        yield Remedy(what, without(run), at_best=True)
    elif first is not None and first.cause == UNFETCHED:
        what = "fetch results sooner, or let more of them wait (look_ahead=, look_ahead_bytes=)"
        yield Remedy(f"{what}: workers stood still{where}", without(run), at_best=True)
    else:
        what = f"read items inside of the task, which all devices do side by side: nothing was ready{where}"
        yield Remedy(what, min(run.wall_s, _with_reading_inside(run).makespan_s("waiting")))


def _with_reading_inside(run: LostRun) -> RunReplay:
    """The replay if each item took the time, too, that its reading takes now.

    Whoever reads one after the other was never ahead of the devices: all the run's time went into it.
    """
    read_s = run.wall_s / max(1, sum(map(len, run.replay.stretches)))
    mean = {stage: sum(by.values()) / max(1, len(by)) for stage, by in run.replay.speeds.items()}
    longer = [
        [(stage, work + read_s * mean.get(stage, 1.0)) for stage, work in stretch]
        for stretch in run.replay.stretches
    ]
    before, now = (
        sum(work for stretch in one for _, work in stretch) for one in (run.replay.stretches, longer)
    )
    share = before / now if now > 0 else 1.0  # other losses take the seconds that they took
    slots = {
        name: replace(slot, more={cause: share * seconds for cause, seconds in slot.more.items()})
        for name, slot in run.replay.slots.items()
    }
    return replace(run.replay, stretches=longer, slots=slots)


def _unknown(run: LostRun) -> Iterator[Remedy]:
    stage = run.causes[0].cause.removeprefix(INSIDE) if run.causes else "the task"
    what = f"see where {stage} sleeps or reads, say so (`with evenload.waiting():`), and have more in flight"
    yield Remedy(what, without(run), at_best=True)


def _overhead(run: LostRun) -> Iterator[Remedy]:
    cause = run.causes[0].cause if run.causes else ""
    each = (run.result_bytes or 0) / max(1, run.n_chunks)
    if cause == "after the last item":
        what = "look at what the run does after its last item: a report, workers that close slowly"
        yield Remedy(what, without(run), at_best=True)
    elif each >= LARGE_BYTES or cause.startswith("in messages"):
        size = f": {(run.result_bytes or 0) / 1e6:,.0f} MB came back" if each >= LARGE_BYTES else ""
        yield Remedy(f"return less, or paths of files{size}", without(run), at_best=True)
    elif cause == BETWEEN:
        slots = {
            name: replace(slot, more={**slot.more, "overhead": slot.more.get("overhead", 0.0) / TOGETHER})
            for name, slot in run.replay.slots.items()
        }
        together = replace(run.replay, slots=slots).makespan_s(together=TOGETHER)
        yield Remedy(f"send {TOGETHER} times as many items at once (batch=)", run.scaled(together))


def _repeats(run: LostRun) -> Iterator[Remedy]:
    cause = run.causes[0] if run.causes else None
    where = f" on {', '.join(cause.slots)}" if cause is not None else ""
    if cause is not None and cause.cause == "in work of lost workers":
        what = f"look at why workers were lost{where}: memory, or a crash in the task"
        yield Remedy(what, without(run), at_best=True)
    elif cause is not None and cause.cause == "in copies that came second":
        if not run.knows_costs:
            what = "tell what items cost (cost=): copies are made of last items whose end nobody knows"
            yield Remedy(what, without(run))
    else:
        yield Remedy(f"look at what was done twice{where}", without(run), at_best=True)


def _device(run: LostRun) -> Iterator[Remedy]:
    stage = run.causes[0].cause.removeprefix("in ") if run.causes else "the task"
    what = f"let {stage} do more at once: larger batches, 16 bits, a compiled or fused task"
    yield Remedy(what, without(run), at_best=True)


MAKERS = {
    "start-up": _start_up,
    "balance": _balance,
    "longest item": _longest,
    "waiting": _waiting,
    "overhead": _overhead,
    "repeats": _repeats,
    UNKNOWN: _unknown,
    DEVICE: _device,
}

LEAST_SHARE = 0.01  # a loss below this share of the run is nothing to act on
MOST_CAUSES = 3
LEAST_CAUSE = 0.1  # of the loss


@dataclass(frozen=True, slots=True)
class Advice:
    """The largest loss of a run, and what to do about it.

    factor     one of ``FACTORS``
    lost_s     seconds that it took of the run's
    without_s  seconds that the run takes if it is simulated again without this loss
    causes     what it came from, the largest first
    remedies   what to change, each with the seconds of the run simulated so, the best first
    """

    factor: str
    wall_s: float
    lost_s: float
    without_s: float
    causes: tuple[Cause, ...]
    remedies: tuple[Remedy, ...]

    def text(self) -> str:
        """Return the paragraph for a report."""
        shown = [one for one in self.causes[:MOST_CAUSES] if one.lost_s >= LEAST_CAUSE * self.lost_s]
        came = "; ".join(
            f"{seconds_text(one.lost_s)} {one.cause}" + (f" on {', '.join(one.slots)}" if one.slots else "")
            for one in shown
        )
        actions = "; or ".join(map(str, self.remedies))
        return (
            f"{seconds_text(self.lost_s)} of {seconds_text(self.wall_s)} went into {self.factor} "
            f"({FACTORS[self.factor]}){f': {came}' if came else ''}. "
            f"Without it, this run takes {seconds_text(self.without_s)}, simulated with its own times. "
            + (f"To do: {actions}." if actions else "Nothing that was tried would save a twentieth of that.")
        )


def advice_on(factors: Factors, run: LostRun) -> Advice | None:
    """What to do about the largest loss; None if nothing is worth it."""
    if run.lost_s < LEAST_SHARE * factors.wall_s:
        return None
    return Advice(
        run.factor,
        run.wall_s,
        run.lost_s,
        without(run),
        tuple(run.causes[:MOST_CAUSES]),
        tuple(remedies(run)),
    )
