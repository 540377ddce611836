"""What to do about the largest loss of a run: concrete, by what it came from, each with the time of a run so.

    causes + facts of the run ──► Remedy(what, without_s), the one that saves most first

Times are those of the run simulated again (``replay``) with the change made.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenload.balance.factors import DEVICE, UNKNOWN
from evenload.report.losses.replay import Replay, ReplaySlot
from evenload.report.losses.sources import INSIDE

__all__ = ["Cause", "LostRun", "Remedy", "remedies"]

LOADING = "loading "
CUT = 4
MOST = 2
LEAST_SAVED = 0.01  # of the run
LEAST_LOAD = 0.1  # of all loads of a slot
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
    """What to change, and the seconds that the run takes if it is simulated again with that change."""

    what: str
    without_s: float


@dataclass(frozen=True, slots=True)
class LostRun:
    """A run whose largest loss is ``factor``.

    causes   of that loss, the largest first
    loads    slot -> stage -> seconds that it was loaded for
    longest  the longest item, in words; "" if not known
    facts    as the run's first event has them
    """

    factor: str
    wall_s: float
    lost_s: float
    causes: Sequence[Cause]
    replay: Replay
    loads: Mapping[str, Mapping[str, float]]
    longest: str
    facts: Mapping[str, Any]

    @property
    def is_pipeline(self) -> bool:
        return isinstance(self.facts.get("stages"), list)

    @property
    def is_training(self) -> bool:
        """Whether its items are samples of steps, which no worker can be dealt earlier."""
        return self.facts.get("is_training") is True

    def scaled(self, changed: float) -> float:
        """Seconds of the run whose replay takes ``changed`` seconds."""
        before_s = self.replay.makespan_s()
        return self.wall_s * min(1.0, changed / before_s) if before_s > 0 else self.wall_s


def without(run: LostRun) -> float:
    """Seconds of the run if its largest loss were not."""
    if run.factor == DEVICE:
        return run.wall_s - run.lost_s
    if run.factor == "balance":  # the replay deals the longest first, to whoever ends it first
        return min(run.wall_s, run.replay.makespan_s())
    if run.factor == "longest item":
        return run.scaled(run.replay.makespan_s(parts=CUT))
    return run.scaled(run.replay.makespan_s(run.factor))


def remedies(run: LostRun) -> list[Remedy]:
    """What to do, the one that saves most first; at least one."""
    makers = {
        "start-up": _start_up,
        "balance": _balance,
        "longest item": _longest,
        "waiting": _waiting,
        "overhead": _overhead,
        "repeats": _repeats,
        UNKNOWN: _unknown,
        DEVICE: _device,
    }
    if run.is_training:
        return [Remedy(TRAINING.get(run.factor, TRAINING["balance"]), without(run))]
    found = sorted(makers[run.factor](run), key=lambda one: one.without_s)
    useful = [one for one in found if one.without_s < run.wall_s * (1 - LEAST_SAVED)]
    return (useful or found)[:MOST]


def _start_up(run: LostRun) -> Iterator[Remedy]:
    loaded = [one for one in run.causes if one.cause.startswith(LOADING)]
    slot, stages = max(run.loads.items(), key=lambda one: sum(one[1].values()), default=("", {}))
    stages = {stage: s for stage, s in stages.items() if s > LEAST_LOAD * sum(stages.values())}
    if loaded and len(stages) > 1:
        n_more = len(stages) - 1
        named = ", ".join(sorted(stages)[:4])
        yield Remedy(
            f"have a device for each model that {slot} loads ({named}): --devices with {n_more} more like it",
            run.scaled(_with_a_slot_for_each(run, slot, stages).makespan_s()),
        )
    keeps_s = run.scaled(run.replay.makespan_s("start-up"))
    if run.is_pipeline:
        what = "put the items of several runs into one, which loads once"
    elif loaded or any(one.cause == "building the task" for one in run.causes):
        what = "keep workers and their models: one Executor for several maps"
    else:
        what = "keep the workers: one Executor for several maps, and import less at the top of the task"
    yield Remedy(what, keeps_s)


def _with_a_slot_for_each(run: LostRun, slot: str, stages: Mapping[str, float]) -> Replay:
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
    policy = str(run.facts.get("policy", ""))
    if policy and not policy.startswith("measured"):
        yield Remedy(f'deal by policy="measured" in place of {policy[:40]}', dealt_s)
    idle = ", ".join(run.causes[0].slots) if run.causes else "the devices that end first"
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
    yield Remedy(f"tell what items cost (cost=), so that {idle} gets short ones at the end", dealt_s)


def _longest(run: LostRun) -> Iterator[Remedy]:
    which = f" ({run.longest})" if run.longest else ""
    yield Remedy(f"cut the longest items in {CUT}{which}, or give them a gang of devices", without(run))


def _waiting(run: LostRun) -> Iterator[Remedy]:
    first = run.causes[0] if run.causes else None
    where = f" on {', '.join(first.slots)}" if first is not None else ""
    if first is not None and first.cause.startswith(INSIDE):
        stage = first.cause.removeprefix(INSIDE)
        on_cpu = (
            'more workers, devices="cpu*16"' if first.slots[:1] and first.slots[0].startswith("cpu") else ""
        )
        how = "its batch, concurrency of its client" if run.is_pipeline else on_cpu or "threads in a batch="
        what = f"have more items of {stage} in flight ({how})"
        yield Remedy(f"{what}: they wait{where}", run.scaled(run.replay.makespan_s(INSIDE)))
    elif run.is_pipeline:
        stage = first.cause.removeprefix("for items of ") if first is not None else "the stage that waits"
        yield Remedy(
            f"give the stages before {stage} more devices: there was nothing ready{where}", without(run)
        )
    else:
        what = "read items inside of the task, or read further ahead (look_ahead=)"
        yield Remedy(f"{what}: nothing was ready{where}", without(run))


def _unknown(run: LostRun) -> Iterator[Remedy]:
    stage = run.causes[0].cause.removeprefix(INSIDE) if run.causes else "the task"
    what = f"see where {stage} sleeps or reads, say so (`with evenload.waiting():`), and have more in flight"
    yield Remedy(what, without(run))


def _overhead(run: LostRun) -> Iterator[Remedy]:
    cause = run.causes[0].cause if run.causes else ""
    if cause == "after the last item":
        what = (
            "look at what the run does after its last item: a report, a headline, workers that close slowly"
        )
    elif cause.startswith("in messages"):
        what = "return less, and send paths instead of arrays; batch= puts more items in a call"
    else:
        what = 'send more items at once (batch=, or policy="measured"): workers wait between chunks'
    yield Remedy(what, without(run))


def _repeats(run: LostRun) -> Iterator[Remedy]:
    cause = run.causes[0] if run.causes else None
    where = f" on {', '.join(cause.slots)}" if cause is not None else ""
    if cause is not None and cause.cause == "in work of lost workers":
        yield Remedy(f"look at why workers were lost{where}: memory, or a crash in the task", without(run))
    elif cause is not None and cause.cause == "in copies that came second":
        what = "tell what items cost (cost=): copies are made of last items whose end nobody knows"
        yield Remedy(what, without(run))
    else:
        yield Remedy(f"look at what was done twice{where}", without(run))


def _device(run: LostRun) -> Iterator[Remedy]:
    stage = run.causes[0].cause.removeprefix("in ") if run.causes else "the task"
    what = f"let {stage} do more at once: larger batches, 16 bits, a compiled or fused task"
    yield Remedy(what, without(run))
