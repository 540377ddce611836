"""``Dealer``: decides which items a free device runs next, for the scheduler and the simulator.

    add / close ──► Dealer.next(device, now) ──► Deal ──► done | failed | lost ──► ...
                                             └─► Wait

It has no clock and does no I/O: ``now`` is in seconds of any origin. Every index that was added is dealt at
least once and reported by ``done`` once, or forgotten, in any order of events; in O(devices) a decision.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from evenload.balance.dealing.item_pool import ItemPool
from evenload.balance.dealing.learned_sizes import LearnedSizes
from evenload.balance.migrate import LoadBalancer, Move, QueueLoad
from evenload.balance.policy import Ask, Copy, Hold, Policy, Pull, Static, Take, policy_from_name
from evenload.balance.policy.base import checked
from evenload.balance.policy.device_state import DeviceState, DeviceStates
from evenload.balance.policy.estimate import Cost
from evenload.balance.policy.in_flight import ChunkInFlight, ChunksInFlight, Indices
from evenload.balance.sizes.size_learner import SizeLearner
from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Deal:
    """Items that a device should run now. ``indices`` is a ``range`` whenever they are consecutive.

    ``duplicate``: whether the items already run elsewhere; the first result counts.
    """

    chunk: int
    device: str
    indices: range | tuple[int, ...]
    why: str
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """No items for a device now: ask again when anything changes, or at ``until`` (clock of ``now``)."""

    why: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """An entry of the log of decisions. ``kind``: deal | copy | wait; ``n_items`` is 0 for a wait."""

    now: float
    device: str
    kind: str
    n_items: int
    why: str


@dataclass(slots=True)
class Counters:
    """Counts of what a dealer has done so far."""

    n_added: int = 0
    n_done: int = 0
    n_forgotten: int = 0
    n_chunks: int = 0
    n_duplicates: int = 0
    n_moved: int = 0


__all__ = ["Dealer"]

Avoid = str | Collection[str] | None


class Dealer:
    """The items and devices of a run, and the policy by which items are dealt to devices.

    policy      a policy or its name
    devices     names, in the order that decides ties
    priors      device -> relative speed before anything is measured (a score); equal by default
    history     device -> Cost in earlier runs, used until this run has measured its own
    is_hearsay  whether the history is of other programs: chunks then start small, as without one
    repeatable  False: an item is never dealt twice on purpose
    uniform     whether all items cost about the same and a chunk runs as a whole (slices of an array)
    max_chunk   most items per chunk, for all devices or by device
    helpers     devices that are probably much slower than the others, such as CPU slots beside GPUs
    balancer    moves queued items between devices on ``tick``; only with ``Static``
    learner     learns the sizes of items without hints, which ``sizes`` is told about
    log_size    how many of the latest decisions ``decisions`` keeps

    Raises ConfigError if a device is listed twice, a prior is below 0, a ceiling is below 1 or a partition
    does not fit the devices; UnknownName on an unknown policy.
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
        learner: SizeLearner | None = None,
    ):
        self.repeatable = repeatable
        self.uniform = uniform
        self.counters = Counters()
        self.decisions: deque[Decision] = deque(maxlen=log_size)
        self._devices = DeviceStates(devices, priors or {}, history or {}, set(helpers), is_uniform=uniform)
        for device in devices:
            state = self._devices[device]
            state.last_n = int(is_hearsay and state.estimate.cost is not None)
            ceiling = max_chunk.get(device) if isinstance(max_chunk, Mapping) else max_chunk
            self._devices.set_ceiling(device, ceiling)
        self._pool = ItemPool()
        self._chunks = ChunksInFlight()
        self.sizes = LearnedSizes(learner, self._pool, self._chunks, self._devices) if learner else None
        self._total: int | None = None
        self._is_closed = False
        self._n_unfinished = 0
        self._version = 0
        self._partition: str | Mapping[str, int] = ""
        self._balancer, self._balance = balancer, None if balancer is None else balancer.init()
        self.set_policy(policy, 0.0)

    # --- items ------------------------------------------------------------------------------------

    def add(self, index: int, cost: float | None = None) -> None:
        """Add an item; ``cost`` is its size hint, in any unit, the same for all."""
        if cost is None:
            self.add_range(index, 1)
            return
        if not 0 <= cost <= 1e100:
            raise ConfigError(f"size hint {cost} of item {index} is not a number from 0 to 1e100")
        self._pool.add(index, cost)
        self._count_added(1)

    def add_range(self, start: int, n: int) -> None:
        """Add items ``start`` to ``start + n - 1``, without size hints, in O(1)."""
        self._pool.add_range(start, n)
        self._count_added(n)

    def expect(self, total: int) -> None:
        """Say that there will be ``total`` items in all, though not all were added yet.

        Raises ConfigError if a ``Static`` partition by counts is of another number of items.
        """
        if isinstance(self.policy, Static) and not self.counters.n_chunks:
            self.policy.check_items(total)
        self._total = total
        self._version += 1

    def close(self) -> None:
        """Say that no more items will be added. Raises ConfigError as ``expect`` does."""
        self.expect(self.counters.n_added)
        self._is_closed = True

    def forget(self, indices: Iterable[int]) -> None:
        """Never deal or report these again: they are finished otherwise (cancelled, quarantined)."""
        gone = indices if isinstance(indices, range) else frozenset(indices)
        if not gone:
            return
        n_gone = self._chunks.forget(gone) + self._pool.remove(gone)
        self._n_unfinished -= n_gone
        self.counters.n_forgotten += n_gone
        self._version += 1

    def strike(self, index: int) -> None:
        """Never run two of this item at once: it killed or hung a worker."""
        self._chunks.strike(index)

    def requeue(self, indices: Iterable[int], *, alone: bool = False, avoid: Avoid = None) -> None:
        """Deal those of ``indices`` again that ``lost`` gave up; the others are finished or still run.

        alone  each in a chunk of its own
        avoid  not on this device, or these, while there is another
        """
        kept_from = frozenset((avoid,) if isinstance(avoid, str) else avoid or ())
        given_up = self._chunks.take_given_up(indices)
        self._pool.put_back(given_up, alone, kept_from)
        self._version += 1

    # --- results ----------------------------------------------------------------------------------

    def done(self, chunk: int, now: float, busy_s: float | None = None) -> Indices:
        """Take a chunk's results; returns the indices that it finished first, in its order.

        ``busy_s``: seconds inside the user's function; the rest of the elapsed time counts as launch cost.
        A chunk that is not in flight finishes nothing: drop its answer.
        """
        ended = self._end(chunk, now)
        if ended is None:
            return ()
        state = self._devices[ended.device]
        state.last_n = len(ended)
        if 1e-9 < ended.work < 1e12:  # outside, a size hint means nothing
            state.estimate.observe(ended.work, max(0.0, now - ended.began_s), busy_s)
        if self.sizes is not None:
            self.sizes.observe(ended, max(0.0, now - ended.began_s), busy_s)
        first = self._chunks.finish(ended)
        self._pool.finish(first)
        self._n_unfinished -= len(first)
        self.counters.n_done += len(first)
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
        """End a chunk without results. ``redo`` of its items are dealt again, the rest are forgotten.

        ``later``: items that wait for a ``requeue``.
        """
        ended = self._end(chunk, now)
        if ended is None:
            return
        again = set(redo)
        self._chunks.give_up(ended)
        self.requeue([index for index in ended.indices if index in again], alone=alone, avoid=avoid)
        self.forget(index for index in ended.indices if index not in again and index not in later)

    def lost(self, device: str, now: float, but: int = -1) -> tuple[Deal, ...]:
        """Give up a device's chunks, ``but`` one if it is only stuck: requeue or forget their items."""
        state = self._devices[device]
        state.is_up = False
        deals = []
        for chunk in [chunk for chunk in state.chunks.values() if chunk.number != but]:
            deals.append(Deal(chunk.number, device, chunk.indices, "lost", chunk.is_duplicate))
            self._end(chunk.number, now)
            self._chunks.give_up(chunk)
        self._version += 1
        return tuple(deals)

    def narrow(self, chunk: int, keep: Collection[int]) -> None:
        """Give up the items of ``chunk`` but for ``keep``, which others may copy: requeue or forget them."""
        self._chunks.narrow(chunk, keep)
        self._version += 1

    def has_copy(self, chunk: int) -> bool:
        """Whether another device runs all that is left of ``chunk``."""
        return self._chunks.has_copy(chunk)

    # --- devices ----------------------------------------------------------------------------------

    def join(self, device: str, now: float, prior: float = 1.0, is_helper: bool = False) -> None:
        """Add a device, or one that comes back. Raises ConfigError on a prior below 0."""
        self._devices.join(device, prior, is_helper)
        if self._pool.queues is not None:
            self._pool.queues.join(device, prior)
        self._version += 1

    def leave(self, device: str, now: float) -> None:
        """Give a device no more work. Its queue goes to others; the results of what it runs still count."""
        self._devices.leave(device)
        self._pool.leave(device)
        self._version += 1

    def set_ceiling(self, device: str, n: int | None) -> None:
        """At most ``n`` items per chunk on this device from now on."""
        self._devices.set_ceiling(device, n)
        self._version += 1

    def set_policy(self, policy: Policy | str, now: float) -> None:
        """Change the policy; measurements and chunks in flight stay.

        Raises UnknownName on an unknown name, ConfigError on a partition that does not fit the devices.
        """
        policy = policy_from_name(policy)
        if isinstance(policy, Static):
            self._partition = policy.shares(self.devices_here())
        self.policy = policy
        self._state = policy.init()
        self._pool.unassign()
        self._version += 1

    # --- decisions --------------------------------------------------------------------------------

    def next(
        self, device: str, now: float, bundle: int = 1, most: int | None = None, may_copy: bool = True
    ) -> Deal | Wait:
        """What ``device``, which is free, should do now. Raises UnknownName on a device that never joined.

        bundle    chunks of a fixed size are so short that up to so many should be sent as one
        most      items in this chunk, because they are large
        may_copy  False: no items that another device has

        A ``Wait`` without ``until`` ends with the next change: a result, an item, a device that comes or
        goes.
        """
        state = self._devices[device]
        if self.is_finished or not state.is_here:
            return Wait("all done" if self.is_finished else "it has left")
        self._devices.wake(state)
        if isinstance(self.policy, Static):
            priors = {other.name: other.prior for other in self._devices.here()}
            self._pool.assign(self._partition, priors, self.remaining)
        ask = self._ask(state, now, may_copy)
        self._state, answer = checked(self.policy.step(self._state, ask), self.policy, ask)
        if isinstance(answer, Hold) and ask.n_ready and self._must_take(state):
            answer = Take(1, "nothing else runs")
        if isinstance(answer, Hold):
            state.refused_version = self._version
            self.decisions.append(Decision(now, device, "wait", 0, answer.why))
            return Wait(answer.why, answer.until)
        if isinstance(answer, Copy):
            chunk = self._chunks.copy(answer.chunk, answer.n, device, state.free_at(now))
            self.counters.n_duplicates += 1
        else:
            if bundle > 1 and isinstance(self.policy, Pull):
                fair = ask.n_ready // (2 * len(ask.devices))
                answer = Take(max(answer.n, min(answer.n * bundle, fair)), answer.why)
            chunk = self._take(state, now, answer, most)
        return self._start(state, chunk, now, answer.why)

    def devices_here(self) -> list[str]:
        """Devices that have come and not left."""
        return [state.name for state in self._devices.here()]

    def fastest_first(self, devices: Iterable[str]) -> list[str]:
        """``devices`` in the order in which to call ``next`` for them."""
        return self._devices.fastest_first(devices)

    def set_balancing(self, on: bool) -> None:
        """Switch the balancer on or off, if there is one; its counts and its interval go on."""
        if self._balance is not None:
            self._balance = self._balance.switched(on)

    def tick(self, now: float) -> tuple[Move, ...]:
        """Let the balancer, if there is one, move queued items between devices; returns what it asked for."""
        queues = self._pool.queues
        if self._balancer is None or self._balance is None or queues is None:
            return ()
        loads = {}
        for state in self._devices.here():
            n_running, cost = sum(map(len, state.chunks.values())), state.estimate.cost
            item_s = None if cost is None else cost.seconds(self._pool.item_work)
            loads[state.name] = QueueLoad(n_running, queues[state.name].n, item_s)
        self._balance, moves = self._balancer.step(self._balance, now, loads)
        for move in moves:
            n_moved = queues.move(move.source, move.target, move.n_items)
            self._balance = self._balance.report(done=n_moved, failed=move.n_items - n_moved)
            self.counters.n_moved += n_moved
        self._version += len(moves)
        return moves

    # --- what is known ----------------------------------------------------------------------------

    @property
    def remaining(self) -> int | None:
        """Items that no device has, also those that are to come or wait for a ``requeue``.

        None if their number is not known.
        """
        if self._total is None:
            return None
        return self._pool.n + self._chunks.n_given_up + max(0, self._total - self.counters.n_added)

    @property
    def n_ready(self) -> int:
        """Items that are there and not dealt."""
        return self._pool.n

    def queued(self) -> dict[str, int]:
        """Items in each device's own queue; empty if all devices take from one pool."""
        queues = self._pool.queues
        return {} if queues is None else {state.name: queues[state.name].n for state in self._devices.here()}

    @property
    def n_in_flight(self) -> int:
        """Chunks that run now."""
        return len(self._chunks)

    @property
    def is_finished(self) -> bool:
        """Whether it is closed and every item is done or forgotten; duplicates may still run."""
        return self._is_closed and self._n_unfinished == 0

    def n_measured(self, device: str) -> int:
        """Chunks whose time this run has measured on ``device``."""
        return self._devices[device].estimate.n_samples

    def cost(self, device: str) -> Cost | None:
        """The cost of chunks on ``device``, measured or from its history; per average item."""
        cost = self._devices[device].estimate.cost
        work = 1.0 if self.sizes and self.sizes.model else self._pool.item_work
        return cost and Cost(cost.launch_s, cost.per_item_s * work)

    # --- inside -----------------------------------------------------------------------------------

    def _count_added(self, n: int) -> None:
        assert not self._is_closed, "items added after close()"
        self.counters.n_added += n
        self._n_unfinished += n
        self._version += 1

    def _ask(self, state: DeviceState, now: float, may_copy: bool) -> Ask:
        left = self.remaining
        shortest, longest = self._pool.extremes(state.name) or (None, None)
        return Ask(
            device=state,
            devices=self._devices.here(),
            now=now,
            n_ready=self._pool.n_ready(state.name, self.devices_here),
            n_left=left,
            work_left=None if left is None else self._pool.work_left(state.name, left),
            item_work=self._pool.item_work,
            shortest=shortest,
            longest=longest,
            may_repeat=self.repeatable and may_copy,
            is_uniform=self.uniform,
            version=self._version,
            n_in_flight=len(self._chunks),
            is_all_dealt=self._is_closed and not (self._pool.n or self._chunks.n_given_up),
        )

    def _must_take(self, state: DeviceState) -> bool:
        """Whether nothing runs and no other device would take what this one refuses."""
        return not len(self._chunks) and self._devices.is_last_resort(state, self._version)

    def _take(self, state: DeviceState, now: float, take: Take, most: int | None) -> ChunkInFlight:
        n = take.n if state.ceiling is None else min(take.n, state.ceiling)
        n = n if most is None else min(n, most)
        indices, work = self._pool.take(state.name, n, take.work, take.at_most, self.devices_here)
        return self._chunks.start(state.name, indices, work, state.free_at(now))

    def _start(self, state: DeviceState, chunk: ChunkInFlight, now: float, why: str) -> Deal:
        state.chunks[chunk.number] = chunk
        self._version += 1
        self.counters.n_chunks += 1
        kind = "copy" if chunk.is_duplicate else "deal"
        self.decisions.append(Decision(now, state.name, kind, len(chunk), why))
        return Deal(chunk.number, state.name, chunk.indices, why, chunk.is_duplicate)

    def _end(self, number: int, now: float) -> ChunkInFlight | None:
        chunk = self._chunks.end(number)
        if chunk is not None:
            self._devices[chunk.device].end(number, now)
            self._version += 1
        return chunk
