"""Who runs what next: the pure core that the executor's scheduler and the simulator both drive.

    add / close ──► Dealer.next(device, now) ──► Deal ──► done | failed | lost ──► ...
                                             └─► Wait

No clock, no I/O: ``now`` is an argument, in seconds of any origin. Every index that was added is dealt at
least once and reported by ``done`` exactly once (unless it is forgotten), in whatever order things happen.
A decision costs O(devices).
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evenload.errors import ConfigError, UnknownName

from .backlog import Backlog, Item
from .deal import Deal, Decision, Wait
from .estimate import Cost, Estimate
from .lane import Flight, Lane
from .migrate import LoadBalancer, Move, QueueLoad
from .policy import Ask, Copy, Hold, Policy, Static, Take, policy_from_name
from .queues import Queues

__all__ = ["Counters", "Dealer"]


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
    repeatable  False: an item is never dealt twice on purpose
    max_chunk   most items per chunk, for all devices or by device
    balancer    moves queued items between devices on ``tick``; only with ``Static``
    Raises ConfigError on doubled device names or a ceiling below 1, UnknownName on an unknown policy.
    """

    def __init__(
        self,
        policy: Policy | str,
        devices: Sequence[str],
        *,
        priors: Mapping[str, float] | None = None,
        history: Mapping[str, Cost] | None = None,
        repeatable: bool = True,
        max_chunk: Mapping[str, int] | int | None = None,
        balancer: LoadBalancer | None = None,
        log_size: int = 10_000,
    ):
        if len(set(devices)) != len(devices):
            raise ConfigError(f"a device is listed twice: {', '.join(devices)}", hint="name each device once")
        self.repeatable = repeatable
        self.counters = Counters()
        self.decisions: deque[Decision] = deque(maxlen=log_size)
        self._lanes: dict[str, Lane] = {}
        for device in devices:
            ceiling = max_chunk.get(device) if isinstance(max_chunk, Mapping) else max_chunk
            estimate = Estimate((history or {}).get(device))
            self._lanes[device] = Lane(device, (priors or {}).get(device, 1.0), estimate, _checked(ceiling))
        self._backlog = Backlog()
        self._flights: dict[int, Flight] = {}
        self._adrift: set[int] = set()  # given up by ``lost``, not yet requeued or forgotten
        self._settled: dict[int, int] = {}  # finished or forgotten, but still in this many flights
        self._struck: set[int] = set()
        self._sizes: dict[int, float] = {}  # hints of items in flight
        self._total: int | None = None
        self._is_closed = False
        self._n_open = 0
        self._hints = (0, 0.0)  # how many, their sum
        self._version = 0
        self._next_chunk = 0
        self._queues: Queues | None = None
        self._balancer = balancer
        self._balance = balancer.init() if balancer else None
        self.policy = policy_from_name(policy)
        self._state = self.policy.init()

    # --- items ------------------------------------------------------------------------------------

    def add(self, index: int, cost: float | None = None) -> None:
        """An item may be dealt from now on; ``cost`` is its size in any unit, the same for all."""
        if cost is not None:
            if not 0 <= cost < float("inf"):
                raise ConfigError(f"size hint {cost} of item {index} is not a finite number of at least 0")
            n, total = self._hints
            if n == 0:
                self._rescale(cost)
            self._hints = (n + 1, total + cost)
        self._backlog.add(index, cost)
        self._count_added(1)

    def add_range(self, start: int, n: int) -> None:
        """Items ``start`` .. ``start + n - 1``, without size hints, in O(1)."""
        self._backlog.add_range(start, n)
        self._count_added(n)

    def expect(self, total: int) -> None:
        """There will be ``total`` items in all, though not all are here yet."""
        self._total = total
        self._version += 1

    def close(self) -> None:
        """No more items will come."""
        self._is_closed = True
        self._total = self.counters.n_added
        self._version += 1

    def forget(self, indices: Iterable[int]) -> None:
        """These are finished otherwise (cancelled, quarantined): never deal or report them again."""
        gone = set(indices)
        n_gone = len(gone & self._adrift)
        self._adrift -= gone
        for backlog in (self._backlog, *(self._queues.values() if self._queues else ())):
            n_gone += len(backlog.remove(gone))
        for index in gone:
            n_flights = self._n_flights(index)
            if n_flights and index not in self._settled:
                self._settled[index] = n_flights
                n_gone += 1
        self._n_open -= n_gone
        self.counters.n_forgotten += n_gone
        self._version += 1

    def strike(self, index: int) -> None:
        """This item killed or hung a worker: never run two of it at once."""
        self._struck.add(index)
        for flight in self._flights.values():
            flight.is_struck = flight.is_struck or index in flight.indices

    def requeue(self, indices: Iterable[int], *, alone: bool = False, avoid: str | None = None) -> None:
        """Deal those of these again that ``lost`` gave up; the others are finished or still run.

        ``alone``: in a chunk of its own each; ``avoid``: not on this device while there is another.
        """
        for index in indices:
            if index in self._adrift:
                self._adrift.discard(index)
                self._put_back(index, alone, avoid)
        self._version += 1

    # --- results ----------------------------------------------------------------------------------

    def done(self, chunk: int, now: float, busy_s: float | None = None) -> Sequence[int]:
        """The chunk came back; returns the indices that it finished first, in its order.

        ``busy_s``: seconds inside the user's function; the rest of the elapsed time is taken as launch cost.
        A chunk that is not in flight (its worker was given up) finishes nothing: its answer must be dropped.
        """
        flight = self._land(chunk)
        if flight is None:
            return ()
        lane = self._lanes[flight.device]
        lane.last_n, lane.last_end_s = len(flight), now
        if flight.work > 0:
            lane.estimate.observe(flight.work, max(0.0, now - flight.began_s), busy_s)
        first = self._settle(flight)
        self._n_open -= len(first)
        self.counters.n_done += len(first)
        if flight.duplicate and first:
            self.counters.n_duplicates_won += 1
        return first

    def failed(
        self, chunk: int, now: float, redo: Iterable[int], alone: bool = False, avoid: str | None = None
    ) -> None:
        """The chunk ended without results. ``redo`` of its items are dealt again, the rest are forgotten."""
        flight = self._land(chunk)
        if flight is None:
            return
        self._lanes[flight.device].last_end_s = now
        again = set(redo)
        self._release(flight)
        self.requeue([index for index in flight.indices if index in again], alone=alone, avoid=avoid)
        self.forget(index for index in flight.indices if index not in again)

    def lost(self, device: str, now: float) -> tuple[Deal, ...]:
        """The device's worker died. Its chunks are given up and returned: requeue or forget their items."""
        lane = self._lane(device)
        lane.is_up, lane.last_end_s = False, now
        flights = [self._land(chunk) for chunk in list(lane.flights)]
        for flight in flights:
            assert flight is not None
            self._release(flight)
        return tuple(Deal(f.chunk, device, f.indices, "lost", f.duplicate) for f in flights if f)

    # --- devices ----------------------------------------------------------------------------------

    def join(self, device: str, now: float, prior: float = 1.0) -> None:
        """A device comes, or comes back."""
        lane = self._lanes.get(device)
        if lane is None:
            self._lanes[device] = Lane(device, prior)
        else:
            lane.is_here, lane.is_up, lane.prior = True, False, prior
        if self._queues is not None:
            self._queues.join(device, prior)
        self._version += 1

    def leave(self, device: str, now: float) -> None:
        """The device takes no more work. Its queue goes to others; what it runs may still come."""
        lane = self._lane(device)
        lane.is_here = lane.is_up = False
        if self._queues is not None and device in self._queues:
            for entry in self._queues.leave(device).drain():
                if isinstance(entry, range):
                    self._backlog.add_range(entry.start, len(entry))
                else:
                    self._backlog.put_back(entry)
        self._version += 1

    def set_ceiling(self, device: str, n: int | None) -> None:
        """At most ``n`` items per chunk on this device from now on."""
        self._lane(device).ceiling = _checked(n)
        self._version += 1

    def set_policy(self, policy: Policy | str, now: float) -> None:
        """Change the policy; what was measured stays, what runs goes on."""
        self.policy = policy_from_name(policy)
        self._state = self.policy.init()
        if self._queues is not None:
            queues, self._queues = self._queues, None
            for queue in queues.values():
                for entry in queue.drain():
                    if isinstance(entry, range):
                        self._backlog.add_range(entry.start, len(entry))
                    else:
                        self._backlog.put_back(entry)
        self._version += 1

    # --- decisions --------------------------------------------------------------------------------

    def next(self, device: str, now: float) -> Deal | Wait:
        """What should ``device``, which is free, do now? Raises UnknownName on a device that never joined."""
        lane = self._lane(device)
        if self.is_finished:
            return Wait("all done")
        if not lane.is_here:
            return Wait("it has left")
        lane.is_up = True
        if isinstance(self.policy, Static):
            self._assign(self.policy.partition)
        ask = self._ask(lane, now)
        self._state, answer = self.policy.step(self._state, ask)
        if isinstance(answer, Hold) and ask.n_ready and self._must_take(lane):
            answer = Take(1, "nothing else runs")
        if isinstance(answer, Take):
            return self._deal(lane, now, answer)
        if isinstance(answer, Copy):
            return self._duplicate(lane, now, answer)
        lane.held_version = self._version
        self._log(now, device, "wait", 0, answer.why)
        return Wait(answer.why, answer.until)

    def tick(self, now: float) -> tuple[Move, ...]:
        """Let the balancer move queued items between devices; nothing without one."""
        if self._balancer is None or self._balance is None or self._queues is None:
            return ()
        loads = {
            lane.device: QueueLoad(
                sum(map(len, lane.flights.values())),
                self._queues[lane.device].n,
                lane.estimate.cost.per_item_s if lane.estimate.cost else None,
            )
            for lane in self._here()
        }
        self._balance, moves = self._balancer.step(self._balance, now, loads)
        for move in moves:
            n_moved = self._queues.move(move.source, move.target, move.n_items)
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
        return self._n_here() + max(0, self._total - self.counters.n_added)

    @property
    def n_in_flight(self) -> int:
        """Chunks that run now."""
        return len(self._flights)

    @property
    def is_finished(self) -> bool:
        """Closed, and every item is done or forgotten. Duplicates that still run are not needed."""
        return self._is_closed and self._n_open == 0

    def cost(self, device: str) -> Cost | None:
        """What ``device`` is measured (or remembered) to need; per average item with size hints."""
        cost = self._lane(device).estimate.cost
        return cost and Cost(cost.launch_s, cost.per_item_s * self._item_work)

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _item_work(self) -> float:
        n, total = self._hints
        return total / n if n and total > 0 else 1.0

    def _lane(self, device: str) -> Lane:
        try:
            return self._lanes[device]
        except KeyError:
            raise UnknownName("device", device, self._lanes) from None

    def _here(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.is_here]

    def _n_here(self) -> int:
        return self._backlog.n + (self._queues.n if self._queues else 0)

    def _count_added(self, n: int) -> None:
        self.counters.n_added += n
        self._n_open += n
        self._version += 1

    def _rescale(self, unit: float) -> None:
        """The first size hint: what was one item of work so far is ``unit`` of work from now on."""
        for lane in self._lanes.values():
            lane.estimate.rescale(unit or 1.0)

    def _ask(self, lane: Lane, now: float) -> Ask:
        store = self._backlog if self._queues is None else self._queues[lane.device]
        lanes = self._here()
        n_ready = store.n
        if store.has_returned and len(lanes) > 1:
            n_ready = store.n_for(lane.device)
        left = self.remaining
        item_work = self._item_work
        work = None if left is None else store.sized_work + (left - store.n_sized) * item_work
        return Ask(
            lane,
            lanes,
            now,
            n_ready,
            left,
            work,
            item_work,
            store.longest(),
            self.repeatable,
            self._version,
            len(self._flights),
        )

    def _must_take(self, lane: Lane) -> bool:
        """True if nothing runs and nobody else who is up would take what this lane refuses."""
        if self._flights:
            return False
        if lane.held_version == self._version:
            return True
        return all(
            other.held_version == self._version for other in self._here() if other is not lane and other.is_up
        )

    def _deal(self, lane: Lane, now: float, take: Take) -> Deal:
        store = self._backlog if self._queues is None else self._queues[lane.device]
        n = take.n if lane.ceiling is None else min(take.n, lane.ceiling)
        indices: range | tuple[int, ...]
        work = 0.0
        others = sum(1 for other in self._lanes.values() if other.is_here) > 1
        items = store.take_returned(n, lane.device, others) if store.has_returned else []
        if items:
            indices = tuple(item.index for item in items)
            for item in items:
                if item.cost is not None:
                    self._sizes[item.index] = item.cost
                work += self._item_work if item.cost is None else item.cost
        elif store.n_sized:
            sized = store.take_longest(n, take.work, take.at_most)
            indices = tuple(index for index, _ in sized)
            self._sizes.update(sized)
            work = sum(cost for _, cost in sized)
        else:
            indices = store.take_first(n)
            work = len(indices) * self._item_work
        return self._launch(lane, now, indices, work, take.why, duplicate=False)

    def _duplicate(self, lane: Lane, now: float, copy: Copy) -> Deal:
        flight = copy.flight
        todo = tuple(index for index in flight.indices if index not in self._settled)
        flight.is_copied = True
        self.counters.n_duplicates += 1
        work = flight.work * len(todo) / len(flight)
        indices = flight.indices if len(todo) == len(flight) else todo
        return self._launch(lane, now, indices, work, copy.why, duplicate=True)

    def _launch(
        self, lane: Lane, now: float, indices: range | tuple[int, ...], work: float, why: str, duplicate: bool
    ) -> Deal:
        if (
            isinstance(indices, tuple)
            and indices
            and indices == tuple(range(indices[0], indices[0] + len(indices)))
        ):
            indices = range(indices[0], indices[0] + len(indices))
        chunk = self._next_chunk
        self._next_chunk += 1
        flight = Flight(chunk, lane.device, indices, work, max(now, lane.last_end_s), duplicate)
        flight.is_struck = bool(self._struck) and any(index in self._struck for index in indices)
        self._flights[chunk] = lane.flights[chunk] = flight
        self._version += 1
        self.counters.n_chunks += 1
        self._log(now, lane.device, "copy" if duplicate else "deal", len(indices), why)
        return Deal(chunk, lane.device, indices, why, duplicate)

    def _land(self, chunk: int) -> Flight | None:
        flight = self._flights.pop(chunk, None)
        if flight is not None:
            del self._lanes[flight.device].flights[chunk]
            self._version += 1
        return flight

    def _settle(self, flight: Flight) -> Sequence[int]:
        """Mark the items of a landed flight finished; those that nobody had finished before."""
        if not self._settled and not flight.is_copied and not flight.duplicate:
            self._drop_sizes(flight.indices)
            return flight.indices
        first = [index for index in flight.indices if not self._was_settled(index)]
        for index in first:
            n_flights = self._n_flights(index)
            if n_flights:
                self._settled[index] = n_flights
        self._drop_sizes(first)
        return tuple(first)

    def _was_settled(self, index: int) -> bool:
        """Was it finished already? Counts this landing."""
        n_flights = self._settled.get(index)
        if n_flights is None:
            return False
        if n_flights == 1:
            del self._settled[index]
        else:
            self._settled[index] = n_flights - 1
        return True

    def _release(self, flight: Flight) -> None:
        """Set the items of a landed flight adrift, but for those that are finished or still run elsewhere."""
        for index in flight.indices:
            if not self._was_settled(index) and not self._n_flights(index):
                self._adrift.add(index)

    def _n_flights(self, index: int) -> int:
        return sum(1 for flight in self._flights.values() if index in flight.indices)

    def _put_back(self, index: int, alone: bool, avoid: str | None) -> None:
        self._backlog.put_back(Item(index, self._sizes.pop(index, None), alone, avoid))
        self.counters.n_returned += 1

    def _drop_sizes(self, indices: Iterable[int]) -> None:
        if self._sizes:
            for index in indices:
                self._sizes.pop(index, None)

    def _assign(self, partition: str | tuple[int, ...]) -> None:
        if self._queues is None:
            priors = {lane.device: lane.prior for lane in self._here()}
            self._queues = Queues(partition, priors, self.remaining)
        if self._backlog.n:
            self._queues.assign(self._backlog)

    def _log(self, now: float, device: str, kind: str, n_items: int, why: str) -> None:
        self.decisions.append(Decision(now, device, kind, n_items, why))


def _checked(ceiling: int | None) -> int | None:
    if ceiling is not None and ceiling < 1:
        raise ConfigError(
            f"a chunk of at most {ceiling} items is refused", hint="allow at least 1 item per chunk"
        )
    return ceiling
