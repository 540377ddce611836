"""The default policy: chunks as small as their overhead allows, by measured speed, and no slow tail."""

from dataclasses import dataclass
from math import ceil

from evenload.balance.lane import Lane
from evenload.errors import ConfigError

from .base import Ask, Copy, Hold, Take

__all__ = ["Measured"]


@dataclass(frozen=True, slots=True)
class Measured:
    """The smallest chunk whose overhead stays under ``eps`` of its time.

    Never more than half the device's fair share of what is left, nor ``growth`` times its last chunk.
    Near the end a slow device refuses what the others would finish sooner, and an idle one runs a copy of the
    chunk with the most time to go.

    copies     most duplicates of one item; 0 switches them off
    keep_free  devices that copies must leave alone, so that an item that hangs cannot take them all
    """

    eps: float = 0.02
    growth: float = 2.0
    copies: int = 2
    keep_free: int = 1
    guard: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.eps < 1:
            raise ConfigError(f"eps={self.eps} is not between 0 and 1", hint="use 0.02 for 2 % overhead")
        if not self.growth > 1:
            raise ConfigError(f"growth={self.growth} would never grow a chunk", hint="use 2")
        if self.copies < 0 or self.keep_free < 0:
            raise ConfigError(f"copies={self.copies}, keep_free={self.keep_free} must be zero or more")

    def init(self) -> None:
        return None

    def step(self, state: None, ask: Ask) -> tuple[None, Take | Copy | Hold]:
        if not ask.n_ready:
            return state, self._copy(ask)
        if ask.lane.rate is None:
            return state, Take(1, "probe: nothing measured here yet")
        return state, self._refuse(ask) or self._chunk(ask)

    def _chunk(self, ask: Ask) -> Take:
        cost = ask.lane.estimate.cost
        assert cost is not None
        floor = cost.launch_s * cost.rate / self.eps
        share = cost.rate / sum(lane.rate or cost.rate for lane in ask.lanes)
        left = ask.work_left if ask.work_left is not None else ask.n_ready * ask.item_work
        half = left * share / 2 if ask.work_left is not None else left * share
        grown = self.growth * ask.lane.last_n * ask.item_work
        work, why = min(
            (floor, "smallest with little overhead"), (half, "half its share"), (grown, "growing")
        )
        return Take(max(1, ceil(work / ask.item_work)), why, work=work)

    def _refuse(self, ask: Ask) -> Hold | None:
        if not self.guard or ask.work_left is None:
            return None
        others = [lane for lane in ask.lanes if lane is not ask.lane and lane.rate and _helps(lane, ask)]
        speed = sum(lane.rate or 0.0 for lane in others)
        if not speed:
            return None
        mine = ask.item_work / (ask.lane.rate or 1.0)
        if (ask.work_left + 0.5 * len(ask.lanes) * ask.item_work) / speed >= mine:
            return None
        return Hold("tail: the others finish everything sooner", until=ask.now + max(0.5 * mine, 1e-3))

    def _copy(self, ask: Ask) -> Copy | Hold:
        rate = ask.lane.rate
        if not self.copies or not ask.may_repeat or rate is None or ask.n_in_flight == 0:
            return Hold("no item is ready")
        best, longest = None, 0.0
        until = float("inf")
        for lane in ask.lanes:
            if lane is ask.lane:
                continue
            for flight in lane.flights.values():
                if flight.is_struck or flight.is_copied or flight.duplicate:
                    continue
                mine = ask.lane.launch_s + flight.work / rate
                left = lane.busy_s_left(ask.now)
                if mine < left and left > longest:
                    best, longest = flight, left
                elif mine >= left:
                    until = min(until, flight.began_s + 2.0 * mine + 1e-3)
        if best is not None:
            return Copy(best, f"copy of chunk {best.chunk}: {longest:.3g} s to go on {best.device}")
        return Hold("no item is ready", until if until < float("inf") else None)


def _helps(lane: Lane, ask: Ask) -> bool:
    """Can ``lane`` be counted on? Not if it is overdue, or was offered this very work and refused."""
    if lane.is_busy:
        cost = lane.estimate.cost
        return cost is not None and all(
            ask.now - flight.began_s <= 3.0 * cost.seconds(flight.work) for flight in lane.flights.values()
        )
    return lane.is_up and lane.held_version != ask.version
