"""Kernels that are compiled for threads let go of Python's lock, also when they fail."""

import sys
import threading
import time

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch's own compiler

MOST_TURNS = (
    100  # of another thread, which it gets before and after the kernel: allocating lets go of the lock
)


def unlocked_kernels():
    """Torch's compiler with it is two seconds, in each process of the runner that reads this file."""
    from evenload.clients.fused.inductor import compiling

    return compiling.unlocked_kernels()


def compiled(fn, *example):
    graph = make_fx(fn)(*example)
    with unlocked_kernels() as is_known, torch.no_grad():
        assert is_known
        return torch._inductor.compile(graph, list(example))


@pytest.fixture
def patient():
    """Whoever has the lock keeps it until he lets go of it himself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("compiler")
def test_another_thread_goes_on_while_a_kernel_runs(patient):
    def many_sines(x):
        for _ in range(20):  # so long that one call shows it, most often
            x = x.sin().exp()
        return [x]

    x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    slow = compiled(many_sines, x)
    is_over, turns = threading.Event(), [0]

    def count():
        while not is_over.is_set():
            turns[0] += 1
            time.sleep(1e-5)

    other = threading.Thread(target=count)
    other.start()
    try:
        seen = []
        while len(seen) < 200 and max(seen, default=0) <= MOST_TURNS:
            before = turns[0]
            slow(x)
            seen.append(turns[0] - before)
        assert max(seen) > MOST_TURNS
    finally:
        is_over.set()
        other.join(timeout=500)


@pytest.mark.usefixtures("compiler")
def test_a_kernel_that_fails_has_the_lock_again():
    table, at = torch.arange(5.0), torch.tensor([1, 4])
    pick = compiled(lambda table, at: [table[at] * 2], table, at)
    assert pick(table, at)[0].tolist() == [2.0, 8.0]
    with pytest.raises(RuntimeError, match="index out of bounds"):
        pick(table, torch.tensor([1, 5]))
    assert pick(table, at)[0].tolist() == [2.0, 8.0]


def test_the_compiler_is_left_as_it_was(monkeypatch):
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    before = CppPythonBindingsCodeCache.call_entry_function
    inside = []

    def fail():
        with unlocked_kernels():
            inside.append(CppPythonBindingsCodeCache.call_entry_function)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert inside != [before]
    assert before == CppPythonBindingsCodeCache.call_entry_function
    monkeypatch.setattr(CppPythonBindingsCodeCache, "call_entry_function", "something_new({});")
    with unlocked_kernels() as is_known:
        assert not is_known
        assert CppPythonBindingsCodeCache.call_entry_function == "something_new({});"


def doubled(t):
    t.add_(t)
    return [t.sum()]


@pytest.mark.parametrize(
    ("inner", "is_taken"),
    [
        (lambda t: [t.add_(t).sum()], True),
        (lambda t: [(2 * t).sum()], False),  # leaves its argument as it was
        (lambda t: [t.add_(t).sum() + 1], False),
        (lambda t: [t.add_(t).sum(), t], False),
        (lambda t: 1 / 0, False),
        (None, False),
    ],
)
def test_the_inner_function_is_taken_only_where_it_does_the_same(inner, is_taken, monkeypatch):
    from evenload.clients.fused.inductor import compiling

    monkeypatch.setattr(compiling, "compile_both", lambda graph, example, options: (doubled, inner))
    example = torch.ones(3)
    run = compiling.compile_directly(None, [example], None)
    assert run is (inner if is_taken else doubled)
    assert example.tolist() == [1, 1, 1]
    assert run(example)[0] == 6
    assert example.tolist() == [2, 2, 2]
