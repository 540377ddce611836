"""What is left of an exception when it has crossed from a worker to the executor."""

import pickle
from dataclasses import dataclass, replace
from typing import Any

from evenload.errors import ResourceExhausted, ResultNotSendable, TaskError
from evenload.executor.transport.wire import pack

__all__ = ["Failure", "is_memory_error"]

NO_MEMORY = ("out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED", "RESOURCE_EXHAUSTED")
MOST_TEXT = 20_000  # characters of a traceback that travel; the end of it matters


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text, and pickled where that works.

    kind      "raised" by the task | "memory": too little of it for one item | "result" not sendable |
              "input" not sendable
    pickled   the exception, proven to survive the way; None if only its text does
    original  the exception itself, where it need not travel
    """

    kind: str
    type_name: str
    message: str
    traceback: str = ""
    pickled: tuple[bytes, list] | None = None
    original: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException, kind: str = "raised", *, travels: bool = True) -> "Failure":
        """Describe ``error``, caught one frame above the user's code. ``travels``: to another process."""
        if kind == "raised" and is_memory_error(error):
            kind = "memory"
        described = cls(kind, type(error).__name__, _text(error), _traceback(error))
        return replace(described, pickled=_pickled(error)) if travels else replace(described, original=error)

    @property
    def summary(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name

    def to_error(self, index: int, device: str | None) -> TaskError:
        """The error that a caller sees; the task's own exception is its ``__cause__`` if it could travel."""
        where: dict[str, Any] = {"index": index, "device": device, "remote_traceback": self.traceback}
        if self.kind == "result":
            return ResultNotSendable(
                f"the result of item {index} cannot be sent back: {self.summary}",
                hint="return plain values or arrays, not open files, generators or handles",
                **where,
            )
        if self.kind == "input":
            return ResultNotSendable(
                f"item {index} cannot be sent to a worker: {self.summary}",
                hint="make items of plain values or arrays, and open files or handles inside the function",
                **where,
            )
        error = TaskError(f"item {index} raised {self.summary}", **where)
        error.__cause__ = self._cause()
        return error

    def _cause(self) -> BaseException | None:
        if self.pickled is None:
            return self.original
        body, buffers = self.pickled
        try:
            cause = pickle.loads(body, buffers=buffers)
        except Exception:  # its class lives only where the worker is; the text says the rest
            return None
        return cause if isinstance(cause, BaseException) else None


def is_memory_error(error: BaseException) -> bool:
    """Did a device or the host run out of memory? Smaller batches may help then.

    torch has a class for CUDA and ROCm; MPS, the host's allocator, cuBLAS, cuDNN and XLA only say so.
    """
    if isinstance(error, MemoryError | ResourceExhausted) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError):
        return False
    said = _text(error)
    return any(phrase in said for phrase in NO_MEMORY)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"<its text cannot be made: {type(broken).__name__}>"


def _traceback(error: BaseException) -> str:
    import traceback

    frames = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, frames))
    return text if len(text) <= MOST_TEXT else "...\n" + text[-MOST_TEXT:]


def _pickled(error: BaseException) -> tuple[bytes, list] | None:
    try:
        body, buffers = pack(error)
        pickle.loads(body, buffers=buffers)
        return body, [bytes(buffer) for buffer in buffers]
    except Exception:
        return None
