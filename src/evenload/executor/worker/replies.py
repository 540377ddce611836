"""Reading a worker's frames as messages for the executor, whichever way they came."""

from evenload.executor.task.failure import Failure
from evenload.executor.task.item_packing import unpack_apart
from evenload.executor.task.messages import Answered, Loaded, Message, Refused, Spoilt, Up
from evenload.executor.task.task import Answer
from evenload.executor.transport.wire import Frame, ProtocolViolation, unpack
from evenload.executor.worker import protocol

__all__ = ["message_of"]


def message_of(worker: int, pid: int | None, frame: Frame) -> Message:
    """Read ``frame`` as a message. Results that cannot be unpickled make the chunk Spoilt.

    Raises ProtocolViolation for any other frame that cannot be read.
    """
    if frame.kind in (protocol.DONE, protocol.DONE_SINGLY):
        try:
            answer = Answer(*unpack(frame))
            if frame.kind == protocol.DONE_SINGLY:
                _take_apart(answer)
            return Answered(worker, frame.chunk, answer, frame.n_bytes)
        except BaseException as error:  # a result's own code runs here, and may raise SystemExit
            return Spoilt(worker, frame.chunk, Failure.of(error, "result"), is_run=True)
    try:
        if frame.kind == protocol.SPOILT:
            return Spoilt(worker, frame.chunk, unpack(frame), is_run=False)
        if frame.kind == protocol.LOADED:
            return Loaded(worker, frame.task, unpack(frame))
        if frame.kind == protocol.REFUSED:
            return Refused(worker, frame.task, unpack(frame))
        if frame.kind == protocol.UP:
            return Up(worker, pid)
    except Exception as error:
        raise ProtocolViolation(f"a frame that cannot be read ({type(error).__name__})") from error
    raise ProtocolViolation("a frame of no known kind")


def _take_apart(answer: Answer) -> None:
    """Unpickle values that were packed one by one; those that cannot be are failures."""
    answer.values = unpack_apart(answer.values, "result")
    for position, value in enumerate(answer.values):
        if isinstance(value, Failure):
            answer.values[position] = None
            answer.failures.setdefault(position, value)
