"""Well-formed frames with one field changed: what a worker says of its results costs that worker only."""

import contextlib
import math
import os
import random
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from evenload.errors import EvenloadError
from evenload.executor import Executor
from evenload.executor.task.answer import Answer
from evenload.executor.task.failure import KINDS, Failure
from evenload.executor.task.messages import Answered, Spoilt, TaskRefused
from evenload.executor.transport.arena import ArenaPiece, Borrower, Lender, MemoryBudget, make_arena_file
from evenload.executor.transport.pickling import pack
from evenload.executor.transport.wire import (
    HEADER,
    N_SUMMED,
    PIECE,
    SUM,
    Frame,
    Inbox,
    Outbox,
    ProtocolViolation,
)
from evenload.executor.worker import protocol
from evenload.executor.worker.replies import message_of

# Each of the many workers would import this module, and pytest with it, for its tasks.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

N_ITEMS = 8
ARENA_BYTES = 8 * 2**20
NUMBERS = (0, 1, -1, 2, 7, 8, 9, 255, 2**16, 2**31, 2**32 - 1, 2**48, 2**63, 2**64 - 1)
ODD = (
    None,
    True,
    "x",
    b"x",
    -1,
    0,
    10**12,
    2.5,
    math.nan,
    math.inf,
    [],
    {},
    (),
    [None] * 3,
    {9: None},
    object,
)
FAILURE = Failure("raised", "ValueError", "x")


class Bare:
    """Unpickles as a failure without any of its fields."""

    def __reduce__(self) -> tuple:
        return object.__new__, (Failure,)


def choose(rng: random.Random, most: int) -> int:
    return rng.choice([number for number in NUMBERS if 0 <= number <= most] + [rng.randrange(most + 1)])


def forged_answer(rng: random.Random, fields: tuple) -> tuple:
    """The fields of an answer with one of them changed."""
    changed = list(fields)
    values, at = list(fields[0]), rng.randrange(len(fields))
    failures = ({rng.choice((0, -1, 1, N_ITEMS, 10**9, "0", True, None)): rng.choice((FAILURE, None, "x"))},)
    of_fields = {
        0: (values[:-1], [*values, 1], [], tuple(values), None, dict(enumerate(values)), "x" * len(values)),
        1: (
            *failures,
            [FAILURE],
            {0: Failure("no kind", "X", "x")},
            {0: Failure("raised", 1, None)},
            None,  # type: ignore[arg-type]
            {0: Bare()},
            {0: Bare()},
        ),
    }
    changed[at] = rng.choice(of_fields.get(at, ODD))
    if rng.random() < 0.1:
        changed = changed[: rng.randrange(len(changed))] if rng.random() < 0.5 else [*changed, 1]
    return tuple(changed)


def forged_frame(rng: random.Random, frame: Frame, number: int, pieces: list[ArenaPiece]) -> bytes:
    """``frame`` as bytes with right checksums, and one field of its header or its table changed."""
    head = [frame.kind, 0, len(pieces), frame.task, frame.chunk, len(frame.body)]
    widths = (8, 8, 16, 32, 64, 64)
    at = rng.randrange(len(head) + 1)
    table = [list(piece) for piece in pieces]
    if at < len(head):
        head[at] = choose(rng, 2 ** widths[at] - 1)
    elif table:
        piece, part = rng.choice(table), rng.randrange(3)
        piece[part] = choose(rng, 2 ** (32 if part == 0 else 64) - 1)
    raw_table = b"".join(PIECE.pack(*piece) for piece in table)
    sums = zlib.crc32(raw_table), zlib.crc32(bytes(frame.body))
    raw = HEADER.pack(*head, *sums, 0)[:N_SUMMED]
    return raw + SUM.pack(zlib.crc32(raw, number)) + raw_table + bytes(frame.body)


class Receiver:
    """The executor's end of a connection, with an arena that the other end lends from."""

    def __init__(self) -> None:
        self.fd = make_arena_file("test", ARENA_BYTES)
        self.budget = MemoryBudget.new(ARENA_BYTES)
        self.lender = Lender(self.fd, self.budget, self.budget.open_cell() or 1)
        self.read, self.write = os.pipe()
        self.inbox = Inbox(self.read, Borrower(self.fd))

    def hear(self, raw: bytes) -> list[Any]:
        """What is made of ``raw``, before which one good frame has come."""
        Outbox(self.write).send(Frame(protocol.UP))
        os.write(self.write, raw[:60_000])
        os.close(self.write)
        heard: list[Any] = []
        with contextlib.suppress(EOFError, ProtocolViolation, MemoryError):
            while True:
                heard += [message_of(1, 42, frame) for frame in self.inbox.read() or ()]
        return heard

    def close(self) -> None:
        self.inbox.close()
        for fd in (self.read, self.fd, self.budget.fd):
            os.close(fd)


def check_reading(seed: int) -> None:
    rng = random.Random(seed)
    receiver = Receiver()
    kind = rng.choice((protocol.DONE, protocol.DONE, protocol.DONE_SINGLY, protocol.SPOILT, protocol.LOADED))
    fields: Any = (list(range(N_ITEMS)), {}, 1.0, 2.0, 1.0, None, None)
    if kind == protocol.DONE_SINGLY:
        fields = ([(pack(x)[0], []) for x in range(N_ITEMS)], *fields[1:])
    if rng.random() < 0.5:
        content: Any = forged_answer(rng, fields) if kind < protocol.SPOILT else rng.choice(ODD)
        outbox = Outbox(-1)
        outbox.n_frames = 1
        outbox.add(Frame(kind, 1, 1, pack(content)[0]))
        outbox._close_small()
        raw = b"".join(outbox._pieces)
    else:
        buffers = [receiver.lender.put(memoryview(bytes(100_000))) for _ in range(rng.randrange(3))]
        raw = forged_frame(rng, Frame(kind, 1, 1, pack(fields)[0]), 2, [one for one in buffers if one])
    for message in receiver.hear(raw)[1:]:
        if isinstance(message, Answered) and not message.answer.fault(N_ITEMS):
            answer: Answer = message.answer
            assert len(answer.values) == (N_ITEMS if answer.skipped is None else answer.skipped)
            assert set(answer.failures) <= set(range(len(answer.values))), f"seed {seed}"
            for at, value in enumerate(answer.values):
                assert value == at or at in answer.failures, f"seed {seed}"
            answer.bound_times(0.0, 1.0)
            assert math.isfinite(answer.start_s + answer.stop_s + answer.busy_s)
        elif isinstance(message, Spoilt | TaskRefused):
            assert message.failure.kind in KINDS
            message.failure.to_error(0, "cpu:0")
    receiver.close()


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_any_field_of_a_frame_may_be_forged(first: int) -> None:
    for seed in range(first, first + 100):
        check_reading(seed)


# --- over a real worker's connection ----------------------------------------------------------------


def forge(seed: int) -> None:
    """In a worker: from now on one field of some of what it sends is another than it should be."""
    from evenload.executor.worker import worker

    rng = random.Random(seed)
    fields, head, put = worker._fields, Outbox._head, Lender.put

    def forged_fields(answer: Answer) -> tuple:
        return forged_answer(rng, fields(answer)) if rng.random() < 0.7 else fields(answer)

    def forged_head(
        self: Outbox, frame: Frame, is_first: Any, n_body: int, table: bytes, checksum: int
    ) -> bytes:
        if rng.random() < 0.7:
            at = rng.randrange(4)
            frame = Frame(frame.kind, frame.task, frame.chunk, frame.body, frame.buffers)
            if at == 0:
                frame.kind = choose(rng, 255)
            elif at == 1:
                is_first = 1 - is_first
            elif at == 2:
                frame.chunk = choose(rng, 2**64 - 1)
            else:
                n_body = choose(rng, 2**64 - 1)
        return head(self, frame, is_first, n_body, table, checksum)

    def forged_put(self: Lender, buffer: memoryview) -> ArenaPiece | None:
        piece = list(put(self, buffer) or ())
        at = rng.randrange(3)
        if piece:
            piece[at] = choose(rng, 2 ** (32 if at == 0 else 64) - 1)
        return ArenaPiece(*piece) if piece else None

    kind = seed % 3
    if kind == 0:
        worker._fields = forged_fields  # type: ignore[assignment]
    elif kind == 1:
        Outbox._head = forged_head  # type: ignore[method-assign]
    else:
        Lender.put = forged_put  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor("cpu*2", echo=False) as executor:
        yield executor


def check_running(executor: Executor, seed: int) -> None:
    large = b"x" * 70_000

    def task(x: int) -> tuple[int, bytes]:
        if x in (2, 5):
            forge(seed * N_ITEMS + x)
        return x, large if seed % 3 == 2 else b""

    repeatable = bool(seed % 2)
    values = list(executor.map(task, range(N_ITEMS), on_error="return", repeatable=repeatable))
    assert len(values) == N_ITEMS
    for x, value in enumerate(values):
        is_right = isinstance(value, EvenloadError) or value[0] == x
        assert is_right, f"seed {seed}: {value!r}"
    assert list(executor.map(abs, range(5))) == list(range(5)), f"seed {seed}: not usable afterwards"


@pytest.mark.parametrize("seed", range(6))
def test_a_real_worker_may_forge_what_it_sends(executor: Executor, seed: int) -> None:
    check_running(executor, seed)


def test_one_that_never_says_that_it_has_built_its_task_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from evenload.executor.supervisor import start_watch, supervisor

    limits = start_watch.StartLimits(build_s=2.0)
    monkeypatch.setattr(supervisor, "StartLimits", lambda: limits)
    monkeypatch.setattr(start_watch, "LOOK_S", 0.0)

    class Model:
        def __init__(self) -> None:
            Outbox.send = lambda self, frame: True  # type: ignore[method-assign, assignment]

        def __call__(self, x: int) -> int:
            return x

    Model.__qualname__ = "Model"
    with Executor("cpu*1", echo=False) as executor:
        with pytest.raises(EvenloadError) as caught:
            list(executor.map(Model, range(3)))
        assert "had not built Model and shown no sign of life for" in str(caught.value)
