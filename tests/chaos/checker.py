"""Holds the lines of evidence against the program: which promises were broken? Pure.

    check(program, lines) ──► violations, in words

No item lost, none delivered twice or out of order, no wrong value, no error without a cause, nothing that may
run once run twice, nothing of a journal made again, the executor of use after each phase.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from chaos.evidence import Line
from chaos.programs import BAD_ITEMS, DEADLY, STRAY, WAITS, Phase, Program, digest, value_of
from chaos.work import BESIDE

GOES = "full"  # the driver has mounted this disk: what is on it goes with a driver that is killed
REFUSED = ("unpicklable item", "item breaks as it is read")
OUTSIDE = ("kill worker", "stop worker")  # the end of a fork server is nobody's end
ERROR_OF = {
    **dict.fromkeys(("raise", "raise odd", "unpicklable error", "memory"), ("TaskError",)),
    **dict.fromkeys(("bad result", "bomb result", "unpicklable item"), ("ResultNotSendable",)),
    "item breaks as it is read": ("ResultNotSendable", "TaskError"),
    **dict.fromkeys((*DEADLY, "item kills as it is read"), ("WorkerLost",)),
    **dict.fromkeys(WAITS, ("TaskTimeout",)),
    **dict.fromkeys(STRAY, ("WorkerLost", "ResultNotSendable", "TaskError", "TaskTimeout")),
}


@dataclass(slots=True)
class Attempt:
    """One run of a phase: what the driver was given, and how it ended ("" if the driver died)."""

    life: int
    got: list[tuple[int, str]] = field(default_factory=list)
    over: str = ""


@dataclass(slots=True)
class Seen:
    """All that was seen of a phase."""

    program: Program
    phase: Phase
    number: int
    attempts: list[Attempt]
    began: list[Line]
    n_ended: Counter[int]
    faults: list[Line]
    hurt: dict[int, set[str]]  # process -> what it did, or what was done to it
    interrupted: set[int]  # lives whose driver was
    last: dict[int, Line]  # process -> what it wrote last of an item of this phase
    excused: set[int] = field(default_factory=set)  # items that a worker may have ended before, see below

    def touched(self, item: int) -> set[tuple[int, int]]:
        """Processes in which the item began, each with the phase: a pipeline's stages have one each."""
        return {(line.phase, line.pid) for line in self.began if line.item == item}

    def did(self, item: int) -> set[str]:
        return {line.more for line in self.faults if line.item == item and line.more in ERROR_OF}

    @property
    def is_repeatable(self) -> bool:
        return self.phase.repeatable or self.number >= BESIDE

    @property
    def batch(self) -> int | None:
        return self.phase.batch if self.number < BESIDE else None


def check(program: Program, lines: list[Line]) -> list[str]:
    """What is wrong, each in words that begin with the phase."""
    found = [f"phase {line.phase}: item {line.item} was given damaged: {line.more}" for line in lines
             if line.kind == "input"]  # fmt: skip
    found += [f"left: {line.more}" for line in lines if line.kind == "left"]
    if not any(line.kind == "life" and line.more == "ends" for line in lines):
        found.append("no life came to its end")
    for phase in program.phases:
        numbers = (phase.number, phase.number + BESIDE) if phase.beside else (phase.number,)
        for number in numbers:
            seen = gather(program, phase, number, lines)
            found += [f"phase {number} ({phase.kind}): {what}" for what in faults_of(seen)]
        if phase.kind != "pipeline" and not any(x.kind == "alive" and x.phase == phase.number for x in lines):
            found.append(f"phase {phase.number}: the executor was of no use afterwards")
    return found


def gather(program: Program, phase: Phase, number: int, lines: Iterable[Line]) -> Seen:
    attempts: list[Attempt] = []
    hurt: dict[int, set[str]] = defaultdict(set)
    numbers = (number, number + BESIDE) if phase.kind == "pipeline" else (number,)  # its two stages
    mine = [line for line in lines if line.phase in numbers]
    for line in lines:
        if line.kind == "fault":
            hurt[line.pid].add(line.more)
    for line in mine:
        if line.kind == "run":
            attempts.append(Attempt(line.life))
        elif line.kind == "got":
            attempts[-1].got.append((line.item, line.more))
        elif line.kind == "held":
            attempts[-1].got.append((line.item, line.more and "= " + line.more)) if not any(
                item == line.item and told == "= " + line.more for item, told in attempts[-1].got
            ) else None
        elif line.kind == "over":
            attempts[-1].over = line.more
    return Seen(
        program, phase, number, attempts,
        [line for line in mine if line.kind == "began"],
        Counter(line.item for line in mine if line.kind == "ended"),
        [line for line in mine if line.kind == "fault"],
        dict(hurt),
        {line.life for line in lines if line.more == "interrupt driver"},
        {line.pid: line for line in mine if line.kind in ("began", "ended")},
    )  # fmt: skip


def faults_of(seen: Seen) -> Iterator[str]:
    if not any(attempt.over for attempt in seen.attempts):
        yield "it never came to its end"
    for attempt in seen.attempts:
        yield from twice(seen, attempt)
        if seen.phase.kind == "gang":
            yield from of_gang(seen, attempt)
            continue
        for item, told in attempt.got:
            yield from of_result(seen, item, told)
        if attempt.over:
            yield from of_end(seen, attempt, attempt is seen.attempts[-1])
    yield from run_again(seen)


def twice(seen: Seen, attempt: Attempt) -> Iterator[str]:
    for item, n in Counter(item for item, _ in attempt.got if item >= 0).items():
        if n > 1:
            yield f"item {item} was delivered {n} times, or changed after it was"
    order = [item for item, _ in attempt.got if item >= 0]
    if seen.phase.ordered and seen.phase.kind == "map" and order != sorted(order):
        yield f"results came out of order: {order}"


def of_result(seen: Seen, item: int, told: str) -> Iterator[str]:
    if told.startswith("= "):
        right = digest(value_of(seen.program.seed, seen.number, item, seen.phase.size(item)))
        if seen.phase.kind == "pipeline":
            from chaos.pipeline_job import expected

            right = expected(seen.program.seed, item)
        if told[2:] != right and item >= 0:
            yield f"item {item} has the value {told[2:]}, and not {right}"
        if not seen.n_ended[item] and item >= 0:
            yield f"item {item} has a value, and no task ever made it"
        return
    why = why_not(seen, item, told)
    if why:
        yield f"item {item} failed with {told[:200]}: {why}"


def why_not(seen: Seen, item: int, told: str) -> str:
    """Why this error of this item has no cause; "" if it has one."""
    deed = seen.phase.deeds.get(item) if seen.number < BESIDE else None
    did, name = seen.did(item), told.partition(":")[0]
    if seen.phase.kind == "pipeline":
        name = "WorkerLost" if name == "WorkerLost" else "TaskError"
    if "begun by an earlier run" in told:
        return "" if len(seen.attempts) > 1 and not seen.is_repeatable else "there was no earlier run"
    if any(name in ERROR_OF[one] for one in did):
        assert deed is not None
        return should_have_recovered(seen, item, name)
    if name == "WorkerLost":
        return why_not_lost(seen, item)
    if name == "TaskTimeout":
        is_of_batch = seen.batch and not seen.is_repeatable and names(seen) & set(WAITS)
        return "" if is_of_batch else "it never hung"
    if name in ("ResultNotSendable", "TaskError") and seen.batch and not seen.is_repeatable and names(seen):
        return ""  # its batch failed as a whole, and may not be tried again
    return "nothing was wrong with it"


def names(seen: Seen) -> set[str]:
    return {line.more for line in seen.faults}


def should_have_recovered(seen: Seen, item: int, name: str) -> str:
    """Why an item that misbehaved once only should have got its value all the same."""
    deed, phase = seen.phase.deeds[item], seen.phase
    if deed.times > 1 or not seen.is_repeatable:
        return ""
    if deed.name in DEADLY and not why_not_lost(seen, item, of_its_own=1):
        return ""
    if deed.name in DEADLY:
        return "it ended a worker once only, and may be tried again"
    if deed.name in ("raise", "raise odd") and phase.retries and name == "TaskError":
        return "it raised once only, and may be tried again"
    return ""


def why_not_lost(seen: Seen, item: int, of_its_own: int = 0) -> str:
    """Why it cannot be that the workers that ran the item were lost by what others did."""
    by_others = Counter(
        phase for phase, pid in seen.touched(item) if seen.hurt.get(pid, set()) & {*OUTSIDE, *STRAY}
    )
    n_by_others = max(by_others.values(), default=0)
    is_drained = "act: drain at once" in names(seen)
    n_outside = sum("kill worker" in did for did in seen.hurt.values())
    if not seen.is_repeatable:
        # A batch is one call: what ends its worker while it is run, or read, takes it as a whole.
        kills = {*DEADLY, *STRAY, *WAITS}
        mates = batch_of(item, seen.batch)
        of_batch = {pid for mate in mates for _, pid in seen.touched(mate)}
        in_a_batch = seen.batch and (
            any(seen.hurt.get(pid, set()) & {*kills, *OUTSIDE} for pid in of_batch)
            or "item kills as it is read" in names(seen)
        )
        may_not_have_said = n_outside and not seen.touched(item)
        if n_by_others or is_drained or in_a_batch or may_not_have_said or was_on_the_way(seen, item):
            return ""
        return "its worker was not lost while it ran"
    limit = 2 if seen.phase.kind == "pipeline" else seen.program.max_worker_deaths
    n_by_others += n_by_others + of_its_own < limit and was_on_the_way(seen, item)
    if n_by_others + of_its_own >= limit:
        return ""
    return f"it was in {n_by_others} workers that others ended, and may be in {limit}"


def was_on_the_way(seen: Seen, item: int) -> bool:
    """Whether a worker may have ended between another item and the first word of this one.

    A worker notes that it is at an item before it reads the item, and what an item did to its own pipes may
    take effect a little later: the executor cannot know better either. It counts once for an item, as what
    may have ended a worker runs alone from then on, and each worker that ended so counts for one item.
    """
    silent = [
        pid
        for pid, last in seen.last.items()
        if last.kind == "ended" and seen.hurt.get(pid, set()) & {*OUTSIDE, *STRAY}
    ]
    if item in seen.excused:
        return True
    is_other = any((seen.number, pid) not in seen.touched(item) for pid in silent)
    if is_other and len(seen.excused) < len(silent):
        seen.excused.add(item)
    return item in seen.excused


def batch_of(item: int, batch: int | None) -> range:
    """The items that are in one call with ``item``, or would be."""
    start = item // (batch or 1) * (batch or 1)
    return range(start, start + (batch or 1))


def of_end(seen: Seen, attempt: Attempt, is_last: bool) -> Iterator[str]:
    """What the map as a whole should have given, and how it should have ended."""
    phase, over, given = seen.phase, attempt.over, {item for item, _ in attempt.got}
    is_main = seen.number < BESIDE
    if over.startswith("ExecutorClosed") and attempt.life in seen.interrupted:
        return  # the map beside ends with the executor
    if is_main and phase.disk and not is_last and "cannot be written" in over:
        return
    if is_main and phase.on_error == "raise" and not over.startswith("as told"):
        if not any(over.startswith(name) for did in map(seen.did, range(phase.n)) for one in did
                   for name in ERROR_OF[one]) and not over.startswith(("WorkerLost", "source")):  # fmt: skip
            yield f"it ended with {over}"
        return
    if is_main and phase.leaves_at is not None:
        if not over.startswith(("as told", "source")):
            yield f"it ended with {over}"
        return
    due = set(range(phase.n if phase.raises_at is None or not is_main else phase.raises_at))
    if is_main and phase.raises_at is not None and not over.startswith("source"):
        yield f"its source raised, and it ended with {over}"
    elif (phase.raises_at is None or not is_main) and not over.startswith("as told"):
        yield f"it ended with {over}"
    if is_main and phase.on_error == "raise" and phase.sizes != (0,):
        return
    if given != due:
        yield f"items {sorted(due - given)} are lost; {sorted(given - due)} were made up"


def run_again(seen: Seen) -> Iterator[str]:
    """What was run although it may not be, or need not be."""
    if not seen.is_repeatable:
        is_lasting = seen.phase.journal and seen.phase.disk != GOES
        key = (lambda line: line.item) if is_lasting else (lambda line: (line.item, line.life))
        counts = Counter(key(line) for line in seen.began)
        if not seen.phase.journal and seen.phase.disk:
            counts.clear()
        yield from (f"item {item} began {n} times" for item, n in counts.items() if n > 1)
    if seen.phase.journal and seen.number < BESIDE:
        # What is on a full disk goes with a driver that is killed before it has moved it: then it runs again.
        moved = {one.life for one, after in pairwise(seen.attempts) if one.life == after.life}
        lasting = [one for one in reversed(seen.attempts) if seen.phase.disk != GOES or one.life in moved]
        safe = {item: one.life for one in lasting for item, told in one.got if told.startswith("= ")}
        for line in seen.began:
            if line.item in safe and line.life > safe[line.item]:
                yield f"item {line.item} was given in life {safe[line.item]} and made again in {line.life}"


def of_gang(seen: Seen, attempt: Attempt) -> Iterator[str]:
    deeds = seen.phase.deeds
    is_struck = any(line.more in OUTSIDE for line in seen.faults)
    if attempt.over.startswith("as told"):
        if deeds or sorted(attempt.got) != [(0, "= 6"), (1, "= 6")]:
            yield f"its ranks gave {attempt.got}"
    elif attempt.over and not is_struck:
        ranks = [f"GangError rank {number}" for number in deeds]
        if attempt.over not in ranks:
            yield f"it ended with {attempt.over}, and not with {ranks}"


# --- counts ---------------------------------------------------------------------------------------


def count_faults(lines: list[Line]) -> Counter[str]:
    """Faults that have happened, by kind.

    One that should have ended its process has, or is not counted; nor is one that has hit nothing. An item
    that is refused as it is read counts once, however often it is tried.
    """
    faults: Counter[str] = Counter()
    refused: set[tuple[int, int]] = set()
    last = {line.pid: at for at, line in enumerate(lines) if line.kind in ("began", "ended")}
    for at, line in enumerate(lines):
        if line.kind == "fault":
            has_survived = line.more in DEADLY and last.get(line.pid, -1) > at
            is_known = line.more in REFUSED and (line.phase, line.item) in refused
            if line.more in REFUSED:
                refused.add((line.phase, line.item))
            if not has_survived and not is_known:
                faults[line.more] += 1
        elif line.kind == "missed":
            faults[line.more] -= 1
    return +faults


assert set(BAD_ITEMS) <= set(ERROR_OF)
