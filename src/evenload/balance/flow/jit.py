"""How kernels are compiled: without the GIL, and kept on disk where a folder can be written to."""

from collections.abc import Callable
from typing import Any

from numba import njit

__all__ = ["compiled", "inlined"]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call, per types of the arguments; division by zero is undefined.

    The cache lies beside the source or in the user's cache folder (``NUMBA_CACHE_DIR`` overrides it); where
    neither can be written to, each process compiles anew. It is renewed when the *file* of the function
    changes: a kernel must therefore never call a compiled function of another file.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder for the cache
        return njit(**options)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A piece of kernels in the same file, compiled into them and never called from Python."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
    return njit(nogil=True, error_model="numpy", **options)(function)
