"""Options of anybody, checked before they are used: each check returns the option, or raises ConfigError.

A value of any type may be given, one that cannot be compared, printed or counted included.
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from evenload.errors import ConfigError, UnknownName, quoted

__all__ = [
    "choice",
    "count",
    "flag",
    "folder",
    "iterated",
    "keywords",
    "length",
    "seconds",
    "sequence",
]

MOST_COUNT = 1 << 62
MOST_S = 1e15  # beyond it all is the same, and sums of any two are still numbers


def flag(name: str, value: Any) -> bool:
    """``value`` as True or False; 1, 0 and numpy's booleans are as good."""
    if type(value) is bool:
        return value
    if (type(value) is int or type(value).__name__ in ("bool", "bool_")) and value in (0, 1):
        return bool(value)
    raise ConfigError(f"{name}={quoted(value)} is neither True nor False", hint="give one of them")


def count(name: str, value: Any, least: int) -> int:
    """``value`` as a whole number of at least ``least``; more than anybody could mean is cut."""
    if not isinstance(value, Integral) or value < least:
        raise ConfigError(
            f"{name}={quoted(value)} is not a whole number of at least {least}",
            hint="give one, or leave it out",
        )
    return min(int(value), MOST_COUNT)


def seconds(name: str, value: Any) -> float:
    """``value`` as a number above 0; it may be infinite."""
    number: Any = value if isinstance(value, Real) and not isinstance(value, bool) else -1
    if not number > 0:
        raise ConfigError(f"{name}={quoted(value)} leaves no time", hint="give seconds, or None")
    return float(min(number, MOST_S))


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
    return path


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
