"""Kernels written in Python: compiled by numba once, run as plain machine code that needs no numba.

``compiled`` makes a function a kernel, ``inlined`` a piece of kernels. For each set of argument types a
kernel has an *entry*: a C function that takes the addresses of Python's arrays as they are, checks their
types and layout itself, and refuses what it was not made for. So a call costs about a microsecond, and no
entry can be called with arrays of other types.
"""

import ctypes
import functools
import hashlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from evenload._optional import require
from evenload.native import machine, objects
from evenload.native.code_hash import hash_of_function
from evenload.native.signature import (
    FAILED,
    REFUSED,
    Leaf,
    Named,
    Unsupported,
    flat,
    leaves,
    signature_of,
    text_of,
)  # fmt: skip

ENTRY_VERSION = 1  # of what emit.py writes around a kernel: a new one makes all objects anew
kernels_used: set[tuple["Kernel", tuple[Leaf | Named, ...]]] = set()  # by this process, and with which types
_lock = threading.RLock()


def compiled(function: Callable[..., Any]) -> Any:
    """Make a kernel: it runs without the GIL, and division by zero is undefined.

    It returns an integer, a float, a truth value or nothing, and its arguments are as in signature.py; with
    others it is compiled by numba in each process.
    """
    return Kernel(function)


def inlined(function: Callable[..., Any]) -> Any:
    """A piece of kernels, compiled into them and never called from Python."""
    return Piece(function)


def piece(function: Callable[..., Any]) -> Any:
    """Like ``inlined``, but left to the compiler whether to inline."""
    return Piece(function, forceinline=False)


class Piece:
    """A function for kernels to call; to numba it is what ``dispatcher`` is."""

    def __init__(self, function: Callable[..., Any], *, forceinline: bool = True):
        self.py_func = function
        self._options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": forceinline}
        self.__name__, self.__module__, self.__doc__ = (
            function.__name__, function.__module__, function.__doc__,
        )  # fmt: skip

    @functools.cached_property
    def dispatcher(self) -> Any:
        numba = require("numba", extra="kernels", why="compiling kernels")
        return numba.njit(nogil=True, error_model="numpy", **self._options)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_


class Kernel(Piece):
    """A compiled function. Called from several threads at once it runs in all of them."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        self._options = {}
        self._entries: dict[Any, Callable[..., Any]] = {}
        self._calls: tuple[Callable[..., Any], ...] = ()

    def __call__(self, *args: Any) -> Any:
        for call in self._calls:
            try:
                result = call(*args)
            except ctypes.ArgumentError:
                continue  # a number of numpy's own, or another kind of argument
            if result != REFUSED:
                if result == FAILED:
                    raise MemoryError(f"{self.__name__} found no memory")
                return result
        return self._call_anew(args)

    def as_piece(self) -> Piece:
        """This function, for other kernels to call."""
        return Piece(self.py_func)

    def entry_name(self, signature: tuple[Leaf | Named, ...]) -> str:
        """Names the object file of an entry."""
        return f"{self.__name__}-{hashlib.sha256(text_of(signature).encode()).hexdigest()[:8]}"

    def code_hash(self, signature: tuple[Leaf | Named, ...]) -> str:
        return f"{hash_of_function(self.py_func)} {ENTRY_VERSION} {text_of(signature)}"

    def _call_anew(self, args: tuple[Any, ...]) -> Any:
        try:
            signature = signature_of(args)
        except Unsupported:
            return self.dispatcher(*args)
        if not _has_known_layout():
            return self.dispatcher(*args)
        with _lock:
            entry = self._entries.get(signature)
            if entry is None:
                entry = self._entries[signature] = self._made(signature)
                self._calls = (entry, *self._calls)
        result = (
            entry(*flat(args)) if not any(isinstance(item, Named) for item in signature) else entry(*args)
        )
        if result in (REFUSED, FAILED):
            raise (
                MemoryError(f"{self.__name__} found no memory")
                if result == FAILED
                else TypeError(f"{self.__name__}({text_of(signature)}) refuses its own types")
            )
        return result

    def _made(self, signature: tuple[Leaf | Named, ...]) -> Callable[..., Any]:
        def compile_it() -> bytes:
            from evenload.native.emit import emit, set_processor

            set_processor(*machine.processor())
            return emit(self.as_piece(), signature)

        name = self.entry_name(signature)
        engine, _ = objects.obtained(name, lambda: self.code_hash(signature), compile_it)
        kernels_used.add((self, signature))
        return _callable(engine, signature)


def _callable(engine: Any, signature: tuple[Leaf | Named, ...]) -> Callable[..., Any]:
    """The entry as a function of the kernel's own arguments."""
    for name, known in (("ndarray_type", np.ndarray), ("none", None)):
        ctypes.c_void_p.from_address(engine.get_global_value_address(name)).value = id(known)
    returns_float = ctypes.c_int64.from_address(engine.get_global_value_address("returns_float")).value
    types = [_CTYPES.get(leaf.kind, ctypes.py_object) if leaf.ndim < 0 else ctypes.py_object
             for leaf in leaves(signature)]  # fmt: skip
    of_result = [ctypes.c_void_p] if returns_float else []
    raw = ctypes.CFUNCTYPE(ctypes.c_int64, *types, *of_result)(engine.get_function_address("entry"))
    setattr(raw, "engine", engine)  # noqa: B010 - keeps the machine code alive
    if not returns_float and not any(isinstance(item, Named) for item in signature):
        return raw

    def call(*args: Any) -> Any:
        for arg, item in zip(args, signature, strict=True):
            if isinstance(item, Named) and type(arg) is not item.type:
                return REFUSED
        if not returns_float:
            return raw(*flat(args))
        result = ctypes.c_double()
        status = raw(*flat(args), ctypes.addressof(result))
        return status if status in (REFUSED, FAILED) else result.value

    return call


_CTYPES = {"int": ctypes.c_int64, "bool": ctypes.c_int64, "float": ctypes.c_double}


@functools.cache
def _has_known_layout() -> bool:
    """True if arrays lie in memory as entries read them: NumPy's PyArrayObject in CPython."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != 16 or np.ndarray.__basicsize__ < 80:
        return False
    probe = np.zeros((3, 5), np.int32)
    at = id(probe)
    read: dict[int, Any] = {offset: kind.from_address(at + offset).value for offset, kind in _LAYOUT.items()}
    dims = (ctypes.c_int64 * 2).from_address(read[32])
    number = ctypes.c_int.from_address(read[56] + 28).value
    return (read[8], read[16], read[24], tuple(dims), number) == (
        id(np.ndarray), probe.ctypes.data, 2, (3, 5), probe.dtype.num,
    ) and read[64] & 0x101 == 0x101  # fmt: skip


# Offsets of an array's type, data, number of dimensions, dimensions, dtype and flags (NumPy's C API).
_LAYOUT = {
    8: ctypes.c_void_p, 16: ctypes.c_void_p, 24: ctypes.c_int, 32: ctypes.c_void_p, 56: ctypes.c_void_p,
    64: ctypes.c_int,
}  # fmt: skip
