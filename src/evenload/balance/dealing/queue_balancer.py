"""``QueueBalancer``: moves queued items between devices, for the policy ``Static``."""

from collections.abc import Sequence

from evenload.balance.dealing.queues import DeviceQueues
from evenload.balance.migrate import LoadBalancer, Move, QueueLoad
from evenload.balance.policy.device_state import DeviceState

__all__ = ["QueueBalancer"]


class QueueBalancer:
    """A ``LoadBalancer`` with its state."""

    def __init__(self, balancer: LoadBalancer):
        self._balancer = balancer
        self._state = balancer.init()

    def switch(self, on: bool) -> None:
        """Switch it on or off; its counts and its interval go on."""
        self._state = self._state.switched(on)

    def step(
        self, now: float, devices: Sequence[DeviceState], queues: DeviceQueues, item_work: float
    ) -> tuple[tuple[Move, ...], int]:
        """Move items as the balancer decides: what it asked for, and how many items went."""
        loads = {}
        for state in devices:
            n_running, cost = sum(map(len, state.chunks.values())), state.estimate.cost
            item_s = None if cost is None else cost.seconds(item_work)
            loads[state.name] = QueueLoad(n_running, queues[state.name].n, item_s)
        self._state, moves = self._balancer.step(self._state, now, loads)
        n_all = 0
        for move in moves:
            n_moved = queues.move(move.source, move.target, move.n_items)
            self._state = self._state.report(done=n_moved, failed=move.n_items - n_moved)
            n_all += n_moved
        return moves, n_all
