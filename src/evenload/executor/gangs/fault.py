"""Faults of ranks, and finding the one that caused the others."""

from dataclasses import dataclass

from evenload.errors import GangError
from evenload.executor.task.failure import Failure

__all__ = ["RankFault", "is_waiting", "is_whole", "root_cause"]

# In torch.distributed's errors on a rank whose peer is gone or late.
SECOND_HAND = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "connection was likely closed",
    "broken pipe",
    "socket closed",
    "timed out waiting",
    "remote process has terminated",
    "nccl communicator was aborted",
)
# Parts of the file names in the stack of a rank that waits for others.
INSIDE_TORCH = ("torch/distributed/",)


@dataclass(frozen=True, slots=True)
class RankFault:
    """A fault of one rank.

    what        the end of a sentence that begins with the rank's name
    is_waiting  the rank was late because it waited for others
    """

    rank: int
    what: str
    failure: Failure | None = None
    last_words: str = ""
    is_waiting: bool = False

    @property
    def distance(self) -> int:
        """Rank of directness: 0 for a death, 1 for an error of its own, 2 for one caused by another rank."""
        if self.failure is None:
            return 2 if self.is_waiting else 0
        text = self.failure.message.lower()
        return 2 if any(words in text for words in SECOND_HAND) else 1

    def to_error(self, name: str, device: str) -> GangError:
        """Make the error for the caller; ``name`` is the function's."""
        text = f"rank {self.rank} of {name}, on {device}, {self.what}; the other ranks were ended"
        if self.failure is None:
            return GangError(text, rank=self.rank, device=device, remote_traceback=self.last_words)
        error = GangError(text, rank=self.rank, device=device, remote_traceback=self.failure.traceback)
        error.__cause__ = self.failure.to_error(self.rank, device).__cause__
        return error


def root_cause(faults: list[RankFault]) -> RankFault:
    """Return the most direct fault; among equals the one that was reported first."""
    return min(faults, key=lambda fault: fault.distance)


def is_whole(stack: list[str]) -> bool:
    """Whether a rank's stack, as written by faulthandler, is there to its outermost frame, or cut short."""
    return any(line.endswith(" in <module>") or line.strip() == "..." for line in stack)


def is_waiting(stack: list[str]) -> bool:
    """Whether a rank's stack, as written by faulthandler, ends inside torch.distributed."""
    frames = [line for line in stack if line.lstrip().startswith("File ")]
    return bool(frames) and any(part in frame for frame in frames[:1] for part in INSIDE_TORCH)
