"""Faults of ranks, and finding the one that caused the others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evenload.errors import GangError
from evenload.executor.task.failure import Failure

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
# In the last words of a rank that got something else from its peer than it had asked for.
UNFIT = ("gloo::enforcenotmet",)
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
        """Rank of directness: 0 for a death, 1 for an own error, 2 and 3 for what another rank causes."""
        if self.failure is None:
            return 3 if self.is_waiting else 2 if self.is_unfit else 0
        text = self.failure.message.lower()
        return 3 if any(words in text for words in SECOND_HAND) else 1

    @property
    def is_unfit(self) -> bool:
        """Whether what it exchanged was not what another rank exchanged."""
        return any(words in self.last_words.lower() for words in UNFIT)

    def to_error(self, name: str, device: str) -> GangError:
        """Make the error for the caller; ``name`` is the function's."""
        text = f"rank {self.rank} of {name}, on {device}, {self.what}; the other ranks were ended"
        if self.failure is None:
            return GangError(text, rank=self.rank, device=device, remote_traceback=self.last_words)
        error = GangError(text, rank=self.rank, device=device, remote_traceback=self.failure.traceback)
        error.__cause__ = self.failure.to_error(self.rank, device).__cause__
        return error


def root_cause(faults: list[RankFault], returned: Sequence[int] = ()) -> RankFault:
    """Return the most direct fault; among equals the one that was reported first.

    If every rank only waited for others, it is that of the rank whose function has ``returned`` first; else
    one that says where each of them waits.
    """
    direct = min(faults, key=lambda fault: (fault.distance, fault.rank in returned))
    if direct.distance < 2:
        return direct
    if returned and direct.rank not in returned:
        what = f"returned while rank {direct.rank} still exchanged with it, which {direct.what}"
        words = f"rank {direct.rank}:\n{direct.last_words}" if direct.last_words else ""
        return replace(direct, rank=returned[0], what=what, last_words=words)
    places = {fault.rank: place for fault in faults if (place := exchange_of(fault.last_words.splitlines()))}
    if len(set(places.values())) > 1:
        told = ", ".join(f"rank {rank} in {place}" for rank, place in sorted(places.items()))
        what = f"{direct.what}: the ranks wait for each other, {told}; all must call the same"
        return replace(direct, what=what)
    if direct.is_unfit:
        return replace(direct, what=f"{direct.what}: what it exchanged does not fit to what another rank did")
    return direct


def exchange_of(stack: list[str]) -> str:
    """Return the function of torch.distributed that a rank's stack is in, as its task called it, or "" """
    inside = ""
    for frame in (line for line in stack if line.lstrip().startswith("File ")):
        if not any(part in frame for part in INSIDE_TORCH):
            break
        if "c10d_logger" not in frame:  # it wraps every function
            inside = frame.rpartition(" in ")[2].strip()
    return inside


def is_whole(stack: list[str]) -> bool:
    """Whether a rank's stack, as written by faulthandler, is there to its outermost frame, or cut short."""
    return any(line.endswith(" in <module>") or line.strip() == "..." for line in stack)


def main_stack(lines: list[str]) -> list[str]:
    """Return the stack of the thread that runs the rank, of all threads' by faulthandler: it is the last."""
    heads = [at for at, line in enumerate(lines) if line.startswith(("Thread 0x", "Current thread 0x"))]
    return lines[heads[-1] :] if heads else lines


def is_waiting(stack: list[str]) -> bool:
    """Whether a rank's stack, as written by faulthandler, ends inside torch.distributed."""
    frames = [line for line in stack if line.lstrip().startswith("File ")]
    return bool(frames) and any(part in frame for frame in frames[:1] for part in INSIDE_TORCH)
