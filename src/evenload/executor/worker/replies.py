"""Reading a worker's frames as messages for the executor, whichever way they came."""

import dataclasses
import math
from typing import Any

from evenload.executor.task.answer import Answer
from evenload.executor.task.failure import Failure, unpack_apart
from evenload.executor.task.messages import Answered, Loaded, Message, Spoilt, TaskRefused, Up
from evenload.executor.transport.wire import Frame, ProtocolViolation, unpack
from evenload.executor.worker import protocol


def message_of(worker: int, pid: int | None, frame: Frame) -> Message:
    """Read ``frame`` as a message. Results that cannot be unpickled make the chunk Spoilt.

    Raises ProtocolViolation for any other frame that cannot be read. How many items the chunk has is not
    known here: ``Answer.fault`` says whether the answer fits.
    """
    if frame.kind in (protocol.DONE, protocol.DONE_SINGLY):
        try:
            fields = unpack(frame)
        except BaseException as error:  # a result's own code runs here, and may raise SystemExit
            return Spoilt(worker, frame.chunk, Failure.of(error, "result"), is_run=True)
        answer = _answer(fields)
        if frame.kind == protocol.DONE_SINGLY:
            _take_apart(answer)
        return Answered(worker, frame.chunk, answer, frame.n_bytes)
    if frame.kind == protocol.UP:
        return Up(worker, pid)
    try:
        content = unpack(frame)
    except BaseException as error:
        raise ProtocolViolation(f"a frame that cannot be read ({type(error).__name__})") from error
    if frame.kind == protocol.LOADED and type(content) is float and 0 <= content < math.inf:
        return Loaded(worker, frame.task, content)
    if type(content) is Failure and content.is_sound:
        if frame.kind == protocol.SPOILT:
            return Spoilt(worker, frame.chunk, content, is_run=False)
        if frame.kind == protocol.REFUSED:
            return TaskRefused(worker, frame.task, content)
    raise ProtocolViolation("a frame that says nothing")


def _answer(fields: Any) -> Answer:
    """Raises ProtocolViolation if ``fields`` are not those of an answer."""
    if type(fields) is not tuple or len(fields) != len(dataclasses.fields(Answer)):
        raise ProtocolViolation("an answer that is none")
    answer = Answer(*fields)
    if type(answer.values) is not list or type(answer.failures) is not dict:
        raise ProtocolViolation("an answer that is none")
    if not all(type(one) in (int, float) for one in (answer.start_s, answer.stop_s, answer.busy_s)):
        raise ProtocolViolation("an answer without times")
    return answer


def _take_apart(answer: Answer) -> None:
    """Unpickle values that were packed one by one; those that cannot be are failures.

    Raises ProtocolViolation if they were not.
    """
    if not all(map(_is_packed, answer.values)):
        raise ProtocolViolation("an answer that is none")
    answer.values = unpack_apart(answer.values, "result")
    for position, value in enumerate(answer.values):
        if isinstance(value, Failure):
            answer.values[position] = None
            answer.failures.setdefault(position, value)


def _is_packed(one: Any) -> bool:
    is_pair = type(one) is tuple and len(one) == 2
    return type(one) is Failure or (is_pair and type(one[0]) is bytes and type(one[1]) is list)
