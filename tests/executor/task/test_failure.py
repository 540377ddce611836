"""Exceptions on their way from a worker to whoever asked."""

import copyreg
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.errors import TaskError
from evenload.executor.task.failure import MOST_TEXT, Failure, is_memory_error


def caught(error: BaseException) -> BaseException:
    """``error`` with a traceback, caught one frame above where it was raised."""

    def raise_it() -> None:
        raise error

    try:
        raise_it()
    except BaseException as here:
        return here


class Awkward(Exception):
    """Pickles, and cannot be unpickled: its constructor wants more than its ``args``."""

    def __init__(self, a: str, b: str):
        super().__init__(a)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def travelled(error: BaseException, kind: str = "raised") -> Failure:
    return pickle.loads(pickle.dumps(Failure.of(caught(error), kind)))


def test_the_cause_and_its_traceback_arrive() -> None:
    error = travelled(ValueError("five")).to_error(5, "cpu:1")
    assert type(error) is TaskError
    assert (error.index, error.device) == (5, "cpu:1")
    assert isinstance(error.__cause__, ValueError)
    assert error.__cause__.args == ("five",)
    assert "item 5 raised ValueError: five" in error.message
    assert "raise_it" in error.remote_traceback
    assert "in caught" not in error.remote_traceback, "starts with the user's code"


def test_what_cannot_be_rebuilt_arrives_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(
        copyreg.dispatch_table, Awkward, raising=False
    )  # tblib's way, if a test imported that
    failure = travelled(Awkward("a", "b"))
    assert failure.pickled is None
    error = failure.to_error(0, "cpu:0")
    assert error.__cause__ is None
    assert "Awkward: a" in error.message


def test_an_exception_without_text_or_with_too_much() -> None:
    assert "Unprintable" in travelled(Unprintable()).to_error(0, None).message
    assert len(travelled(ValueError("x" * 100_000)).traceback) <= MOST_TEXT + 10


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("shapes do not fit"), False),
        (ValueError("the word list is out of memory words"), False),
    ],
)
def test_errors_that_smaller_batches_may_mend(error: BaseException, is_one: bool) -> None:
    assert is_memory_error(error) == is_one


def test_the_error_of_a_real_allocator_is_recognised() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_memory_error(refused.value)


TOLD = (
    "args",
    "__class__",
    "__traceback__",
    "__notes__",
    "__cause__",
    "__dict__",
    "__reduce_ex__",
    "__str__",
)


@given(st.sets(st.sampled_from(TOLD)), st.sampled_from([SystemExit, RuntimeError, KeyboardInterrupt]))
def test_an_exception_that_tells_nothing_is_told_all_the_same(names: set[str], kind: type) -> None:
    class Reticent(RuntimeError):
        def __getattribute__(self, name: str) -> object:
            if name in names:
                raise kind(name)
            return super().__getattribute__(name)

    try:
        raise Reticent("why")
    except Reticent as error:
        failure = Failure.of(error)
    assert (failure.type_name, failure.kind) == ("Reticent", "raised")
    assert isinstance(failure.to_error(3, "cpu:0"), TaskError)
