"""Exceptions as values that can be sent from a worker to the executor, and what is pickled one by one."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenload.errors import ResourceExhausted, ResultNotSendable, TaskError
from evenload.executor.transport.pickling import pack

NO_MEMORY = ("out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED", "RESOURCE_EXHAUSTED")
KINDS = ("raised", "memory", "result", "input")
MOST_TEXT = 20_000  # characters of a traceback that are sent, from its end


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text, and pickled if that is possible.

    kind      "raised" by the task | "memory": too little for one item | "result": cannot be sent |
              "input": cannot be sent
    pickled   the exception, if it can be pickled and unpickled; else None
    original  the exception itself, within one process
    """

    kind: str
    type_name: str
    message: str
    traceback: str = ""
    pickled: tuple[bytes, list] | None = None
    original: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException, kind: str = "raised", *, travels: bool = True) -> "Failure":
        """Describe ``error``, caught one frame above the user's code. ``travels``: it is sent on."""
        if kind == "raised" and is_memory_error(error):
            kind = "memory"
        described = cls(kind, type(error).__name__, _text(error), _traceback(error))
        return replace(described, pickled=_pickled(error)) if travels else replace(described, original=error)

    @property
    def is_sound(self) -> bool:
        """Whether its fields are what they should be: one that was unpickled may have any."""
        if not all(hasattr(self, name) for name in self.__slots__):
            return False
        texts = self.kind, self.type_name, self.message, self.traceback
        is_pickled = self.pickled is None or (
            type(self.pickled) is tuple and len(self.pickled) == 2 and type(self.pickled[1]) is list
        )
        return all(type(text) is str for text in texts) and is_pickled and self.kind in KINDS

    @property
    def summary(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name

    def to_error(self, index: int, device: str | None) -> TaskError:
        """Make the error that a caller sees; its ``__cause__`` is the task's exception, if known."""
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
        except BaseException:  # its class exists only in the worker; the text is enough
            return None
        return cause if isinstance(cause, BaseException) else None


def is_memory_error(error: BaseException) -> bool:
    """Whether a device or the host ran out of memory, so that a smaller batch may help.

    torch has a class for CUDA and ROCm; for MPS, the host's allocator, cuBLAS, cuDNN and XLA the text tells.
    """
    kind = type(error)  # isinstance would ask the error itself, whose code is anybody's
    if issubclass(kind, MemoryError | ResourceExhausted) or kind.__name__ == "OutOfMemoryError":
        return True
    if not issubclass(kind, RuntimeError):
        return False
    said = _text(error)
    return any(phrase in said for phrase in NO_MEMORY)


def _text(error: BaseException) -> str:
    try:
        text = str(error)
        return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "..."
    except BaseException as broken:
        return f"<its text cannot be made: {type(broken).__name__}>"


def _traceback(error: BaseException) -> str:
    import traceback

    try:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, frames))
    except BaseException as broken:
        return f"<its traceback cannot be made: {type(broken).__name__}>"
    return text if len(text) <= MOST_TEXT else "...\n" + text[-MOST_TEXT:]


def _pickled(error: BaseException) -> tuple[bytes, list] | None:
    try:
        body, buffers = pack(error)
        pickle.loads(body, buffers=buffers)
        return body, [bytes(buffer) for buffer in buffers]
    except BaseException:
        return None


# Normally a chunk is pickled as a whole, which is faster and fails as a whole. A chunk that failed is sent
# again object by object, so that those which cannot be pickled or unpickled are found: whatever they raise,
# as their own code may raise SystemExit.

Packed = tuple[bytes, list] | Failure


def pack_apart(objects: Sequence[Any], kind: str) -> list[Packed]:
    """Pickle each object; one that cannot be becomes a Failure of this ``kind``."""
    packed: list[Packed] = []
    for obj in objects:
        try:
            body, buffers = pack(obj, by_file=kind == "input")
            packed.append((body, [bytes(buffer) for buffer in buffers]))
        except BaseException as error:
            packed.append(Failure.of(error, kind))
    return packed


def unpack_apart(packed: Sequence[Packed], kind: str) -> list[Any]:
    """Unpickle each object; failures stay what they are."""
    objects: list[Any] = []
    for one in packed:
        try:
            objects.append(one if isinstance(one, Failure) else pickle.loads(one[0], buffers=one[1]))
        except BaseException as error:
            objects.append(Failure.of(error, kind))
    return objects
