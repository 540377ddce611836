"""``LoadBalancer``: moves queued items from a busy device to an idle one, for work assigned in advance.

    loads ──► LoadBalancer.step ──► Move(source, target, n_items) ──► whoever owns the queues
                     ▲                                                          │
                     └───────────── state.report(done, failed) ◄────────────────┘

Source: the threshold, interval and half-the-difference rule of the multi-GPU load balancer this project began
from. ``policy.Measured`` is better for most work: nothing is assigned, so nothing to take back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from evenload.balance.metrics import spread
from evenload.errors import ConfigError

__all__ = ["BalancerState", "LoadBalancer", "Move", "QueueLoad"]


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The load of one device.

    running      items it works on now; they do not move
    queued       items assigned to it and not begun; they may move
    item_s       measured seconds per item there, None if not known
    utilisation  share 0..1 of the recent past that it was busy, None if not known
    """

    running: int
    queued: int
    item_s: float | None = None
    utilisation: float | None = None

    @property
    def n_items(self) -> int:
        return self.running + self.queued


@dataclass(frozen=True, slots=True)
class Move:
    """A decision to move ``n_items`` from the end of ``source``'s queue to ``target``'s."""

    source: str
    target: str
    n_items: int
    imbalance: float


@dataclass(frozen=True, slots=True)
class BalancerState:
    """A balancer's memory of earlier steps, with its counts."""

    enabled: bool = True
    rebalanced_at: float | None = None
    last_move: Move | None = None
    n_rebalances: int = 0
    n_moves_asked: int = 0
    n_moves_done: int = 0
    n_moves_failed: int = 0

    def switched(self, on: bool) -> "BalancerState":
        """This state, switched on or off; the counters and the interval go on."""
        return replace(self, enabled=on)

    def report(self, *, done: int = 0, failed: int = 0) -> "BalancerState":
        """This state with ``done`` and ``failed`` items of earlier moves counted."""
        return replace(
            self, n_moves_done=self.n_moves_done + done, n_moves_failed=self.n_moves_failed + failed
        )


@dataclass(frozen=True, slots=True)
class LoadBalancer:
    """A rule that moves queued items from the busiest to the idlest device once their loads differ enough.

    threshold   (max - min) / max must be above this, 0..1
    interval_s  least seconds between two rebalances; an item never moves back within it
    max_moves   most items per rebalance
    hot, cold   where utilisation is known, only a device above ``hot`` gives, only one below ``cold`` takes

    A device's load is running + queued items or, once every ``item_s`` is known, the seconds they take.
    Raises ConfigError on values outside these ranges.
    """

    threshold: float = 0.3
    interval_s: float = 1.0
    max_moves: int = 10
    hot: float = 0.8
    cold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ConfigError(
                f"threshold={self.threshold} is not in 0..1", hint="use 0.3 for a 30 % difference"
            )
        if not self.interval_s >= 0:
            raise ConfigError(f"interval_s={self.interval_s} is not zero or more", hint="use 1.0")
        if self.max_moves < 1:
            raise ConfigError(
                f"max_moves={self.max_moves} would move nothing", hint="switch the balancer off instead"
            )
        if not 0 <= self.cold <= self.hot <= 1:
            raise ConfigError(
                f"cold={self.cold} and hot={self.hot} are not 0 <= cold <= hot <= 1", hint="use 0.5 and 0.8"
            )

    def init(self, *, enabled: bool = True) -> BalancerState:
        return BalancerState(enabled=enabled)

    def step(
        self, state: BalancerState, now: float, loads: Mapping[str, QueueLoad]
    ) -> tuple[BalancerState, tuple[Move, ...]]:
        """Decide what to move at ``now`` (seconds of any origin): one move at most.

        The caller makes the move and reports with ``state.report`` how many items moved.
        """
        if not state.enabled or not self._is_due(state, now):
            return state, ()
        move = self._choose(state, now, loads)
        if move is None:
            return state, ()
        state = replace(
            state,
            rebalanced_at=now,
            last_move=move,
            n_rebalances=state.n_rebalances + 1,
            n_moves_asked=state.n_moves_asked + move.n_items,
        )
        return state, (move,)

    def _is_due(self, state: BalancerState, now: float) -> bool:
        return state.rebalanced_at is None or now - state.rebalanced_at >= self.interval_s

    def _choose(self, state: BalancerState, now: float, loads: Mapping[str, QueueLoad]) -> Move | None:
        item_s = _item_seconds(loads)
        load = {device: queue.n_items * item_s[device] for device, queue in loads.items()}
        givers = [d for d, queue in loads.items() if queue.queued > 0 and self._is_hot(queue)]
        takers = [d for d, queue in loads.items() if self._is_cold(queue)]
        if not givers or not takers:
            return None
        source, target = max(givers, key=load.__getitem__), min(takers, key=load.__getitem__)
        imbalance = spread([load[source], load[target]])
        if (
            load[source] <= load[target]
            or imbalance <= self.threshold
            or self._is_return(state, now, source, target)
        ):
            return None
        # n moves leave the source with max - n * item_s[source], the target with min + n * item_s[target].
        # These meet here; for equal items that is n = max - (max + min) / 2. Rounded down: they never swap.
        n_items = int((load[source] - load[target]) / (item_s[source] + item_s[target]))
        n_items = min(n_items, self.max_moves, loads[source].queued)
        return Move(source, target, n_items, imbalance) if n_items else None

    def _is_hot(self, queue: QueueLoad) -> bool:
        return queue.utilisation is None or queue.utilisation > self.hot

    def _is_cold(self, queue: QueueLoad) -> bool:
        return queue.utilisation is None or queue.utilisation < self.cold

    def _is_return(self, state: BalancerState, now: float, source: str, target: str) -> bool:
        """Whether this would move the items of the last move back, within one interval."""
        last = state.last_move
        if last is None or state.rebalanced_at is None or (last.source, last.target) != (target, source):
            return False
        return now - state.rebalanced_at <= self.interval_s


def _item_seconds(loads: Mapping[str, QueueLoad]) -> dict[str, float]:
    """Seconds per item of each device where all are known, else 1 for all: then loads are counts."""
    known = {d: queue.item_s for d, queue in loads.items() if queue.item_s is not None and queue.item_s > 0}
    return known if len(known) == len(loads) else dict.fromkeys(loads, 1.0)
