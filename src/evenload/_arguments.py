"""Arguments of anybody, checked before they are used: each check returns the argument, or raises ConfigError.

A value of any type may be given, one that cannot be compared, printed or counted included. Numbers of NumPy
and of tensors are as good as Python's.
"""

import contextlib
import functools
import inspect
import math
import operator
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

from evenload.errors import ConfigError, UnknownName, quoted

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")
MOST = 1 << 24  # of GPUs, experts, slots
MOST_COUNT = 1 << 62
MOST_S = 1e15  # beyond it all is the same, and sums of any two are still numbers


# --- numbers --------------------------------------------------------------------------------------


def flag(name: str, value: Any) -> bool:
    """``value`` as True or False; 1, 0 and numpy's booleans are as good."""
    if type(value) is bool:
        return value
    if (type(value) is int or type(value).__name__ in ("bool", "bool_")) and value in (0, 1):
        return bool(value)
    raise ConfigError(f"{name}={quoted(value)} is neither True nor False", hint="give one of them")


def whole(name: str, value: Any, *, least: int = 0, most: int | None = MOST) -> int:
    """``value`` as an int from ``least`` to ``most``; truth values are none.

    most  None: there is no limit, and more than anybody could mean is cut
    """
    try:
        found = operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # the latter of tensors
        found = None
    if found is None or _is_truth(value) or found < least or (most is not None and found > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} is {quoted(value)}", hint=f"give a whole number {limits}")
    return min(found, MOST_COUNT) if most is None else found


def number(name: str, value: Any, *, is_zero_allowed: bool = True) -> float:
    """``value`` as a finite float of at least 0."""
    found = _real(value)
    if not 0 <= found < math.inf or not (found or is_zero_allowed):
        least = "of at least 0" if is_zero_allowed else "above 0"
        raise ConfigError(f"{name} is {quoted(value)}", hint=f"give a finite number {least}")
    return found


def seconds(name: str, value: Any) -> float:
    """``value`` as a number above 0; it may be infinite."""
    found = _real(value)
    if not found > 0:
        raise ConfigError(
            f"{name}={quoted(value)} leaves no time", hint="give a number above 0, or leave it out"
        )
    return min(found, MOST_S)


def _real(value: Any) -> float:
    """``value`` as a float; not a number if it is none, infinite if it has too many digits."""
    real: Any = value if isinstance(value, Real) and not _is_truth(value) else math.nan
    try:
        return float(real)
    except OverflowError:
        return math.inf if real > 0 else -math.inf


def _is_truth(value: Any) -> bool:
    return "bool" in str(getattr(value, "dtype", type(value)))


# --- texts and containers -------------------------------------------------------------------------


def choice(name: str, value: Any, known: Sequence[str]) -> str:
    """``value`` if it is among ``known``. Raises UnknownName."""
    if not isinstance(value, str) or value not in known:
        raise UnknownName(name, value, known)
    return value


def folder(name: str, value: Any) -> str:
    """``value`` as the path of a folder."""
    try:
        path = os.fspath(value)
    except TypeError:
        path = b""
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigError(f"{name}={quoted(value)} is no path", hint="give the path of a folder as text")
    refuse_drive(path)
    return path


def refuse_drive(path: str | os.PathLike) -> None:
    """Raise ConfigError for a path of Windows on another system, where it is only an odd name here."""
    drive, rest = os.fspath(path)[:3], os.fspath(path)[3:].replace("\\", "/")
    if os.name != "nt" and re.fullmatch(r"[A-Za-z]:[\\/]", drive):
        raise ConfigError(
            f"{quoted(os.fspath(path), 200)} is a path of Windows, and would only be an odd name here",
            hint=f"give a path of this system: {quoted(f'/mnt/{drive[0].lower()}/{rest}', 200)} in WSL,"
            f" {quoted('./' + os.fspath(path), 200)} if that is its name",
        )


def keywords(name: str, value: Any) -> Mapping[str, Any]:
    """``value`` if it maps names to values."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{name}={quoted(value)} does not map names to values", hint="give a dict")
    return value


def iterated(what: str, value: Any) -> Iterator[Any]:
    """An iterator of ``value``. Raises what its own ``__iter__`` raises beside TypeError."""
    try:
        return iter(value)
    except TypeError:
        raise ConfigError(
            f"{what} is a {type(value).__name__}, which cannot be iterated", hint="give a list"
        ) from None


def length(what: str, value: Any) -> int:
    """How many elements ``value`` has."""
    try:
        return len(value)
    except Exception as error:
        raise ConfigError(
            f"{what} is a {type(value).__name__}, whose length is not known: {quoted(str(error))}",
            hint="give an array or a list",
        ) from error


def sequence(name: str, value: Any) -> tuple[Any, ...]:
    """``value`` as a tuple."""
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        with contextlib.suppress(TypeError):  # an array without dimensions
            return tuple(value)
    raise ConfigError(f"{name}={quoted(value)} is no sequence", hint="give a list or a tuple")


def array_of(name: str, values: Any) -> "NDArray[Any]":
    """``values``, an array, nested lists or a tensor on any device, as an array.

    Tensors of bfloat16 become float32. Raises ConfigError unless they are truth values or real numbers, in
    rows of one length.
    """
    import numpy as np

    if isinstance(values, np.ndarray):
        array = values
    else:
        try:
            if hasattr(values, "detach"):
                values = values.detach().cpu()
                values = values.float() if values.is_floating_point() and values.itemsize == 2 else values
            array = np.asarray(values)
        except (TypeError, ValueError, RuntimeError, OverflowError, NotImplementedError) as error:
            raise ConfigError(
                f"{name} is no array of numbers: {quoted(values)}", hint="give rows of one length"
            ) from error
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"{name} has dtype {array.dtype}", hint=f"give {name} as real numbers")
    return array


def places(name: str, values: Any) -> "NDArray[Any]":
    """``values`` as an int32 array of places, of nodes, GPUs or experts; -1 for none."""
    array = array_of(name, values)
    if array.dtype.kind not in "iu" or not -1 <= array.min(initial=0) <= array.max(initial=0) <= MOST:
        raise ConfigError(f"{name} is {quoted(values)}", hint="give whole numbers, -1 for none")
    return array.astype("int32")


def instance_of(name: str, value: Any, kind: type[T], how: str) -> T:
    """``value``, if it is of ``kind``; ``how`` says where to get one."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {quoted(value)}", hint=f"give {how}")
    return value


def suggests_arguments(made: T) -> T:
    """Have a function or a class raise a TypeError that names the nearest argument to one it does not have.

    For public ones without ``**options`` of others. The signature stays as it is.
    """
    if isinstance(made, type):
        made.__init__ = suggests_arguments(made.__init__)  # pyrefly: ignore
        return made
    function: Any = made
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {one.name for one in inspect.signature(function).parameters.values() if one.kind in kinds}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not known.issuperset(kwargs):
            from difflib import get_close_matches

            strange = next(name for name in kwargs if name not in known)
            near = get_close_matches(strange, known - {"self"}, 1, cutoff=0.5)
            meant = f"; did you mean {near[0]}?" if near else ""
            name = function.__qualname__.removesuffix(".__init__")
            raise TypeError(f"{name}() has no argument {quoted(strange)}{meant}")
        return function(*args, **kwargs)

    return call  # pyrefly: ignore
