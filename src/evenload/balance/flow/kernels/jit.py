"""How kernels are compiled: without the GIL, and kept on disk where a folder can be written to."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

__all__ = ["compiled", "fingerprint", "inlined"]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call, per types of the arguments; division by zero is undefined.

    The cache lies beside the source or in the user's cache folder (``NUMBA_CACHE_DIR`` overrides it); where
    neither can be written to, each process compiles anew. It is renewed when the *file* of the function
    changes, or a variable that the function takes from the one around it. So a kernel with pieces in other
    files must take their ``fingerprint`` in that way, or it would run with what they were.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder for the cache
        return njit(**options)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A piece of kernels, compiled into them and never called from Python."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
    return njit(nogil=True, error_model="numpy", **options)(function)


def fingerprint(folder: str, *names: str) -> int:
    """Of the sources ``names`` in ``folder``; 0 where they are not there as files, nor is numba's cache."""
    try:
        return zlib.crc32(b"".join(Path(folder, f"{name}.py").read_bytes() for name in names))
    except OSError:
        return 0
