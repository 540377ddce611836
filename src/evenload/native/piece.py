"""Functions that kernels written in Python are put together from."""

import functools
from collections.abc import Callable
from typing import Any

from evenload._optional import require


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
