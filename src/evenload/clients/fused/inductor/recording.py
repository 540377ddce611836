"""What a compiled graph calls, recorded in one run: kernels and products, and the memory they work on.

torch's compiler writes a Python function that makes tensors and calls kernels with them. For one set of
shapes it always calls the same kernels with the same memory, so that one run says all there is to know. A
function is recorded only if it names nothing but what is known here, so that no operation can be missed.
"""

import ctypes
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

KERNEL = "cpp_fused"  # torch 2.13, torch/_inductor/codegen/cpp.py: what names of kernels begin with
MAKE, VIEW, LIBRARY, PRODUCT = "empty_strided_cpu", "reinterpret_tensor", "extern_kernels", "bmm"
KNOWN = {MAKE, VIEW, LIBRARY, PRODUCT, "assert_size_stride", "assert_alignment", "clear", "torch"}
DTYPES = {name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}


@dataclass(frozen=True, slots=True)
class MemorySpan:
    """A tensor's place: ``offset`` bytes into an argument, or into a buffer.

    memory         number of the argument, or of the buffer, which come after the arguments
    shape, stride  in numbers; dtype
    """

    memory: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def transposed(self) -> "MemorySpan":
        """With its last two axes exchanged."""
        (*shape, m, n), (*stride, over, along) = self.shape, self.stride
        return replace(self, shape=(*shape, n, m), stride=(*stride, along, over))


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call of machine code with the addresses of these spans; ``library`` keeps the code loaded."""

    address: int
    spans: tuple[MemorySpan, ...]
    library: Any


@dataclass(frozen=True, slots=True)
class Product:
    """A product of all clients, into [K, m, n] = left [K, m, depth] @ right [K, depth, n].

    alive  if it is there, the product is added, and only where this bool is true
    """

    left: MemorySpan
    right: MemorySpan
    into: MemorySpan
    alive: MemorySpan | None = None

    @property
    def adds(self) -> bool:
        return self.alive is not None


@dataclass(frozen=True, slots=True)
class CallRecording:
    """A run of the graph: its calls in their order.

    buffers  bytes of each buffer; the first is memory number ``n_arguments``
    """

    n_arguments: int
    buffers: tuple[int, ...]
    calls: tuple[KernelCall | Product, ...]
    outputs: tuple[MemorySpan, ...]


class _UnknownError(Exception):
    """The function does what cannot be recorded."""


def record(function: Any, arguments: Sequence[Tensor]) -> CallRecording | None:
    """Run ``function`` of a list, as the compiler made it, and record it; None if it does what is not known.

    The run changes ``arguments`` as any does.
    """
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType) or not _knows_all(function):
        return None
    try:
        memories = _Memories(arguments)
        own = {name: memories.kernel(function.__globals__[name]) for name in _kernels(function)}
        changed = {MAKE: memories.make, LIBRARY: _Library(memories)}
        copy = types.FunctionType(function.__code__, {**function.__globals__, **own, **changed})
        with torch.no_grad():
            receiver = [None] * (function.__code__.co_argcount - 1)
            outputs = [memories.span(t) for t in copy(*receiver, [*arguments])]
    except _UnknownError:
        return None
    return CallRecording(len(arguments), tuple(memories.sizes), tuple(memories.calls), tuple(outputs))


def _kernels(function: types.FunctionType) -> list[str]:
    return [name for name in function.__code__.co_names if name.startswith(KERNEL)]


def _knows_all(function: types.FunctionType) -> bool:
    unknown = {*function.__code__.co_names} - KNOWN - DTYPES - {*_kernels(function)}
    return not unknown and {MAKE, LIBRARY} <= {*function.__globals__}


class _Library:
    """torch's products, noted; whatever else is asked for is not known."""

    def __init__(self, memories: "_Memories"):
        self._memories = memories

    def bmm(self, left: Tensor, right: Tensor, *, out: Tensor) -> None:
        self._memories.calls.append(Product(*map(self._memories.span, (left, right, out))))
        torch.bmm(left, right, out=out)


class _Memories:
    """The arguments and the buffers made so far, which all stay, so that no address is used twice."""

    def __init__(self, arguments: Sequence[Tensor]):
        self.calls: list[KernelCall | Product] = []
        self.sizes: list[int] = []
        self._kept: list[Tensor] = []
        self._numbers: dict[int, int] = {}
        self._begins: list[int] = []
        for t in arguments:
            self._add(t)

    def make(self, *asked: Any) -> Tensor:
        t = torch.empty_strided(*asked[:2], dtype=asked[2])
        self._add(t)
        self.sizes.append(t.untyped_storage().nbytes())
        return t

    def _add(self, t: Tensor) -> None:
        storage = t.untyped_storage()
        if storage.nbytes():  # what has no bytes, as targets that a batch is without, no call works on
            if storage.data_ptr() in self._numbers:
                raise _UnknownError
            self._numbers[storage.data_ptr()] = len(self._begins)
        self._begins.append(t.data_ptr())
        self._kept.append(t)

    def span(self, t: Any) -> MemorySpan:
        if not isinstance(t, Tensor) or t.untyped_storage().data_ptr() not in self._numbers:
            raise _UnknownError
        number = self._numbers[t.untyped_storage().data_ptr()]
        return MemorySpan(number, t.data_ptr() - self._begins[number], tuple(t.shape), t.stride(), t.dtype)

    def kernel(self, kernel: Any) -> Callable[..., None]:
        def noted(*tensors: Any) -> None:
            self.calls.append(KernelCall(*_address(kernel, tuple(map(self.span, tensors)))))
            kernel(*tensors)

        return noted


def _address(kernel: Any, spans: tuple[MemorySpan, ...]) -> tuple[int, tuple[MemorySpan, ...], Any]:
    """The machine code behind ``kernel``: its module is a library that exports it by this name."""
    try:
        library = ctypes.CDLL(kernel.__self__.__file__)
        return ctypes.cast(library.kernel, ctypes.c_void_p).value or 0, spans, library
    except (AttributeError, OSError) as error:
        raise _UnknownError from error
