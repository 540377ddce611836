"""The default policy: chunks as small as their overhead allows, by measured speed, and no slow tail."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf

from evenload.balance.policy.base import Ask, Copy, Hold, Take
from evenload.balance.policy.device_state import Lane
from evenload.balance.policy.helping import first_of_a_helper
from evenload.balance.policy.horizon import common_end, ends_first, helps, overdue_at, overdue_devices
from evenload.balance.policy.in_flight import Flight
from evenload.errors import ConfigError

__all__ = ["Measured"]

NO_ITEMS = "no item is ready"
REFUSE, REFUSE_WITH_COPIES = 1.5, 3.0
"""An item is refused if it would take this many times what the others need for all that is left."""
STALLED = 6.0
"""A device has stalled if what it runs has taken this many times as long as was to be expected."""
REFUSE_HELPING, REFUSE_HELPING_WITH_COPIES = 0.5, 1.0
"""The same for a helper, whose mistakes the fast devices would have to mend."""
WORTH_S, WORTH_LAUNCHES = 1.2, 4.0
"""A copy is made if the chunk needs more time still than this many times the copy, with so many launches."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The smallest chunk whose launch costs at most ``eps`` of its time.

    Never more than half of what the device would get of the work left if all were to end together, nor
    ``growth`` times its last chunk. Items of like cost (``Dealer(uniform=True)``) go in those halves
    themselves, so that a kernel is launched a handful of times. Items with size hints go longest first, a
    device getting the longest that it can finish within ``fit`` of the time left.

    Near the end a slow device refuses what the others would finish sooner, and an idle one runs again what
    would take longest: a copy, or its share of one if the others can help.

    Devices that are probably far slower (``Dealer(helpers=...)``) wait for the others to show their speed.
    One of them then tries an item, if the others have enough left to make up for it.

    doubt      how far rates may be wrong; whole shares are dealt once so much of the time left is
               below a launch
    tail       an overrunning chunk is expected to need this many times its present time more
    copies     most duplicates of one item; 0 switches them off
    keep_free  devices that copies must leave alone, so that an item that hangs cannot take them all

    Raises ConfigError on values that make no sense.
    """

    eps: float = 0.01
    growth: float = 4.0
    fit: float = 0.75
    doubt: float = 0.1
    tail: float = 1.0
    copies: int = 2
    keep_free: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.eps < 1:
            raise ConfigError(f"eps={self.eps} is not between 0 and 1", hint="use 0.01 for 1 % overhead")
        if not self.growth > 1:
            raise ConfigError(f"growth={self.growth} would never grow a chunk", hint="use 4")
        for name in ("fit", "doubt", "tail"):
            if not 0 < getattr(self, name) < inf:
                raise ConfigError(f"{name}={getattr(self, name)} is not above zero", hint="leave it out")
        if self.copies < 0 or self.keep_free < 0:
            raise ConfigError(f"copies={self.copies}, keep_free={self.keep_free}: one is below zero")

    def init(self) -> None:
        return None

    def step(self, state: None, ask: Ask) -> tuple[None, Take | Copy | Hold]:
        if not ask.n_ready:
            return state, self._copy(ask)
        if ask.lane.rate is None and ask.lane.is_helper:
            return state, first_of_a_helper(ask)
        if ask.lane.rate is None:
            return state, Take(1, "first item here: nothing is measured yet", at_most=ask.item_work)
        return state, self._rescue(ask) or self._refuse(ask) or self._chunk(ask)

    def _chunk(self, ask: Ask) -> Take:
        cost = ask.lane.estimate.cost
        assert cost is not None
        left = ask.n_ready * ask.item_work if ask.work_left is None else ask.work_left
        end_s = common_end(ask, ask.lanes, left)
        share = max(0.0, end_s - cost.launch_s) * cost.rate
        if ask.work_left is not None and end_s * self.doubt > cost.launch_s:
            share /= 2.0
        floor = cost.launch_s * cost.rate / self.eps
        if not ask.lane.estimate.knows_launch:  # chunks of 1 and 2 in turn tell it from the items
            floor = max(floor, (2.0 if ask.lane.last_n <= 1 else 1.0) * ask.item_work)
        last_n = ask.lane.last_n or inf  # none yet: it is dealt to by its history
        grown = self.growth * last_n * ask.item_work
        if share <= grown and (share <= floor or ask.is_uniform):
            work, why = share, f"half its share of {end_s:.3g} s left"
        elif floor <= grown and not ask.is_uniform:
            work, why = floor, f"launch of {cost.launch_s:.2g} s is {self.eps:.0%} of it"
        else:
            work, why = grown, f"{self.growth:g} times the last"
        at_most = self.fit * end_s * cost.rate
        if ask.longest is not None and ask.longest > at_most and ends_first(ask, ask.longest):
            at_most = ask.longest
        return Take(max(1, ceil(work / ask.item_work - 1e-9)), why, work, at_most)

    def _refuse(self, ask: Ask) -> Hold | None:
        """Leave it to the others if they would end everything long before this device ends one item."""
        cost, left = ask.lane.estimate.cost, ask.work_left
        if left is None or cost is None:
            return None
        others = [lane for lane in ask.lanes if lane is not ask.lane and lane.rate and helps(lane, ask)]
        speed = sum(lane.rate or 0.0 for lane in others)
        item = ask.item_work
        if ask.shortest is not None and ask.longest is not None:
            item = min(max(ask.shortest, self.fit * cost.rate * left / (speed + cost.rate)), ask.longest)
        mine = cost.launch_s + item / cost.rate
        if not speed or (left > mine * speed and not ask.lane.is_helper):
            return None
        # Rates are uncertain and an idle device is a sure loss: where a copy can mend it, rather take it.
        can_copy = ask.may_repeat and self.copies and len(ask.lanes) - 2 >= self.keep_free
        end_s = common_end(ask, others, left) + 0.5 * item / speed
        if ask.lane.is_helper:
            patience = REFUSE_HELPING_WITH_COPIES if can_copy else REFUSE_HELPING
        else:
            patience = REFUSE_WITH_COPIES if can_copy else REFUSE
        if end_s * patience >= mine:
            return None
        wake_s = min((overdue_at(lane) for lane in others if lane.is_busy), default=ask.now + 0.5 * mine)
        return Hold(f"the others end {mine - end_s:.3g} s sooner", max(wake_s, ask.now + 1e-3))

    def _rescue(self, ask: Ask) -> Copy | None:
        """Run again what a stalled device holds, begun while the rest still takes as long as that will.

        Only where size hints tell a stalled device from a large item.
        """
        rate, can_copy = ask.lane.rate, self.copies and ask.may_repeat
        if ask.longest is None or ask.work_left is None or rate is None or not can_copy:
            return None
        for lane, flight in self._candidates(ask):
            if flight.n_rounds or not self._is_stalled(ask, lane, flight):
                continue
            work = flight.n_uncopied * flight.work / len(flight)
            end_s = common_end(ask, ask.lanes, ask.work_left)
            if ask.lane.launch_s + work / rate >= end_s and ends_first(ask, work):
                why = f"{flight.device} has stalled; the rest needs {end_s:.3g} s"
                return Copy(flight, flight.n_uncopied, why)
        return None

    @staticmethod
    def _is_stalled(ask: Ask, lane: Lane, flight: Flight) -> bool:
        cost = lane.estimate.cost
        return cost is not None and ask.now - flight.began_s > STALLED * cost.seconds(flight.work)

    def _copy(self, ask: Ask) -> Copy | Hold:
        if ask.lane.rate is None and ask.lane.is_helper:
            return Hold(NO_ITEMS)
        # A device that came too late to be measured is taken for the slowest.
        rate = ask.lane.rate or min((lane.rate for lane in ask.lanes if lane.rate), default=None)
        if not self.copies or not ask.may_repeat or rate is None or not ask.n_in_flight:
            return Hold(NO_ITEMS)
        helpers = (lane for lane in ask.lanes if lane is not ask.lane and helps(lane, ask))
        speed = rate + sum(lane.rate or 0.0 for lane in helpers)
        best, most_left, wake_s = None, 0.0, inf
        for lane, flight in self._candidates(ask):
            left = self._seconds_left(ask, lane, flight)
            n = max(1, ceil(flight.n_uncopied * rate / speed - 1e-9))
            mine = WORTH_S * (WORTH_LAUNCHES * ask.lane.launch_s + n * flight.work / len(flight) / rate)
            if mine < left:
                if left > most_left:
                    best, most_left = Copy(flight, n, f"{flight.device} needs {left:.3g} s more"), left
            else:
                began_s = max([flight.began_s, *(copy.began_s for copy in flight.copies)])
                wake_s = min(wake_s, max(began_s + mine / self.tail, ask.now + 0.1 * mine) + 1e-3)
        return best or Hold(NO_ITEMS, wake_s if wake_s < inf else None)

    def _candidates(self, ask: Ask) -> Iterable[tuple[Lane, Flight]]:
        """Flights that may be run again here: not struck, copied too often, nor at the risk of taking all."""
        overdue = overdue_devices(ask)
        n_well = sum(1 for lane in ask.lanes if lane is not ask.lane and lane.device not in overdue)
        for lane in ask.lanes:
            if lane is ask.lane or (lane.device in overdue and n_well < self.keep_free):
                continue
            for flight in lane.flights.values():
                if flight.is_duplicate or flight.is_struck or not flight.n_open:
                    continue
                if flight.n_rounds >= self.copies or any(c.device == ask.lane.device for c in flight.copies):
                    continue
                if len(ask.lanes) - flight.n_rounds - 2 >= self.keep_free:
                    yield lane, flight

    def _seconds_left(self, ask: Ask, lane: Lane, flight: Flight) -> float:
        left = self._alone_left(ask, lane, flight)
        if flight.copies:
            lanes = {other.device: other for other in ask.lanes}
            copies = [copy for copy in flight.copies if copy.device in lanes]
            # Only a second round looks at them: in the first, the rest of the chunk has no copy yet.
            if flight.n_rounds and copies:
                left = min(left, max(self._alone_left(ask, lanes[copy.device], copy) for copy in copies))
        return left

    def _alone_left(self, ask: Ask, lane: Lane, flight: Flight) -> float:
        elapsed = max(0.0, ask.now - flight.began_s)
        cost = lane.estimate.cost
        if cost is not None:
            return max(cost.seconds(flight.work) - elapsed, self.tail * elapsed)
        # Its first chunk: slower than the slowest known, and than what it has taken so far.
        slowest = min((other.rate for other in ask.lanes if other.rate), default=inf)
        return max(flight.work / slowest - elapsed, elapsed)
