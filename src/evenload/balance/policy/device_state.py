"""``DeviceState``: what a dealer knows of one device."""

from dataclasses import dataclass, field

from evenload.balance.policy.estimate import CostEstimate
from evenload.balance.policy.in_flight import ChunkInFlight

OVERDUE = 3.0
"""A chunk that has run for this many times its expected seconds cannot be counted on."""


@dataclass(slots=True, eq=False)
class DeviceState:
    """One device as its dealer knows it. Policies read it and never change it.

    prior            relative speed before anything is measured, from a score
    ceiling          most items that one chunk may hold, None without limit
    last_n           items in the last chunk that came back
    last_end_s       when that was
    is_helper        whether it is probably much slower than others: it gets only what it will end in time
    is_here          whether it takes work (False once it has left)
    is_up            whether it has asked for work since it came (or came back)
    refused_version  the dealer's version when this device was last told to wait
    chunks           chunks in flight on it, by number
    """

    name: str
    prior: float = 1.0
    estimate: CostEstimate = field(default_factory=CostEstimate)
    ceiling: int | None = None
    last_n: int = 0
    last_end_s: float = float("-inf")
    is_helper: bool = False
    is_here: bool = True
    is_up: bool = False
    refused_version: int = -1
    chunks: dict[int, ChunkInFlight] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        return bool(self.chunks)

    @property
    def rate(self) -> float | None:
        """Units of work per second, launch not counted; None before the first result."""
        cost = self.estimate.cost
        return None if cost is None else cost.rate

    @property
    def launch_s(self) -> float:
        cost = self.estimate.cost
        return 0.0 if cost is None else cost.launch_s

    def free_at(self, now: float) -> float:
        """When a chunk dealt at ``now`` can begin: not before the last one ended."""
        return max(now, self.last_end_s)

    def end(self, number: int, now: float) -> None:
        """Take out the chunk ``number``, which ended ``now``: chunks behind it could not begin before."""
        del self.chunks[number]
        self.last_end_s = now
        for waiting in self.chunks.values():
            waiting.began_s = max(waiting.began_s, now)

    def is_overdue(self, now: float) -> bool:
        """Whether a chunk that it runs takes far longer than estimated."""
        cost = self.estimate.cost
        if cost is None:
            return False
        return any(now - chunk.began_s > OVERDUE * cost.seconds(chunk.work) for chunk in self.chunks.values())
