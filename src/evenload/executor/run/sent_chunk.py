"""A chunk from when it is sent until it comes back."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from evenload.executor.decide.instruction import Send
from evenload.executor.transport.progress_cell import NOT_BEGUN, PACKING

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class SentChunk(Generic[R]):
    """A chunk that a worker has. ``number`` names it among all chunks of the executor.

    cost           sum of the items' size hints
    dropped_s      when the worker was told to skip the rest
    is_released    its items but the one that runs were given to others
    is_warned_of   a person was told that it takes long
    is_tiny        it is expected to be done before the next could be sent
    late_at        position that was found to take too long, to be looked at once more
    overtime_at    position at which its worker was killed for taking too long
    due_s          when its worker was first seen free to begin it, and had not
    """

    number: int
    run: R
    send: Send
    worker: str
    dealt_s: float
    cost: float | None = None
    dropped_s: float | None = None
    is_released: bool = False
    is_warned_of: bool = False
    late_at: int | None = None
    overtime_at: int | None = None
    due_s: float | None = None
    is_tiny: bool = False

    def position_at_end(self, position: int) -> int:
        """Return ``position``, where its worker says that it ended, or PACKING if that cannot be."""
        return position if NOT_BEGUN <= position < len(self.send.items) else PACKING
