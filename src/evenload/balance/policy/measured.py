"""The default policy: chunks as small as their overhead allows, by measured speed, and copies at the end."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf

from evenload._plain_text import seconds_text
from evenload.balance.partition import common_finish
from evenload.balance.policy.base import Ask, Copy, Hold, Take
from evenload.balance.policy.device_state import OVERDUE, DeviceState
from evenload.balance.policy.estimate import Cost
from evenload.balance.policy.in_flight import ChunkInFlight
from evenload.errors import ConfigError

NO_ITEMS = "no item is ready"
REFUSE, REFUSE_WITH_COPIES = 1.5, 3.0
"""An item is refused if it would take this many times as long as the others need for all that is left."""
STALLED = 6.0
"""A device has stalled if what it runs has taken this many times as long as was to be expected."""
REFUSE_HELPING, REFUSE_HELPING_WITH_COPIES = 0.5, 1.0
"""The same for a helper, as the fast devices would have to run its items again."""
WORTH_S, WORTH_LAUNCHES = 1.2, 4.0
"""A copy is made if the chunk needs ``WORTH_S`` times as long as a copy with ``WORTH_LAUNCHES`` launches."""
UNMEASURED_S = 30.0
"""A chunk is copied after so long if no device has ended anything that would say how long is long."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A policy of the smallest chunks whose launch costs at most ``eps`` of their time.

    A chunk is at most half of the device's share of the work left, such that all end together, and at most
    ``growth`` times its last chunk. Items of like cost (``Dealer(uniform=True)``) go in those halves, so that
    a kernel is launched a few times only. Items with size hints go longest first: a device gets the longest
    that it can finish within ``fit`` of the time left.

    Near the end a slow device refuses items that the others would finish sooner, and an idle one runs a copy
    of the chunk that would take longest, or its share of one if others can help.

    Devices that are probably far slower (``Dealer(helpers=...)``) wait until the others are measured. One of
    them then tries an item, if the others have enough left to make up for it.

    doubt      how far rates may be wrong: whole shares are dealt once a launch is more than so much of the
               time left
    tail       a chunk that takes longer than estimated is expected to need this many times its time so far
    copies     most copies of one item; 0 switches them off
    keep_free  devices that copies must leave free, so that an item that hangs cannot take them all; the first
               copy of a chunk may take the last one when nothing is left to deal, as it can then cost nothing

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
        if ask.device.rate is None and ask.device.is_helper:
            return state, first_of_a_helper(ask)
        if ask.device.rate is None:
            return state, Take(1, "first item here: nothing is measured yet", at_most=ask.item_work)
        return state, self._rescue(ask) or self._refuse(ask) or self._chunk(ask)

    def _chunk(self, ask: Ask) -> Take:
        cost = ask.device.estimate.cost
        assert cost is not None
        left = ask.n_ready * ask.item_work if ask.work_left is None else ask.work_left
        end_s = common_end(ask, ask.devices, left)
        share = max(0.0, end_s - cost.launch_s) * cost.rate
        if ask.work_left is not None and end_s * self.doubt > cost.launch_s:
            share /= 2.0
        floor = cost.launch_s * cost.rate / self.eps
        if not ask.device.estimate.knows_launch:  # chunks of 1 and 2 in turn tell it from the items
            floor = max(floor, (2.0 if ask.device.last_n <= 1 else 1.0) * ask.item_work)
        last_n = ask.device.last_n or inf  # no chunk yet: the estimate is its history
        grown = self.growth * last_n * ask.item_work
        if share <= grown and (share <= floor or ask.is_uniform):
            work, why = share, f"half its share of {seconds_text(end_s)} left"
        elif floor <= grown and not ask.is_uniform:
            work, why = floor, f"launch of {seconds_text(cost.launch_s, 2)} is {self.eps:.0%} of it"
        else:
            work, why = grown, f"{self.growth:g} times the last"
        at_most = self.fit * end_s * cost.rate
        if ask.longest is not None and ask.longest > at_most and ends_first(ask, ask.longest):
            at_most = ask.longest
        return Take(max(1, ceil(work / ask.item_work - 1e-9)), why, work, at_most)

    def _refuse(self, ask: Ask) -> Hold | None:
        """Wait if the others would end everything long before this device ends one item."""
        cost, left = ask.device.estimate.cost, ask.work_left
        if left is None or cost is None:
            return None
        others = [device for device in _helping(ask) if device.rate]
        speed = sum(device.rate or 0.0 for device in others)
        item = ask.item_work
        if ask.shortest is not None and ask.longest is not None:
            item = min(max(ask.shortest, self.fit * cost.rate * left / (speed + cost.rate)), ask.longest)
        mine = cost.launch_s + item / cost.rate
        if not speed or (left > mine * speed and not ask.device.is_helper):
            return None
        # Rates are uncertain, an idle device is a certain loss: so take it sooner if a copy can help.
        can_copy = ask.may_repeat and self.copies and len(ask.devices) - 2 >= self.keep_free
        end_s = common_end(ask, others, left) + 0.5 * item / speed
        if ask.device.is_helper:
            patience = REFUSE_HELPING_WITH_COPIES if can_copy else REFUSE_HELPING
        else:
            patience = REFUSE_WITH_COPIES if can_copy else REFUSE
        if end_s * patience >= mine:
            return None
        wake_s = min(
            (overdue_at(device) for device in others if device.is_busy), default=ask.now + 0.5 * mine
        )
        return Hold(f"the others end {seconds_text(mine - end_s)} sooner", max(wake_s, ask.now + 1e-3))

    def _rescue(self, ask: Ask) -> Copy | None:
        """Copy the chunk of a stalled device, as late as it will still end with the rest.

        Needs size hints, which tell a stalled device from a large item.
        """
        rate, can_copy = ask.device.rate, self.copies and ask.may_repeat
        if ask.longest is None or ask.work_left is None or rate is None or not can_copy:
            return None
        for device, chunk in self._candidates(ask):
            if chunk.n_times_copied or not self._is_stalled(ask, device, chunk):
                continue
            work = chunk.n_uncopied * chunk.work / len(chunk)
            end_s = common_end(ask, ask.devices, ask.work_left)
            if ask.device.launch_s + work / rate >= end_s and ends_first(ask, work):
                why = f"{chunk.device} has stalled; the rest needs {seconds_text(end_s)}"
                return Copy(chunk, chunk.n_uncopied, why)
        return None

    @staticmethod
    def _is_stalled(ask: Ask, device: DeviceState, chunk: ChunkInFlight) -> bool:
        cost = device.estimate.cost
        return cost is not None and ask.now - chunk.began_s > STALLED * cost.seconds(chunk.work)

    def _copy(self, ask: Ask) -> Copy | Hold:
        """Copy the chunk that would take longest, if a copy would end sooner; else wait."""
        if ask.device.rate is None and ask.device.is_helper:
            return Hold(NO_ITEMS)
        # A device that came too late to be measured is assumed to be the slowest.
        rate = ask.device.rate or min((device.rate for device in ask.devices if device.rate), default=None)
        if not self.copies or not ask.may_repeat or not ask.n_in_flight:
            return Hold(NO_ITEMS)
        if rate is None:
            return self._copy_unmeasured(ask)
        speed = rate + sum(device.rate or 0.0 for device in _helping(ask))
        best, most_left, wake_s = None, 0.0, inf
        for device, chunk in self._candidates(ask):
            left = self._seconds_left(ask, device, chunk)
            n = max(1, ceil(chunk.n_uncopied * rate / speed - 1e-9))
            mine = WORTH_S * (WORTH_LAUNCHES * ask.device.launch_s + n * chunk.work / len(chunk) / rate)
            if mine < left:
                if left > most_left:
                    best, most_left = Copy(chunk, n, f"{chunk.device} needs {seconds_text(left)} more"), left
            else:
                began_s = max([chunk.began_s, *(copy.began_s for copy in chunk.copies)])
                wake_s = min(wake_s, max(began_s + mine / self.tail, ask.now + 0.1 * mine) + 1e-3)
        return best or Hold(NO_ITEMS, wake_s if wake_s < inf else None)

    def _copy_unmeasured(self, ask: Ask) -> Copy | Hold:
        """Copy what has run for very long while no device has ended anything; else wait."""
        chunk = min((chunk for _, chunk in self._candidates(ask)), key=lambda c: c.began_s, default=None)
        if chunk is None:
            return Hold(NO_ITEMS)
        elapsed_s = ask.now - chunk.began_s
        if elapsed_s < UNMEASURED_S:
            return Hold(NO_ITEMS, chunk.began_s + UNMEASURED_S + 1e-3)
        return Copy(
            chunk, chunk.n_uncopied, f"{chunk.device} has had nothing to show for {seconds_text(elapsed_s)}"
        )

    def _candidates(self, ask: Ask) -> Iterable[tuple[DeviceState, ChunkInFlight]]:
        """Chunks that may be copied here: not struck, not copied too often, and enough devices stay free."""
        overdue = overdue_devices(ask)
        n_well = sum(1 for device in ask.devices if device is not ask.device and device.name not in overdue)
        for device in ask.devices:
            if device is ask.device:
                continue
            is_risky = device.name in overdue and n_well < self.keep_free
            for chunk in device.chunks.values():
                if chunk.is_duplicate or chunk.is_struck or not chunk.n_unfinished:
                    continue
                if chunk.n_times_copied >= self.copies or any(
                    c.device == ask.device.name for c in chunk.copies
                ):
                    continue
                leaves_enough = len(ask.devices) - chunk.n_times_copied - 2 >= self.keep_free
                if (leaves_enough and not is_risky) or (ask.is_all_dealt and not chunk.n_times_copied):
                    yield device, chunk

    def _seconds_left(self, ask: Ask, device: DeviceState, chunk: ChunkInFlight) -> float:
        left = self._alone_left(ask, device, chunk)
        if chunk.copies:
            devices = {other.name: other for other in ask.devices}
            copies = [copy for copy in chunk.copies if copy.device in devices]
            # Not the first time: then the rest of the chunk has no copy yet.
            if chunk.n_times_copied and copies:
                left = min(left, max(self._alone_left(ask, devices[copy.device], copy) for copy in copies))
        return left

    def _alone_left(self, ask: Ask, device: DeviceState, chunk: ChunkInFlight) -> float:
        elapsed = max(0.0, ask.now - chunk.began_s)
        cost = device.estimate.cost
        if cost is not None:
            return max(cost.seconds(chunk.work) - elapsed, self.tail * elapsed)
        # The device's first chunk: assume the slowest known rate, and twice the time so far at least.
        slowest = min((other.rate for other in ask.devices if other.rate), default=inf)
        return max(chunk.work / slowest - elapsed, elapsed)


def _helping(ask: Ask) -> list[DeviceState]:
    """The other devices that can be counted on."""
    return [device for device in ask.devices if device is not ask.device and helps(device, ask)]


TRY_ITEMS, TRY_ITEMS_ONCE = 16.0, 64.0
"""A helper tries an item if each of the others has so many left. The second: if no item may run twice."""


def first_of_a_helper(ask: Ask) -> Take | Hold:
    """Let one helper try an item while enough is left.

    Its speed is unknown, so a fast device may have to run the item again, or the run may have to wait for it.
    """
    fast = [device for device in ask.devices if not device.is_helper]
    rates = [device.rate for device in fast if device.rate]
    if fast and not rates:
        return Hold("the fast devices have not shown their speed yet")
    trying = next((device for device in ask.devices if device.is_helper and device.chunks), None)
    if trying is not None:
        return Hold(f"{trying.name} tries first")
    left = inf if ask.work_left is None else ask.work_left
    n_rounds = left / ask.item_work / len(rates) if rates else inf
    if n_rounds < (TRY_ITEMS if ask.may_repeat else TRY_ITEMS_ONCE):
        return Hold("too little is left to try how fast it is")
    return Take(1, "first item of a slow device", at_most=ask.item_work)


def common_end(ask: Ask, devices: Iterable[DeviceState], work: float) -> float:
    """Seconds from now at which ``devices`` would all end if they shared ``work`` freely (water-filling).

    Each starts after the chunks that it runs and a launch. Overdue devices get nothing. A device without a
    result counts by its prior, in proportion to those that have one, and launches no sooner than the one that
    asks: if it could take work for nothing, there would be none left that is worth a launch here.
    """
    speeds = ask.speeds()
    starts: list[tuple[float, float]] = []
    for device in devices:
        cost = device.estimate.cost
        rate = speeds[device.name]
        if not rate:
            continue
        cost = cost or Cost(ask.device.launch_s, 1.0 / rate)
        start = cost.launch_s
        if device is not ask.device:
            if device.is_overdue(ask.now):
                continue
            start += free_in(device, ask.now, cost)
        starts.append((start, rate))
    return common_finish(work, starts)


def overdue_devices(ask: Ask) -> set[str]:
    """Devices that run a chunk, or a copy of one, that is overdue: they may be lost to an item that hangs."""
    overdue: set[str] = set()
    for device in ask.devices:
        cost = device.estimate.cost
        for chunk in device.chunks.values():
            if cost is None or ask.now - chunk.began_s > OVERDUE * cost.seconds(chunk.work):
                # Shorter copies are left out: at most one of them holds the item that hangs.
                family = chunk.family or (chunk,)
                overdue.update(other.device for other in family if len(other) >= len(chunk))
    return overdue


def ends_first(ask: Ask, item: float) -> bool:
    """Whether no device would end an item of this size sooner, if each began it as soon as it is free."""

    def end_s(device: DeviceState) -> float:
        cost = device.estimate.cost
        return inf if cost is None else free_in(device, ask.now, cost) + cost.seconds(item)

    mine = end_s(ask.device)
    return all(
        mine <= end_s(device)
        for device in ask.devices
        if device is not ask.device
        and device.refused_version != ask.version
        and not device.is_overdue(ask.now)
    )


def free_in(device: DeviceState, now: float, cost: Cost) -> float:
    """Seconds until the device has ended the chunks that it runs, by ``cost``."""
    return sum(max(0.0, cost.seconds(chunk.work) - (now - chunk.began_s)) for chunk in device.chunks.values())


def helps(device: DeviceState, ask: Ask) -> bool:
    """Whether ``device`` can be counted on: neither overdue, nor idle because it refused this same work."""
    if device.chunks:
        return not device.is_overdue(ask.now)
    return device.is_up and device.refused_version != ask.version


def overdue_at(device: DeviceState) -> float:
    """When the first of the chunks that ``device`` runs will be overdue."""
    cost = device.estimate.cost
    if cost is None:
        return inf
    return min(chunk.began_s + OVERDUE * cost.seconds(chunk.work) for chunk in device.chunks.values())
