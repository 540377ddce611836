"""What each worker's seconds went into: every second of a run counted once, in memory that does not grow.

    spans, idle stretches, starts ──► TrackSeconds, one for each worker slot ──► seconds(), the whole run's

A second belongs to the first event that says what it was. What no event speaks of is told by where it is:
before the first work, between chunks, between stages, after the last work.
"""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Any

from evenload.balance.factors import KINDS, RESULTS_WAIT, UNKNOWN, kind_of_idle

MOST_CAUSES = 64  # of one worker slot; more are put together
OTHERS = "other reasons"
INSIDE = "inside of items of "  # where they wait, or nobody knows what they do


def add_lost(lost: dict[tuple[str, str], float], factor: str, cause: str, seconds: float) -> None:
    """Count ``seconds`` that a factor took for one cause, a short phrase such as ``loading encode``."""
    if seconds > 0:
        key = factor, cause
        if key not in lost and len(lost) >= MOST_CAUSES:
            key = factor, OTHERS
        lost[key] = lost.get(key, 0.0) + seconds


MOST_GAPS = 512


class FreeTime:
    """The free stretches of the time from 0 on: ``take`` makes a stretch busy and says what of it was free.

    Beyond ``MOST_GAPS`` free stretches, the shorter half of them is given up: they count as taken, and their
    seconds are added to ``short_s``.
    """

    __slots__ = ("_starts", "_stops", "short_s")

    def __init__(self) -> None:
        self._starts, self._stops = [0.0], [math.inf]
        self.short_s = 0.0

    def copy(self) -> "FreeTime":
        """Return the same free stretches, to be taken apart."""
        new = FreeTime()
        new._starts, new._stops, new.short_s = self._starts[:], self._stops[:], self.short_s
        return new

    def take(self, start_s: float, stop_s: float) -> float:
        """Take the time between the two; returns the seconds of it that were free.

        What is before 0 does not count; nothing is taken if a time is not finite.
        """
        start_s = max(0.0, start_s)
        if not (start_s < stop_s < math.inf):
            return 0.0
        first = bisect_right(self._stops, start_s)
        last = bisect_left(self._starts, stop_s)
        if first >= last:
            return 0.0
        taken_s, left = 0.0, []
        for a, b in zip(self._starts[first:last], self._stops[first:last], strict=True):
            taken_s += min(b, stop_s) - max(a, start_s)
            left += [one for one in ((a, start_s), (stop_s, b)) if one[0] < one[1]]
        self._starts[first:last] = [a for a, _ in left]
        self._stops[first:last] = [b for _, b in left]
        if len(self._starts) > MOST_GAPS:
            self._give_up_short_ones()
        return taken_s

    def before(self, t: float) -> float:
        """The start of the free stretch that ends at or holds ``t``; ``t`` itself if there is none."""
        at = bisect_left(self._stops, t)
        return min(t, self._starts[at]) if at < len(self._starts) else t

    def gaps(self, start_s: float, stop_s: float) -> list[tuple[float, float]]:
        """The free stretches between two times, in order, cut to them."""
        first, last = bisect_right(self._stops, start_s), bisect_left(self._starts, stop_s)
        both = zip(self._starts[first:last], self._stops[first:last], strict=True)
        return [(max(a, start_s), min(b, stop_s)) for a, b in both]

    def free_s(self, start_s: float, stop_s: float) -> float:
        """Free seconds between two times."""
        return sum(b - a for a, b in self.gaps(start_s, stop_s))

    def _give_up_short_ones(self) -> None:
        rows = sorted(zip(self._starts, self._stops, strict=True), key=lambda row: row[1] - row[0])
        half = len(rows) // 2
        self.short_s += sum(b - a for a, b in rows[:half])
        kept = sorted(rows[half:])
        self._starts, self._stops = [a for a, _ in kept], [b for _, b in kept]


@dataclass(slots=True)
class RunTimes:
    """The times of a run at which work and stages began and ended."""

    first_work_s: float = math.inf
    last_work_s: float = 0.0
    last_deal_s: float = 0.0  # the last chunk that was needed began; from then on nobody waits for items
    _open: dict[str, float] = field(default_factory=dict)
    _has_stages: bool = False
    _outside: FreeTime = field(default_factory=FreeTime)

    def work(self, start_s: float, stop_s: float, *, is_useful: bool) -> None:
        """Take note of a chunk."""
        if start_s <= stop_s < math.inf and stop_s >= 0:
            self.first_work_s = min(self.first_work_s, max(0.0, start_s))
            self.last_work_s = max(self.last_work_s, stop_s)
            self.last_deal_s = max(self.last_deal_s, start_s) if is_useful else self.last_deal_s

    def stage_started(self, stage: str, t: float) -> None:
        self._has_stages = True
        self._open.setdefault(stage, t)

    def stage_finished(self, stage: str, t: float) -> None:
        self._outside.take(self._open.pop(stage, t), t)

    def began_s(self, stage: str) -> float:
        """When ``stage``, which goes on, began; 0 if nobody said."""
        return self._open.get(stage, 0.0)

    def outside_s(self, start_s: float, stop_s: float) -> float:
        """Seconds between two times in which no stage was going on; 0 in a run that names no stages."""
        stop_s = min([stop_s, *self._open.values()])
        return self._outside.free_s(start_s, stop_s) if self._has_stages and start_s < stop_s else 0.0


NOTHING_LEFT, BETWEEN, AFTER = "with nothing left to do", "between chunks", "after the last item"
STARTING, BUILDING = "starting processes", "building the task"
MOST_HELD = 64
UNFETCHED = "for the program to fetch results"
REPEATS = {"superseded": "in copies that came second", "lost": "in work of lost workers"}
LOADS = {"loads ": "loading ", "brings ": "bringing "}


class TrackSeconds:
    """The seconds of one worker slot by what they went into.

    useful_s  stage -> seconds inside the task whose results counted
    inside_s  (waiting | not known, stage) -> seconds, of these
    lost_s    (start-up | balance | waiting | overhead | repeats, cause) -> seconds
    n_spans   chunks that ran here
    """

    __slots__ = ("_firsts", "_free", "_held", "inside_s", "lost_s", "n_spans", "useful_s")

    def __init__(self) -> None:
        self.useful_s: dict[str, float] = {}
        self.inside_s: dict[tuple[str, str], float] = {}
        self.lost_s: dict[tuple[str, str], float] = {}
        self.n_spans = 0
        self._free = FreeTime()
        self._held: list[tuple[float, float]] = []  # without items; whether any came is not known yet
        self._firsts: dict[str, tuple[float, float]] = {}  # stage -> its first chunk began, and it itself

    def span(
        self,
        stage: str,
        start_s: float,
        stop_s: float,
        busy_s: float,
        useful: float,
        began_s: float,
        status: str = "ok",
        waited_s: float = 0.0,
        unknown_s: float = 0.0,
    ) -> None:
        """A chunk with ``busy_s`` seconds inside the task, of which the share ``useful`` counts.

        began_s   when its stage began
        waited_s  of ``busy_s``, those in which the items told that they wait, and unknown_s: not known
        """
        if not 0 <= busy_s < math.inf:
            return
        if stage not in self._firsts or start_s < self._firsts[stage][0]:
            self._firsts[stage] = start_s, began_s
        length_s = stop_s - max(0.0, start_s)
        taken_s = self._free.take(start_s, stop_s)
        self.n_spans += 1
        in_task_s = taken_s * min(1.0, busy_s / length_s) if taken_s > 0 else 0.0
        add_lost(self.lost_s, "overhead", f"in messages and copies of {stage}", taken_s - in_task_s)
        add_lost(
            self.lost_s, "repeats", REPEATS.get(status, "in items done before"), in_task_s * (1.0 - useful)
        )
        if useful > 0:
            self.useful_s[stage] = self.useful_s.get(stage, 0.0) + in_task_s * useful
            for kind, seconds in (("waiting", waited_s), (UNKNOWN, unknown_s)):
                if seconds > 0:
                    inside_s = in_task_s * useful * seconds / busy_s
                    self.inside_s[kind, stage] = self.inside_s.get((kind, stage), 0.0) + inside_s
            waited = [min(b, start_s) - a for a, b in self._held if a < start_s]
            self._held = [(max(a, start_s), b) for a, b in self._held if b > start_s]  # it may be told late
            add_lost(self.lost_s, "waiting", f"for items of {stage}", math.fsum(waited))

    def idle(self, start_s: float, stop_s: float, why: str) -> None:
        """A stretch without work, and the reason given for it."""
        kind, free = kind_of_idle(why), self._free.gaps(max(0.0, start_s), stop_s)
        taken_s = self._free.take(start_s, stop_s)
        if why.startswith(RESULTS_WAIT):
            add_lost(self.lost_s, kind, UNFETCHED, taken_s)
        elif kind == "waiting" and taken_s > 0:
            self._held += free
            while len(self._held) > MOST_HELD:  # the first two are as one that ends with the second
                (a, b), (c, d) = self._held[:2]
                self._held[:2] = [(c - (b - a), d)]
        else:
            begin = next((one for one in LOADS if why.startswith(one)), "")
            add_lost(self.lost_s, kind, LOADS.get(begin, "") + why.removeprefix(begin), taken_s)

    def startup(self, start_s: float, stop_s: float, build_s: float = 0.0) -> None:
        """A start of the slot's worker, which built its task in the last ``build_s`` seconds."""
        ready_s = max(start_s, stop_s - build_s)
        add_lost(self.lost_s, "start-up", STARTING, self._free.take(start_s, ready_s))
        add_lost(self.lost_s, "start-up", BUILDING, self._free.take(ready_s, stop_s))

    def seconds(
        self, wall_s: float, times: RunTimes, *, is_over: bool
    ) -> tuple[
        dict[str, float], dict[str, float], dict[tuple[str, str], float], dict[tuple[str, str], float]
    ]:
        """Useful seconds by stage and lost ones by kind, which sum to ``wall_s``; the lost ones by cause; and
        of the useful ones those that waited, or are not known, by stage.

        Where a run goes on (``is_over`` False), nobody knows what a worker has done since its last event: its
        other seconds stand for these.
        """
        found = dict(self.lost_s)
        for start_s, stop_s in self._held:  # once the last chunk has begun, nobody waits for items
            waited_s = max(0.0, min(stop_s, times.last_deal_s) - start_s)
            add_lost(found, "waiting", "for items", waited_s)
            add_lost(found, "balance", NOTHING_LEFT, stop_s - start_s - waited_s)
        add_lost(found, "overhead", BETWEEN, self._free.short_s)
        gaps = self._without_loads(found).gaps(0.0, wall_s)
        begin_s, end_s = (1 if gaps and gaps[0][0] <= 0 else 0), max(0, len(gaps) - 1)
        between = gaps[begin_s:end_s]
        if (
            between
            and between[-1][1] <= times.last_work_s
            and not times.outside_s(between[0][0], between[-1][1])
        ):
            add_lost(
                found, "overhead", BETWEEN, math.fsum(b - a for a, b in between)
            )  # no more can be said of them
            gaps = gaps[:begin_s] + gaps[end_s:]
        for start_s, stop_s in gaps:
            is_last = stop_s >= wall_s
            if is_last and not is_over and start_s > 0:
                continue
            for kind, cause, seconds in self._silent(start_s, stop_s, is_last, times):
                add_lost(found, kind, cause, seconds)
        lost = dict.fromkeys(KINDS, 0.0)
        for (kind, _), seconds in found.items():
            lost[kind] += seconds
        known_s = sum(self.useful_s.values()) + sum(lost.values())
        scale = wall_s / known_s if known_s > 0 else 0.0

        def scaled(rows: dict[Any, float]) -> dict[Any, float]:
            if scale == math.inf:  # next to nothing is known
                return {one: s / known_s * wall_s for one, s in rows.items()}
            return {one: s * scale for one, s in rows.items()}

        for (kind, stage), seconds in self.inside_s.items():
            add_lost(found, kind, f"{INSIDE}{stage}", seconds)
        return scaled(self.useful_s), scaled(lost), scaled(found), scaled(self.inside_s)

    def _without_loads(self, found: dict[tuple[str, str], float]) -> FreeTime:
        """Return the time that no event speaks of, less what is before later stages' first chunks: loads."""
        free = self._free.copy()
        for stage, (start_s, began_s) in sorted(self._firsts.items(), key=lambda row: row[1])[1:]:
            loaded_s = free.take(max(began_s, free.before(start_s)), start_s)
            add_lost(found, "start-up", f"before the first item of {stage}", loaded_s)
        return free

    def _silent(
        self, start_s: float, stop_s: float, is_last: bool, times: RunTimes
    ) -> list[tuple[str, str, float]]:
        """What a stretch that no event speaks of was, by where it is; seconds sum to its length."""
        first_s = min(max(times.first_work_s, start_s), stop_s) if start_s <= 0 else start_s
        end_s = min(max(times.last_work_s, first_s), stop_s)
        rows = [("start-up", "before the first item", first_s - start_s), ("overhead", AFTER, stop_s - end_s)]
        between_s = end_s - first_s
        if is_last:
            return [*rows, ("balance", NOTHING_LEFT, between_s)]
        if start_s <= 0:
            return [*rows, ("waiting", "for its first item", between_s)]
        outside_s = times.outside_s(first_s, end_s)
        return [*rows, ("waiting", "between stages", outside_s), ("overhead", BETWEEN, between_s - outside_s)]
