"""Tests by chance, through the executor as a whole: what a worker sends or does costs that worker only."""

import contextlib
import ctypes
import os
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from chaos.deeds import Bomb, InTheChild, Own, scribble, wait_for

from evenload.errors import EvenloadError, ResultNotSendable, WorkerLost
from evenload.executor import Executor
from evenload.executor.transport import wire
from evenload.executor.transport.wire import HEADER, Frame, Inbox, Outbox, ProtocolViolation

# Each of the many workers that end here would import this module, and pytest with it, for its tasks.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

N_ITEMS = 12
SEEDS = range(4)


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor("cpu*2", backend="process", echo=False) as executor:
        yield executor


def check(executor: Executor, task: Callable[[int], Any], seed: int) -> list[Any]:
    """Map ``task``, whose value for x is x; return the errors."""
    policy = ("measured", "pull:1", "pull:4")[seed % 3]
    values = list(executor.map(task, range(N_ITEMS), on_error="return", policy=policy))
    assert len(values) == N_ITEMS
    errors = [value for value in values if isinstance(value, BaseException)]
    assert all(isinstance(error, EvenloadError) for error in errors)
    wrong = [(x, v) for x, v in enumerate(values) if v != x and not isinstance(v, BaseException)]
    assert not wrong, f"seed {seed}: {wrong}"
    assert list(executor.map(abs, range(5))) == list(range(5)), f"seed {seed}: not usable afterwards"
    return errors


# --- what the pipe carries ------------------------------------------------------------------------


def test_any_damage_to_a_stream_is_noticed_before_a_frame_is_believed() -> None:
    read, write = os.pipe()
    outbox = Outbox(write)
    for number in range(5):
        outbox.send(Frame(14, 1, number, os.urandom(100 * number), [os.urandom(50)] * (number % 2)))
    raw = os.read(read, 1 << 20)
    os.close(write)
    os.close(read)
    rng = random.Random(1)
    for _ in range(2000):
        at = rng.randrange(len(raw))
        mutant = rng.choice(
            (
                raw[:at] + rng.randbytes(rng.randrange(1, 50)) + raw[at:],
                raw[:at] + raw[at + 1 + rng.randrange(40) :],
                raw[at:] + raw[:at],
            )
        )
        memory = os.memfd_create("mutant")
        os.write(memory, mutant)
        os.lseek(memory, 0, os.SEEK_SET)
        inbox, frames = Inbox(memory), []
        with contextlib.suppress(EOFError):
            try:
                while True:
                    frames += inbox.read() or []
            except ProtocolViolation as violation:
                frames += violation.frames
        os.close(memory)
        assert [frame.chunk for frame in frames] == list(range(len(frames)))
        good = Outbox(os.open(os.devnull, os.O_WRONLY))
        for frame in frames:
            good.add(frame)
        good._close_small()
        assert b"".join(good._pieces) == raw[: sum(map(len, good._pieces))]
        os.close(good._fd)


def test_a_length_that_cannot_be_is_not_waited_for() -> None:
    read, write = os.pipe()
    os.write(write, HEADER.pack(14, 0, 0, 1, 1, 2**62, 0, 0, 0))
    with pytest.raises(ProtocolViolation):
        Inbox(read).read()
    os.close(read)
    os.close(write)
    assert HEADER.size - 4 == wire.N_SUMMED


# --- what a task does -----------------------------------------------------------------------------


class BreaksAsItIsRead:
    def __reduce__(self) -> Any:
        return exec, ("raise LookupError",)


@pytest.mark.parametrize(
    ("form", "end", "with_libc"),
    [
        ("chunk", "return", True),
        ("chunk", "exit", True),
        ("chunk", "raise", False),
        ("batch", "return", False),
        ("batch", "raise", True),
        ("batch run singly", "return", True),
    ],
)
def test_a_forked_child_runs_none_of_the_items_that_follow(
    executor: Executor, tmp_path: Path, form: str, end: str, with_libc: bool
) -> None:
    notes = tmp_path / "began"

    def task(given: Any) -> Any:
        worker = os.getpid()
        for x in given if isinstance(given, list) else [given]:
            with open(notes, "a") as file:
                file.write(f"{x} {worker}\n")
            if x in (1, 6):
                pid = (ctypes.CDLL(None).fork if with_libc else os.fork)()
                if pid:
                    wait_for(pid)
                    with open(tmp_path / f"child-{pid}", "w"):
                        pass
                elif end != "return":
                    raise InTheChild if end == "raise" else SystemExit(7)
                else:
                    return given
        return given

    items: list[Any] = list(range(N_ITEMS))
    if form == "batch run singly":
        items[3] = items[8] = BreaksAsItIsRead()
    how: dict[str, Any] = {"policy": "pull:4"} if form == "chunk" else {"batch": 4, "repeatable": False}
    values = list(executor.map(task, items, on_error="return", **how))
    assert [v for v in values if not isinstance(v, BaseException)] == [x for x in items if type(x) is int]
    began = [line.split() for line in notes.read_text().splitlines()]
    children = {path.name.removeprefix("child-") for path in tmp_path.glob("child-*")}
    assert len(children) == 2
    assert not [x for x, pid in began if pid in children], "run by a child"
    assert sorted(int(x) for x, _ in began) == [x for x in items if type(x) is int], "each once"


@pytest.mark.parametrize("raises", [SystemExit, KeyboardInterrupt, MemoryError, Own])
def test_a_result_that_cannot_be_unpickled_is_its_items_error(
    executor: Executor, raises: type[BaseException]
) -> None:
    values = list(executor.map(lambda x: Bomb(raises) if x == 3 else x, range(8), on_error="return"))
    assert [v for x, v in enumerate(values) if x != 3] == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(values[3], ResultNotSendable)
    assert raises.__name__ in values[3].message
    future = executor.submit(Bomb, raises)
    assert isinstance(future.exception(), ResultNotSendable)
    assert list(executor.map(abs, range(5))) == list(range(5))


def test_what_hears_of_a_result_may_raise_anything(executor: Executor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def behind_a_gate(x: int) -> int:
        while not gate.exists():
            time.sleep(0.01)
        return x

    future = executor.submit(behind_a_gate, 1)
    future.add_done_callback(lambda _: sys.exit("from a callback"))  # in the engine's thread, not in ours
    gate.touch()
    assert future.result(timeout=500) == 1
    assert list(executor.map(abs, range(5))) == list(range(5))


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_in_the_memory_that_tells_its_progress_may_be_any(executor: Executor, seed: int) -> None:
    """What is to be skipped stands there, too: a worker that skips all it gets must not get it for ever."""

    def task(x: int) -> int:
        if x in (2, 7):
            rng = random.Random(seed * N_ITEMS + x)
            values = [rng.choice((0, -1, 1, 2**62, rng.randrange(-(2**63), 2**63))) for _ in range(5)]
            with open("/proc/self/maps") as maps:  # as a wild pointer does; the file itself is sealed
                starts = [line.partition("-")[0] for line in maps if "evenload-place" in line]
            for start in starts:
                ctypes.memmove(int(start, 16), struct.pack("5q", *values), 40)
            assert starts
        return x

    check(executor, task, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_constant_that_all_workers_share_is_damaged_by_none(executor: Executor, seed: int) -> None:
    numpy = pytest.importorskip("numpy")
    constant = numpy.arange(200_000)

    class Task:
        def __init__(self, constant: Any):
            self.constant = constant

        def __call__(self, x: int) -> int:
            rng = random.Random(seed * N_ITEMS + x)
            if x % 3 == 1:
                scribble(rng)
                for fd in range(3, 64):  # also behind the header of an arena
                    with contextlib.suppress(OSError):
                        os.pwrite(fd, rng.randbytes(100_000), 2 * 2**20)
            return x if int(self.constant.sum()) == 19_999_900_000 else -1

    values = list(executor.map(Task, range(N_ITEMS), on_error="return", shared={"constant": constant}))
    wrong = [(x, v) for x, v in enumerate(values) if v != x and not isinstance(v, BaseException)]
    assert not wrong, f"seed {seed}"
    assert int(constant.sum()) == 19_999_900_000


def test_a_constant_without_room_in_the_common_memory_is_damaged_by_no_write_of_its_worker() -> None:
    """Oracle: the sum of the constant. Half of the shared memory is the most that constants may take."""
    numpy = pytest.importorskip("numpy")
    constant = numpy.arange(400_000)  # 3.2 MB of 4 MB

    class Task:
        def __init__(self, constant: Any):
            self.constant = constant

        def __call__(self, x: int) -> int:
            for fd in range(3, 64):  # each arena begins with a header of 2 MiB
                with contextlib.suppress(OSError):
                    os.pwrite(fd, b"x" * 100_000, 2 * 2**20)
            return int(self.constant.sum())

    with Executor("cpu*1", backend="process", echo=False, shared_memory_limit=4_000_000) as own:
        assert [*own.map(Task, range(2), shared={"constant": constant})] == [int(constant.sum())] * 2


def test_a_worker_that_spoils_its_pipe_is_named_as_the_reason(executor: Executor) -> None:
    def task(x: int) -> int:
        if x == 3:
            for fd in range(3, 64):
                with contextlib.suppress(OSError):
                    os.write(fd, b"not a frame" * 10)
        return x

    values = list(executor.map(task, range(6), on_error="return", repeatable=False))
    assert [v for v in values if not isinstance(v, BaseException)] == [0, 1, 2, 4, 5]
    assert isinstance(values[3], WorkerLost)
    assert "wrote into evenload's own pipe" in values[3].message
