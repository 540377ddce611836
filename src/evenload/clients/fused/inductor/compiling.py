"""Compiling for clients: functions without torch's wrapper, and kernels that let other threads run.

torch wraps what it compiles for graphs with gradients and aliases, in a tenth of the time of a small step.

torch's own kernels release Python's global lock, and so do products in a compiled step. The loops that the
compiler fuses for a CPU are called through a few lines of C++ that keep it, so threads would take turns in
most of a step. The compiler has those lines as a text, which is replaced while a step is compiled.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule


class DirectCall:
    """The function inside, as the compiler made it: ``function`` takes a list, which it empties."""

    def __init__(self, function: Callable[[list[Tensor]], Any]):
        self.function = function

    def __call__(self, *tensors: Tensor) -> Any:
        return self.function([*tensors])


def compile_directly(
    graph: GraphModule, example: list[Tensor], options: dict[str, Any] | None
) -> Callable[..., Any]:
    """Compile ``graph``; the inner function if it does what the wrapped one does, else the wrapped one.

    ``options`` are the compiler's. Raises whatever the compiler raises.
    """
    wrapped, inner = compile_both(graph, example, options)
    return inner if inner is not None and is_same(inner, wrapped, example) else wrapped


def compile_both(
    graph: GraphModule, example: list[Tensor], options: dict[str, Any] | None
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """The compiled graph as torch wraps it, and the function inside; None if there is not exactly one."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner  # two seconds

    made: list[Any] = []

    def note_inner(*args: Any, **kwargs: Any) -> Any:
        made.append(compile_fx_inner(*args, **kwargs))
        return made[-1]

    with remembered_graphs():
        wrapped: Any = compile_fx(graph, [*example], note_inner, config_patches=options)
    if len(made) != 1 or not callable(made[0]):
        return wrapped, None
    inner = getattr(made[0], "current_callable", None) or made[0]
    return wrapped, DirectCall(inner)


@contextmanager
def remembered_graphs() -> Iterator[None]:
    """Let the compiler look in its folder for what it made of a graph, and keep there what it makes.

    Otherwise it does so only for graphs of torch.compile, and a process that compiles what another did finds
    single kernels: it would take twice as long. Does nothing where torch has no such folder, as before 2.6.
    """
    from torch._functorch import config as gradients
    from torch._guards import TracingContext, tracing
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    own: Any = getattr(torch.compiler, "config", None)
    if not hasattr(own, "cache_key_tag") or not hasattr(gradients, "enable_autograd_cache"):
        yield
        return
    # Loops are written for as many threads and as wide a processor, and another may share the folder.
    tag = f"{own.cache_key_tag} {pick_vec_isa()} {torch.get_num_threads()}"
    sizes = TracingContext(FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True))
    # A wrapped function from the folder would come without the function inside.
    with own.patch(cache_key_tag=tag), gradients.patch(enable_autograd_cache=False), tracing(sizes):
        yield


def is_same(inner: Callable[..., Any], wrapped: Callable[..., Any], example: list[Tensor]) -> bool:
    """Do both give the same bits for the same arguments, and change the arguments in the same way?"""
    runs = []
    for function in (inner, wrapped):
        arguments = [t.clone() for t in example]
        try:
            with torch.no_grad():
                runs.append([*function(*arguments), *arguments])
        except Exception:
            return False
    return len(runs[0]) == len(runs[1]) and all(
        a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(*runs, strict=True)
    )


# torch 2.13, torch/_inductor/codecache.py: what a kernel's binding does with its parsed arguments.
KEEPS = "kernel({}); Py_RETURN_NONE;"
# The arguments are parsed before the call, with the lock. A kernel may throw, and the handler needs the lock.
LETS_GO = """
[](auto... args) {{
    struct Unlocked {{
        PyThreadState* state = PyEval_SaveThread();
        ~Unlocked() {{ PyEval_RestoreThread(state); }}
    }} unlocked;
    kernel(args...);
}}({});
Py_RETURN_NONE;
"""

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def unlocked_kernels() -> Iterator[bool]:
    """Let kernels that are compiled inside the block release the lock while they run.

    Yields False, and changes nothing, if this torch's compiler calls kernels in a way that is not known here.
    """
    from torch._inductor.codecache import CppPythonBindingsCodeCache as binding  # seconds: with the compiler

    with _ONE_AT_A_TIME:
        is_known = getattr(binding, "call_entry_function", None) == KEEPS
        if is_known:
            binding.call_entry_function = LETS_GO
        try:
            yield is_known
        finally:
            if is_known:
                binding.call_entry_function = KEEPS
