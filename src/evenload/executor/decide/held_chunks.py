"""Chunks that devices hold, as the scheduler knows them."""

from typing import NamedTuple

from evenload.executor.decide.instruction import Indices
from evenload.executor.transport.progress_cell import PACKING

__all__ = ["HeldChunk", "HungChunk"]


class HeldChunk(NamedTuple):
    """A chunk that a device holds."""

    device: str
    units: Indices
    items: Indices
    singly: bool

    def blamed(self, position: int, batch: int) -> tuple[int, range]:
        """Return how many items had begun, and the positions of those that may have ended the worker."""
        n = len(self.items)
        if position == PACKING:
            return n, range(n)
        if position < 0:
            return 0, range(n)
        stop = min(n, position + (1 if self.singly else batch))
        return stop, range(position, stop)


class HungChunk(NamedTuple):
    """A chunk whose device is stuck: all but the stuck ``items`` was given to others."""

    held: HeldChunk
    items: list[int]
