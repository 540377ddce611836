"""Objects that hold large buffers, there and back through shared memory and through pipes."""

import functools
import os
import pickle
import sys
import threading
from typing import Any

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from evenload.events import EventLog, Note, Span
from evenload.executor import Executor
from evenload.executor.transport.pickling import OUT_OF_BAND_BYTES, mark_large, pack
from evenload.executor.transport.wire import Frame, Inbox, Outbox, unpack
from evenload.executor.worker.memory import SharedMemory

LIMIT = 64 * 1024 * 1024
N_LARGE = OUT_OF_BAND_BYTES // 8  # float64 that make a buffer worth sharing


class Line:
    """A pipe with an arena beside it, and both ends in this process."""

    def __init__(self, limit: int = LIMIT):
        self.memory = SharedMemory(limit)
        self.arenas = self.memory.open()
        self.fds = os.pipe()
        lender = borrower = None
        if self.arenas is not None:
            from evenload.executor.transport.arena import Borrower

            lender, borrower = self.arenas.lender, Borrower(self.arenas.theirs[0])
        self.outbox = Outbox(self.fds[1], lender)
        self.inbox = Inbox(self.fds[0], borrower, self.arenas.theirs[2] if self.arenas else -1)

    def carry(self, obj: Any) -> Any:
        body, buffers = pack(obj)
        sending = threading.Thread(target=self.outbox.send, args=(Frame(1, body=body, buffers=buffers),))
        sending.start()
        frames: list[Frame] = []
        while not frames:
            frames = self.inbox.read() or []
        sending.join(timeout=500)
        return unpack(frames[0])

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (*self.fds, *(self.arenas.own if self.arenas else ())):
            os.close(fd)
        self.memory.close()


@pytest.fixture(scope="module", params=[LIMIT, 0], ids=["shared", "pipe"])
def line(request: pytest.FixtureRequest) -> Any:
    with Line(request.param) as line:
        yield line


class Labelled(np.ndarray):
    """An array of a class of its own."""


arrays = hnp.arrays(
    dtype=st.sampled_from(["f8", "f4", "i8", "i2", "u1", "c16", "?", "M8[s]", "S5", "f8,i4"]),
    shape=st.one_of(st.just((0,)), st.just((3, 0, 2)), st.tuples(st.integers(1, 40), st.integers(1, 3))),
    elements=None,
    fill=st.nothing(),
)


def grown(array: np.ndarray, how: str) -> np.ndarray:
    """A large array of the same kind, laid out in the given way."""
    large = np.tile(array, (OUT_OF_BAND_BYTES // max(array.nbytes, 1) + 1,) + (1,) * (array.ndim - 1))
    if how == "fortran":
        return np.asfortranarray(large)
    if how == "strided":
        return large[::2]
    if how == "reversed":
        return large[::-1]
    if how == "transposed":
        return large.T
    if how == "read-only":
        large.flags.writeable = False
    if how == "subclass":
        return large.view(Labelled)
    return large


@settings(max_examples=examples(60), deadline=None)
@given(
    st.data(),
    st.sampled_from(["plain", "fortran", "strided", "reversed", "transposed", "read-only", "subclass"]),
    st.booleans(),
)
def test_arrays_of_every_layout_arrive_as_they_were(line: Line, data: Any, how: str, is_large: bool) -> None:
    array = data.draw(arrays)
    array = grown(array, how) if is_large and array.size else array
    got = line.carry({"array": array, "beside": [1, "two"]})
    assert got["beside"] == [1, "two"]
    assert type(got["array"]) is type(array)
    assert got["array"].dtype == array.dtype
    assert got["array"].shape == array.shape
    as_numpy_does = pickle.loads(pickle.dumps(array, protocol=5))  # dates are writable afterwards in any case
    assert got["array"].flags.writeable == as_numpy_does.flags.writeable
    assert got["array"].tobytes() == array.tobytes()


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=50), st.integers(0, 200_000)), max_size=6), st.booleans())
def test_bytes_arrive_as_they_were(line: Line, sizes: list[Any], is_array: bool) -> None:
    values: list[Any] = [size if isinstance(size, bytes) else os.urandom(size) for size in sizes]
    if is_array:
        values = [bytearray(value) for value in values]
    got = line.carry(mark_large(values))
    assert list(map(type, got)) == list(map(type, values))
    assert got == values
    assert line.carry({"within": tuple(values)}) == {"within": tuple(values)}


def test_an_array_is_copied_once_on_its_way_there_and_once_on_its_way_back(monkeypatch: Any) -> None:
    """From where the sender has it straight into the shared memory where the receiver reads it."""
    from evenload.executor.transport import arena

    copied: list[int] = []
    copy = arena._copy

    def noted(buffer: memoryview, *where: Any) -> None:
        copied.append(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])
        copy(buffer, *where)

    def in_worker(array: Any) -> tuple[list[int], int, Any]:
        """The addresses copied for the last result, that of this one, and this result."""
        import numpy

        from evenload.executor.transport import arena as there

        seen = vars(there).setdefault("seen_by_test", [])
        if not seen:
            seen.append(None)
            before = there._copy
            there._copy = lambda buffer, *where: (
                seen.append(numpy.frombuffer(buffer, numpy.uint8).__array_interface__["data"][0]),
                before(buffer, *where),
            )
        copies, result = seen[1:], array + 1
        del seen[1:]
        return copies, result.__array_interface__["data"][0], result

    monkeypatch.setattr(arena, "_copy", noted)
    arrays = [np.full(2**20, n, np.float64) for n in range(4)]  # 8 MB each
    with Executor("cpu*1", echo=False) as executor:
        results = list(executor.map(in_worker, arrays, policy="pull"))
    assert copied == [array.__array_interface__["data"][0] for array in arrays]
    sent = [address for _, address, _ in results]
    assert [copies for copies, _, _ in results[1:]] == [[address] for address in sent[:-1]]
    assert [int(result[0]) for _, _, result in results] == [1, 2, 3, 4]


class TestTensors:
    @pytest.fixture(autouse=True)
    def torch(self) -> Any:
        self.torch = pytest.importorskip("torch", reason="torch is not installed")

    def test_tensors_of_every_kind_arrive_as_they_were(self, line: Line) -> None:
        torch = self.torch
        large = torch.arange(100_000, dtype=torch.float32)
        kinds = [
            torch.zeros(0),
            torch.tensor(3.5),
            torch.ones(3, dtype=torch.bfloat16),
            large,
            large.reshape(100, 1000).T,
            large.to(torch.float16),
            large.to(torch.complex64).conj(),
            large.expand(3, -1),
            torch.nn.Parameter(large.clone()),
            large.clone().requires_grad_(),
            torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,), check_invariants=True),
        ]
        for tensor, got in zip(kinds, line.carry(kinds), strict=True):
            assert type(got) is type(tensor)
            assert (got.dtype, got.shape, got.requires_grad) == (
                tensor.dtype,
                tensor.shape,
                tensor.requires_grad,
            )
            assert torch.equal(got.to_dense() if got.is_sparse else got, tensor.to_dense()
                               if tensor.is_sparse else tensor)  # fmt: skip
            if got.layout is torch.strided and not got.is_conj():
                assert got.stride() == tensor.stride()

    def test_nothing_large_is_inside_the_pickle(self) -> None:
        body, buffers = pack([self.torch.zeros(100_000), {"state": self.torch.nn.Linear(300, 300)}])
        assert len(buffers) == 2
        assert len(body) < 4000

    def test_tensors_that_share_memory_do_so_afterwards(self, line: Line) -> None:
        whole = self.torch.arange(100_000.0)
        first, second, part = line.carry([whole, whole.view(100, 1000), whole[10:20]])
        first[15] = -1.0
        assert second[0, 15] == part[5] == -1.0
        tied = self.torch.nn.Linear(300, 300, bias=False)
        other = self.torch.nn.Linear(300, 300, bias=False)
        other.weight = tied.weight
        one, two = line.carry([tied, other])
        assert one.weight is two.weight

    def test_a_small_view_of_much_travels_alone(self) -> None:
        rows = self.torch.zeros(1000, 20_000)
        body, buffers = pack([rows[5], rows[7]])
        assert sum(buffer.nbytes for buffer in buffers) == 2 * 20_000 * 4
        got = pickle.loads(body, buffers=[bytearray(buffer) for buffer in buffers])
        assert self.torch.equal(got[1], rows[7])


# --- with workers -------------------------------------------------------------------------------------------


def double(array: np.ndarray) -> np.ndarray:
    return array * 2


class Keeper:
    """Keeps every array that it is given, and says in the end what they are then."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []

    def __call__(self, array: np.ndarray | None) -> list[float]:
        if array is None:
            return [float(kept[0]) if (kept == kept[0]).all() else -1.0 for kept in self.arrays]
        self.arrays.append(array)
        return []


def scaled(x: int, *, weights: np.ndarray) -> tuple[float, bool, int]:
    before = float(weights[x])
    weights[x] = -1.0
    return before, type(weights.base).__name__ == "mmap" or weights.base is not None, os.getpid()


def test_results_outlive_the_executor_and_may_be_written_to() -> None:
    items = [np.full(N_LARGE * 4, float(x)) for x in range(12)]
    with Executor("cpu*2", echo=False) as executor:
        results = list(executor.map(double, items))
        again = list(executor.map(double, results))
    for x in range(12):
        assert (results[x] == 2 * x).all()
        assert (again[x] == 4 * x).all()
        again[x] += 1
        assert (results[x] == 2 * x).all()


def test_what_a_task_keeps_stays_its_own() -> None:
    items = [*(np.full(N_LARGE, float(x)) for x in range(40)), None]
    with Executor("cpu*1", echo=False, policy="pull:1") as executor:
        assert list(executor.map(Keeper, items))[-1] == list(range(40))


@pytest.mark.parametrize("limit", [0, 300_000])
def test_where_there_is_no_room_pipes_carry_it_and_one_warning_says_so(limit: int) -> None:
    events: list[Any] = []
    items = [np.full(N_LARGE * 4, float(x)) for x in range(20)]
    with Executor("cpu*2", echo=False, events=EventLog(events.append), shared_memory_limit=limit) as executor:
        results = list(executor.map(double, items))
    assert [result[-1] for result in results] == [2.0 * x for x in range(20)]
    warnings = [event.text for event in events if isinstance(event, Note) and event.level == "warning"]
    assert len(warnings) == (1 if limit else 0)
    assert not limit or "shared_memory_limit" in warnings[0]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_without_any_shared_memory_everything_works(monkeypatch: pytest.MonkeyPatch) -> None:
    from evenload.executor.worker import memory

    def refuse(name: str, limit: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory, "make_arena_file", refuse)
    events: list[Any] = []
    with Executor("cpu*2", echo=False, events=EventLog(events.append)) as executor:
        results = list(executor.map(double, [np.ones(N_LARGE)] * 4))
    assert all((result == 2).all() for result in results)
    warnings = [event.text for event in events if isinstance(event, Note) and event.level == "warning"]
    assert len(warnings) == 1
    assert "No space left" in warnings[0]


@pytest.mark.parametrize("how", ["shared", "partial", "closure"])
def test_constants_travel_once_and_are_each_workers_own(how: str) -> None:
    weights = np.arange(200_000.0)
    with Executor("cpu*2", echo=False, policy="pull:1") as executor:
        if how == "shared":
            results = executor.map(scaled, range(100), shared={"weights": weights})
        elif how == "partial":
            results = executor.map(functools.partial(scaled, weights=weights), range(100))
        else:
            results = executor.map(lambda x: scaled(x, weights=weights), range(100))
        got = list(results)
        memory = executor._engine.backend._memory  # type: ignore[attr-defined]
        assert memory._n_common == weights.nbytes  # once, and not once per worker or item
    assert [value for value, _, _ in got] == list(range(100))
    assert weights[5] == 5.0


def large(x: int) -> np.ndarray:
    return np.full(N_LARGE * 4, float(x))


@pytest.mark.parametrize("ordered", [True, False])
def test_results_that_nobody_fetches_are_bounded_in_bytes(ordered: bool, come_to_rest: Any) -> None:
    events: list[Any] = []
    one = N_LARGE * 4 * 8
    with Executor("cpu*2", echo=False, events=EventLog(events.append)) as executor:
        results = executor.map(large, range(200), ordered=ordered, look_ahead_bytes=10 * one)
        values = iter(results)
        seen = [float(next(values)[0])]
        n_made = come_to_rest(
            executor, lambda: sum(event.n_items for event in tuple(events) if isinstance(event, Span))
        )
        assert n_made < 10 + 2 * 64, "a limit, and what two workers have of CHUNK_BYTES each"
        seen += [float(value[0]) for value in values]
    assert sorted(seen) == list(range(200))


def test_items_are_not_read_far_ahead_if_they_are_large() -> None:
    n_read = 0

    def read():
        nonlocal n_read
        for x in range(100):
            n_read += 1
            yield np.full(N_LARGE * 4, float(x))

    one = N_LARGE * 4 * 8
    with Executor("cpu*2", echo=False, policy="pull:4") as executor:
        most = 0
        results = executor.map(double, read(), look_ahead_bytes=4 * one)
        for n_seen, result in enumerate(results):
            assert result[0] == 2 * n_seen
            most = max(most, n_read - n_seen)
    assert most < 40


def test_a_worker_that_gets_no_shared_memory_gets_constants_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One had it, so constants lie there; the next is refused some by the system, and must not read zeros."""
    from evenload.executor.worker import memory

    real = memory.make_arena_file
    constant = np.arange(400_000)

    def check(x: int, constant: np.ndarray) -> int:
        if x == 3:
            os._exit(5)
        return int(constant.sum())

    with Executor("cpu*1", echo=False, max_worker_deaths=1) as executor:
        first = executor.map(check, [0], shared={"constant": constant})
        assert list(first) == [int(constant.sum())]

        def refuse(name: str, limit: int) -> int:
            raise OSError(27, "File too large")

        monkeypatch.setattr(memory, "make_arena_file", refuse)
        results = executor.map(check, range(6), shared={"constant": constant}, on_error="return")
        values = list(results)
        monkeypatch.setattr(memory, "make_arena_file", real)
    assert [value for x, value in enumerate(values) if x != 3] == [int(constant.sum())] * 5
