"""Kernels that are compiled for threads let go of Python's lock, also when they fail."""

import sys
import threading
import time

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch's own compiler

MOST_TURNS = 100  # of another thread, before and after the kernel: allocating lets go of the lock


def unlocked_kernels():
    """Torch's compiler with it is two seconds, in each process of the runner that reads this file."""
    from evenload.clients.fused.inductor import compiling

    return compiling.unlocked_kernels()


def sines(table, at):
    """Of numbers picked from a table, so many that one call shows whether others go on, most often."""
    return [table[at].sin().exp().sin().exp().sin().exp().sin().exp()]


GIVEN = torch.arange(5.0), torch.arange(1 << 20) % 5


def compiled():
    from evenload.clients.fused.inductor.compiling import compile_both

    with unlocked_kernels() as is_known, torch.no_grad():
        assert is_known
        return compile_both(make_fx(sines)(*GIVEN), [*GIVEN], None)[1]


@pytest.fixture
def patient():
    """Whoever has the lock keeps it until he lets go of it himself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("compiler")
def test_another_thread_goes_on_while_a_kernel_runs(patient):
    slow = compiled()
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
            slow(*GIVEN)
            seen.append(turns[0] - before)
        assert max(seen) > MOST_TURNS
    finally:
        is_over.set()
        other.join(timeout=500)


@pytest.mark.usefixtures("compiler")
def test_a_kernel_that_fails_has_the_lock_again():
    pick, (table, at) = compiled(), GIVEN
    torch.testing.assert_close(pick(table, at), sines(table, at))
    with pytest.raises(RuntimeError, match="index out of bounds"):
        pick(table, at + (at == 4))
    torch.testing.assert_close(pick(table, at), sines(table, at))


@pytest.mark.usefixtures("compiler")
def test_what_was_compiled_is_taken_from_the_folder_by_processors_alike(monkeypatch):
    compiled()
    monkeypatch.setattr("torch._inductor.compile_fx.fx_codegen_and_compile", None)
    torch.testing.assert_close(compiled()(*GIVEN), sines(*GIVEN))
    monkeypatch.setattr("torch._inductor.cpu_vec_isa.pick_vec_isa", lambda: "of another width")
    with pytest.raises(Exception, match="NoneType"):  # it would have to be compiled
        compiled()


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
