"""Who runs what next: the pure core that the executor's scheduler and the simulator both drive.

    add / close ──► Dealer.next(device, now) ──► Deal ──► done | failed | lost ──► ...
                                             └─► Wait

No clock, no I/O: ``now`` is an argument, in seconds of any origin. Every index that was added is dealt at
least once and reported by ``done`` exactly once (unless it is forgotten), in whatever order things happen.
A decision costs O(devices).
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from evenload.balance.dealing.deal import Deal, Decision, Wait
from evenload.balance.dealing.item_pool import Stock
from evenload.balance.migrate import LoadBalancer, Move, QueueLoad
from evenload.balance.policy import Ask, Copy, Hold, Policy, Pull, Static, Take, policy_from_name
from evenload.balance.policy.device_state import Lane
from evenload.balance.policy.estimate import Cost, Estimate
from evenload.balance.policy.in_flight import Flight, Flights, Indices
from evenload.errors import ConfigError, UnknownName

__all__ = ["Counters", "Dealer"]

Avoid = str | Collection[str] | None


@dataclass(slots=True)
class Counters:
    """What a dealer has done so far."""

    n_added: int = 0
    n_done: int = 0
    n_forgotten: int = 0
    n_chunks: int = 0
    n_duplicates: int = 0
    n_duplicates_won: int = 0
    n_returned: int = 0
    n_moved: int = 0


class Dealer:
    """Deals items to devices as a policy says.

    policy      a policy or its name
    devices     ids, in the order that decides ties
    priors      device -> relative speed before anything is measured (a score); equal if left out
    history     device -> Cost of earlier runs, trusted until this run has measured
    is_hearsay  the history is of other programs: chunks grow from small ones, as without it
    repeatable  False: an item is never dealt twice on purpose
    uniform     all items cost about the same and a chunk is run as a whole (slices of an array)
    max_chunk   most items per chunk, for all devices or by device
    helpers     devices that are probably much slower than the others, such as CPU slots beside GPUs
    balancer    moves queued items between devices on ``tick``; only with ``Static``
    log_size    how many of the latest decisions ``decisions`` keeps

    Raises ConfigError on doubled device names, a prior below 0, a ceiling below 1 or a partition that does
    not fit the devices, UnknownName on an unknown policy.
    """

    def __init__(
        self,
        policy: Policy | str,
        devices: Sequence[str],
        *,
        priors: Mapping[str, float] | None = None,
        history: Mapping[str, Cost] | None = None,
        is_hearsay: bool = False,
        repeatable: bool = True,
        uniform: bool = False,
        max_chunk: Mapping[str, int] | int | None = None,
        helpers: Collection[str] = (),
        balancer: LoadBalancer | None = None,
        log_size: int = 10_000,
    ):
        if len(set(devices)) != len(devices):
            raise ConfigError(f"a device is listed twice: {', '.join(devices)}", hint="name each device once")
        self.repeatable = repeatable
        self.uniform = uniform
        self.counters = Counters()
        self.decisions: deque[Decision] = deque(maxlen=log_size)
        self._lanes: dict[str, Lane] = {}
        for device in devices:
            ceiling = max_chunk.get(device) if isinstance(max_chunk, Mapping) else max_chunk
            estimate = Estimate((history or {}).get(device), whole=uniform)
            prior = _checked_prior(device, (priors or {}).get(device, 1.0))
            lane = Lane(device, prior, estimate, _checked(ceiling), is_helper=device in helpers)
            lane.last_n = int(is_hearsay and estimate.cost is not None)
            self._lanes[device] = lane
        self._stock = Stock()
        self._flights = Flights()
        self._total: int | None = None
        self._is_closed = False
        self._n_open = 0
        self._version = 0
        self._balancer = balancer
        self._balance = balancer.init() if balancer else None
        self.set_policy(policy, 0.0)

    # --- items ------------------------------------------------------------------------------------

    def add(self, index: int, cost: float | None = None) -> None:
        """An item may be dealt from now on; ``cost`` is its size in any unit, the same for all."""
        if cost is None:
            self.add_range(index, 1)
            return
        if not 0 <= cost <= 1e100:
            raise ConfigError(f"size hint {cost} of item {index} is not a number from 0 to 1e100")
        self._stock.add(index, cost)
        self._count_added(1)

    def add_range(self, start: int, n: int) -> None:
        """Items ``start`` .. ``start + n - 1``, without size hints, in O(1)."""
        self._stock.add_range(start, n)
        self._count_added(n)

    def expect(self, total: int) -> None:
        """There will be ``total`` items in all, though not all are here yet.

        Raises ConfigError if a ``Static`` partition by counts is of another number of items.
        """
        partition = self.policy.partition if isinstance(self.policy, Static) else None
        if isinstance(partition, tuple) and sum(partition) != total and not self.counters.n_chunks:
            raise ConfigError(
                f"partition {partition} is of {sum(partition)} items, but there are {total}",
                hint="let the counts add up to the number of items",
            )
        self._total = total
        self._version += 1

    def close(self) -> None:
        """No more items will come. Raises ConfigError as ``expect`` does."""
        self.expect(self.counters.n_added)
        self._is_closed = True

    def forget(self, indices: Iterable[int]) -> None:
        """These are finished otherwise (cancelled, quarantined): never deal or report them again."""
        gone = indices if isinstance(indices, range) else frozenset(indices)
        if not gone:
            return
        n_gone = self._flights.forget(gone) + self._stock.remove(gone)
        self._n_open -= n_gone
        self.counters.n_forgotten += n_gone
        self._version += 1

    def strike(self, index: int) -> None:
        """This item killed or hung a worker: never run two of it at once."""
        self._flights.strike(index)

    def requeue(self, indices: Iterable[int], *, alone: bool = False, avoid: Avoid = None) -> None:
        """Deal those of these again that ``lost`` gave up; the others are finished or still run.

        ``alone``: in a chunk of its own each; ``avoid``: not on this device (these) while there is another.
        """
        kept_from = frozenset((avoid,) if isinstance(avoid, str) else avoid or ())
        self.counters.n_returned += self._stock.put_back(self._flights.recover(indices), alone, kept_from)
        self._version += 1

    # --- results ----------------------------------------------------------------------------------

    def done(self, chunk: int, now: float, busy_s: float | None = None) -> Indices:
        """The chunk came back; returns the indices that it finished first, in its order.

        ``busy_s``: seconds inside the user's function; the rest of the elapsed time is taken as launch cost.
        A chunk that is not in flight (its worker was given up) finishes nothing: its answer must be dropped.
        """
        flight = self._land(chunk, now)
        if flight is None:
            return ()
        lane = self._lanes[flight.device]
        lane.last_n = len(flight)
        if 1e-9 < flight.work < 1e12:  # outside, a size hint means nothing
            lane.estimate.observe(flight.work, max(0.0, now - flight.began_s), busy_s)
        is_duplicate = flight.is_duplicate
        first = self._flights.settle(flight)
        self._stock.finish(first)
        self._n_open -= len(first)
        self.counters.n_done += len(first)
        self.counters.n_duplicates_won += is_duplicate and bool(first)
        return first

    def failed(
        self,
        chunk: int,
        now: float,
        redo: Iterable[int],
        alone: bool = False,
        avoid: Avoid = None,
        later: Collection[int] = (),
    ) -> None:
        """The chunk ended without results. ``redo`` of its items are dealt again, the rest are forgotten.

        ``later``: these wait for a ``requeue``.
        """
        flight = self._land(chunk, now)
        if flight is None:
            return
        again = set(redo)
        self._flights.release(flight)
        self.requeue([index for index in flight.indices if index in again], alone=alone, avoid=avoid)
        self.forget(index for index in flight.indices if index not in again and index not in later)

    def lost(self, device: str, now: float) -> tuple[Deal, ...]:
        """The device's worker died. Its chunks are given up and returned: requeue or forget their items."""
        lane = self._lane(device)
        lane.is_up = False
        deals = []
        for flight in list(lane.flights.values()):
            deals.append(Deal(flight.chunk, device, flight.indices, "lost", flight.is_duplicate))
            self._land(flight.chunk, now)
            self._flights.release(flight)
        self._version += 1
        return tuple(deals)

    # --- devices ----------------------------------------------------------------------------------

    def join(self, device: str, now: float, prior: float = 1.0, is_helper: bool = False) -> None:
        """A device comes, or comes back. Raises ConfigError on a prior below 0."""
        lane = self._lanes.get(device)
        prior = _checked_prior(device, prior)
        if lane is None:
            self._lanes[device] = Lane(device, prior, Estimate(whole=self.uniform), is_helper=is_helper)
        else:
            lane.is_here, lane.is_up, lane.prior, lane.is_helper = True, False, prior, is_helper
        if self._stock.queues is not None:
            self._stock.queues.join(device, prior)
        self._version += 1

    def leave(self, device: str, now: float) -> None:
        """The device takes no more work. Its queue goes to others; what it runs may still come."""
        lane = self._lane(device)
        lane.is_here = lane.is_up = False
        self._stock.leave(device)
        self._version += 1

    def set_ceiling(self, device: str, n: int | None) -> None:
        """At most ``n`` items per chunk on this device from now on."""
        self._lane(device).ceiling = _checked(n)
        self._version += 1

    def set_policy(self, policy: Policy | str, now: float) -> None:
        """Change the policy; what was measured stays, what runs goes on.

        Raises UnknownName on an unknown name, ConfigError on a partition that does not fit the devices.
        """
        policy = policy_from_name(policy)
        counts = policy.partition if isinstance(policy, Static) else ""
        if isinstance(counts, tuple) and len(counts) != len(self._here()):
            raise ConfigError(
                f"partition {counts} has {len(counts)} counts for {len(self._here())} devices",
                hint="give one count per device",
            )
        self.policy = policy
        self._state = policy.init()
        self._stock.unassign()
        self._version += 1

    # --- decisions --------------------------------------------------------------------------------

    def next(self, device: str, now: float, bundle: int = 1, most: int | None = None) -> Deal | Wait:
        """What should ``device``, which is free, do now? Raises UnknownName on a device that never joined.

        ``bundle``: chunks of a fixed size are so short that up to so many should travel as one.
        ``most``: items in this chunk, because they are large.
        A ``Wait`` without ``until`` ends with the next change: a result, an item, a device that comes or
        goes.
        """
        lane = self._lane(device)
        if self.is_finished:
            return Wait("all done")
        if not lane.is_here:
            return Wait("it has left")
        lane.is_up = True
        if lane.is_helper and lane.rate is None:
            lane.estimate = self._as_a_like_one(lane)
        if isinstance(self.policy, Static):
            priors = {other.device: other.prior for other in self._here()}
            self._stock.assign(self.policy.partition, priors, self.remaining)
        ask = self._ask(lane, now)
        self._state, answer = self.policy.step(self._state, ask)
        if isinstance(answer, Hold) and ask.n_ready and self._must_take(lane):
            answer = Take(1, "nothing else runs")
        if isinstance(answer, Hold):
            lane.held_version = self._version
            self.decisions.append(Decision(now, device, "wait", 0, answer.why))
            return Wait(answer.why, answer.until)
        if isinstance(answer, Copy):
            flight = self._flights.copy(answer.flight, answer.n, device, self._begin(lane, now))
            self.counters.n_duplicates += 1
        else:
            if bundle > 1 and isinstance(self.policy, Pull):
                fair = ask.n_ready // (2 * len(ask.lanes))
                answer = Take(max(answer.n, min(answer.n * bundle, fair)), answer.why)
            flight = self._take(lane, now, answer, most)
        lane.flights[flight.chunk] = flight
        self._version += 1
        self.counters.n_chunks += 1
        kind = "copy" if flight.is_duplicate else "deal"
        self.decisions.append(Decision(now, device, kind, len(flight), answer.why))
        return Deal(flight.chunk, device, flight.indices, answer.why, flight.is_duplicate)

    def devices_here(self) -> list[str]:
        """Those that have come and not left."""
        return [lane.device for lane in self._here()]

    def fastest_first(self, devices: Iterable[str]) -> list[str]:
        """``devices`` in the order in which to ask for them: a fast one should not find its work taken."""
        rank = {device: place for place, device in enumerate(self._lanes)}

        def key(device: str) -> tuple[float, float, int]:
            lane = self._lane(device)
            return -(lane.rate or 0.0), -lane.prior, rank[device]

        return sorted(devices, key=key)

    def set_balancing(self, on: bool) -> None:
        """Switch the balancer on or off; what it counted and its interval go on. Nothing without one."""
        if self._balance is not None:
            self._balance = self._balance.switched(on)

    def tick(self, now: float) -> tuple[Move, ...]:
        """Let the balancer move queued items between devices; nothing without one."""
        queues = self._stock.queues
        if self._balancer is None or self._balance is None or queues is None:
            return ()
        loads = {}
        for lane in self._here():
            running, cost = sum(map(len, lane.flights.values())), self.cost(lane.device)
            item_s = None if cost is None else cost.launch_s + cost.per_item_s
            loads[lane.device] = QueueLoad(running, queues[lane.device].n, item_s)
        self._balance, moves = self._balancer.step(self._balance, now, loads)
        for move in moves:
            n_moved = queues.move(move.source, move.target, move.n_items)
            self._balance = self._balance.report(done=n_moved, failed=move.n_items - n_moved)
            self.counters.n_moved += n_moved
            self._version += 1
        return moves

    # --- what is known ----------------------------------------------------------------------------

    @property
    def remaining(self) -> int | None:
        """Items not dealt yet, those still to come included; None if their number is not known."""
        if self._total is None:
            return None
        return self._stock.n + max(0, self._total - self.counters.n_added)

    def queued(self) -> dict[str, int]:
        """Items in each device's own queue; empty where all take from one stock."""
        queues = self._stock.queues
        return {} if queues is None else {lane.device: queues[lane.device].n for lane in self._here()}

    @property
    def n_in_flight(self) -> int:
        """Chunks that run now."""
        return len(self._flights)

    @property
    def is_finished(self) -> bool:
        """Closed, and every item is done or forgotten. Duplicates that still run are not needed."""
        return self._is_closed and self._n_open == 0

    def n_measured(self, device: str) -> int:
        """Chunks whose time this run has measured on ``device``."""
        return self._lane(device).estimate.n_samples

    def cost(self, device: str) -> Cost | None:
        """What ``device`` is measured (or remembered) to need; per average item with size hints."""
        cost = self._lane(device).estimate.cost
        return cost and Cost(cost.launch_s, cost.per_item_s * self._stock.item_work)

    # --- inside -----------------------------------------------------------------------------------

    def _lane(self, device: str) -> Lane:
        try:
            return self._lanes[device]
        except KeyError:
            raise UnknownName("device", device, self._lanes) from None

    def _here(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.is_here]

    def _count_added(self, n: int) -> None:
        assert not self._is_closed, "items added after close()"
        self.counters.n_added += n
        self._n_open += n
        self._version += 1

    def _ask(self, lane: Lane, now: float) -> Ask:
        lanes, left = self._here(), self.remaining
        shortest, longest = self._stock.extremes(lane.device) or (None, None)
        return Ask(
            lane=lane,
            lanes=lanes,
            now=now,
            n_ready=self._stock.n_ready(lane.device, self.devices_here),
            n_left=left,
            work_left=None if left is None else self._stock.work_left(lane.device, left),
            item_work=self._stock.item_work,
            shortest=shortest,
            longest=longest,
            may_repeat=self.repeatable,
            is_uniform=self.uniform,
            version=self._version,
            n_in_flight=len(self._flights),
        )

    def _as_a_like_one(self, lane: Lane) -> Estimate:
        """What another helper has found out holds for ``lane`` until it knows better."""
        known = (other.estimate.cost for other in self._here() if other.is_helper)
        return Estimate(next((cost for cost in known if cost is not None), None), whole=self.uniform)

    def _must_take(self, lane: Lane) -> bool:
        """True if nothing runs and nobody else who is up would take what this lane refuses."""
        if len(self._flights) or (lane.is_helper and not all(other.is_helper for other in self._here())):
            return False
        if lane.held_version == self._version:
            return True
        others = (other for other in self._here() if other is not lane and other.is_up)
        return all(other.held_version == self._version for other in others)

    def _take(self, lane: Lane, now: float, take: Take, most: int | None) -> Flight:
        n = take.n if lane.ceiling is None else min(take.n, lane.ceiling)
        n = n if most is None else min(n, most)
        indices, work = self._stock.take(lane.device, n, take.work, take.at_most, self.devices_here)
        return self._flights.launch(lane.device, indices, work, self._begin(lane, now))

    def _begin(self, lane: Lane, now: float) -> float:
        """When a chunk dealt at ``now`` can begin: not before the one that the device still runs."""
        return max(now, lane.last_end_s)

    def _land(self, chunk: int, now: float) -> Flight | None:
        flight = self._flights.land(chunk)
        if flight is not None:
            lane = self._lanes[flight.device]
            del lane.flights[chunk]
            lane.last_end_s = now
            for waiting in lane.flights.values():
                waiting.began_s = max(waiting.began_s, now)
            self._version += 1
        return flight


def _checked(ceiling: int | None) -> int | None:
    if ceiling is not None and ceiling < 1:
        raise ConfigError(f"a chunk of at most {ceiling} items is refused", hint="allow at least 1 per chunk")
    return ceiling


def _checked_prior(device: str, prior: float) -> float:
    if not (prior >= 0 and isfinite(prior)):
        raise ConfigError(f"prior {prior} of {device} is not a finite number of at least 0")
    return prior
