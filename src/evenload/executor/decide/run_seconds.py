"""What each device's seconds of one run went into, summed up as they pass: no event is needed for it.

The sums are those that ``report.losses`` makes of a run's events, for a run of one stage with one worker on a
device; a test compares the two.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenload.balance.bound import Bound
from evenload.balance.factors import (
    UNKNOWN,
    Factors,
    StageOfFactors,
    TrackOfFactors,
    factors_of,
    kind_of_idle,
    least_seconds,
    like_of,
    unknown_seconds,
)

STAGE = "run"  # the only one


@dataclass(slots=True)
class _DeviceSeconds:
    """The sums of one device, and where it is.

    ready_s  it first asked for work
    rest     since when it has none, and why
    sent_s   since when it has a chunk
    gone_s   since when it has no worker, once it had one
    """

    ready_s: float | None = None
    stop_s: float = -math.inf
    n_items: int = 0
    useful_s: float = 0.0
    waited_s: float = 0.0  # of the useful ones, as the items told
    unknown_s: float = 0.0  # of the useful ones, if all that the device has is a processor
    repeats_s: float = 0.0
    startup_s: float = 0.0
    waiting_s: float = 0.0
    balance_s: float = 0.0
    rest: tuple[float, str] | None = None
    sent_s: float | None = None
    gone_s: float | None = None


class RunSeconds:
    """The seconds of a run by device: tell it what happens, then ask for ``factors``.

    All times are of one clock.
    """

    def __init__(self) -> None:
        self._devices: dict[str, _DeviceSeconds] = {}
        self._first_s, self._last_s = math.inf, -math.inf  # work of the run
        self._last_useful_s = -math.inf  # the last chunk that was needed began

    def asked(self, device: str, now: float, why: str = "") -> None:
        """``device`` is free: it gets a chunk now, or rests for the reason ``why``."""
        one = self._devices.get(device)
        if one is None:
            one = self._devices[device] = _DeviceSeconds(ready_s=now)
        elif one.ready_s is None:
            one.ready_s = now
        if one.gone_s is not None:
            one.startup_s += now - one.gone_s
            one.gone_s = None
        if why:
            one.rest = one.rest or (now, why)
            return
        one.sent_s = now
        if one.rest is not None:
            self._end_rest(one, now, now)

    def worked(
        self, device: str, start_s: float, stop_s: float, busy_s: float, needed: float, n_items: int = 0,
        waited_s: float = 0.0, cpu_s: float | None = None,
    ) -> None:  # fmt: skip
        """A chunk came back that was ``busy_s`` inside the task; see ``events.Span``.

        The share ``needed`` of it counts, with ``n_items`` items.
        """
        one = self._devices.get(device)
        if one is None:
            one = self._devices[device] = _DeviceSeconds(ready_s=start_s)
        one.useful_s += busy_s * needed
        one.waited_s += waited_s * needed
        one.unknown_s += unknown_seconds(busy_s, waited_s, cpu_s) * needed
        one.n_items += n_items
        one.repeats_s += busy_s * (1.0 - needed)
        one.stop_s, one.sent_s = stop_s, None
        self._first_s = min(self._first_s, start_s)
        self._last_s = max(self._last_s, stop_s)
        if needed > 0:
            self._last_useful_s = max(self._last_useful_s, start_s)

    def lost(self, device: str, dealt_s: float, now: float, *, worker_died: bool = False) -> float:
        """A chunk has no results that count, or its worker died with it. Returns when it can have begun."""
        one = self._devices.get(device)
        since_s = dealt_s if one is None else max(dealt_s, one.stop_s)
        self.worked(device, since_s, max(since_s, now), max(0.0, now - since_s), 0.0)
        if worker_died:
            self._devices[device].gone_s = now
        return since_s

    def elsewhere(self, device: str, seconds: float) -> None:
        """``device`` worked for another run meanwhile."""
        one = self._devices.get(device)
        if one is not None and one.rest is None:
            one.waiting_s += seconds

    def factors(
        self,
        began_s: float,
        end_s: float,
        bound: Bound,
        devices: Mapping[str, Mapping[str, Any]],
        work: Mapping[str, float],
    ) -> Factors | None:
        """The factors of the run; None if nothing useful was done.

        bound    as it was measured
        devices  what is known of each: name, kind, flop_per_s, bytes_per_s
        work     what an item needs; empty if not known
        """
        tracks, least = {}, {}
        for device in {**devices, **self._devices}:
            known = devices.get(device, {})
            useful, lost = self._seconds(device, began_s, end_s)
            inside = self._inside(device, useful, known) if useful else {}
            tracks[device] = TrackOfFactors({STAGE: useful} if useful else {}, lost, like_of(known), inside)
            item_s = least_seconds(work, known)
            if item_s is not None and device in self._devices:
                least[device] = item_s * self._devices[device].n_items
        stage = StageOfFactors(bound.speeds, bound.longest_s, least_s=least)
        return factors_of(end_s - began_s, tracks, {STAGE: stage})

    def _inside(self, device: str, useful_s: float, known: Mapping[str, Any]) -> dict[tuple[str, str], float]:
        """Useful seconds that waited, and, on a processor, those that are not known."""
        one = self._devices[device]
        found = {"waiting": one.waited_s, UNKNOWN: one.unknown_s if known.get("kind") == "cpu" else 0.0}
        return {(kind, STAGE): s * useful_s / one.useful_s for kind, s in found.items() if s > 0}

    def _seconds(self, device: str, began_s: float, end_s: float) -> tuple[float, dict[str, float]]:
        """Useful seconds and lost ones by kind, which sum to those of the run."""
        wall_s = end_s - began_s
        one = self._devices.get(device)
        if one is None or one.ready_s is None:  # it never had a worker that could run the task
            startup_s = min(max(0.0, self._first_s - began_s), wall_s)
            return 0.0, {"start-up": startup_s, "balance": wall_s - startup_s}
        if one.rest is not None:
            self._end_rest(one, end_s, max(self._last_useful_s, one.rest[0]))
        elif one.sent_s is not None:  # a copy that nobody needs any more
            one.repeats_s += max(0.0, end_s - max(one.sent_s, one.stop_s))
        elif one.gone_s is not None:
            one.startup_s += end_s - one.gone_s
        else:
            one.balance_s += max(0.0, min(self._last_s, end_s) - max(one.stop_s, one.ready_s))
        one.gone_s = one.sent_s = None
        lost = {
            "start-up": max(0.0, one.ready_s - began_s) + one.startup_s,
            "balance": one.balance_s,
            "waiting": one.waiting_s,
            "repeats": one.repeats_s,
        }
        known_s = one.useful_s + sum(lost.values())
        lost["overhead"] = max(0.0, wall_s - known_s)
        scale = wall_s / (known_s + lost["overhead"]) if known_s + lost["overhead"] > 0 else 0.0
        return one.useful_s * scale, {name: seconds * scale for name, seconds in lost.items()}

    @staticmethod
    def _end_rest(one: _DeviceSeconds, now: float, waited_until_s: float) -> None:
        """A rest ends; from ``waited_until_s`` on there was nothing left that anybody could have got."""
        assert one.rest is not None
        since_s, why = one.rest
        since_s, one.rest = max(since_s, one.stop_s), None
        waited_s = 0.0
        if kind_of_idle(why) == "waiting":
            waited_s = min(max(0.0, waited_until_s - since_s), max(0.0, now - since_s))
        one.waiting_s += waited_s
        one.balance_s += max(0.0, now - since_s - waited_s)
