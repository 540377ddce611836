"""The types of a kernel's arguments, as text for keys and as a plan for its entry.

Arrays in C order of the machine's byte order, whole numbers, floats, truth values, None, and named tuples of
these.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

REFUSED, FAILED = -(1 << 63), -(1 << 63) + 1  # what an entry returns instead of a result


class Unsupported(TypeError):
    """An argument that no entry takes."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One argument: ``kind`` is "none", "int", "float", "bool", or an array's dtype such as "int64"."""

    kind: str
    ndim: int = -1  # below 0: not an array


@dataclass(frozen=True, slots=True)
class Named:
    """A named tuple of arguments."""

    type: type
    items: tuple["Leaf | Named", ...]


def signature_of(args: tuple[Any, ...]) -> tuple[Leaf | Named, ...]:
    """Raises Unsupported."""
    return tuple(_type_of(arg) for arg in args)


def _type_of(arg: Any) -> Leaf | Named:
    if arg is None:
        return Leaf("none")
    if isinstance(arg, bool | np.bool_):
        return Leaf("bool")
    if isinstance(arg, int | np.integer):
        return Leaf("int")
    if isinstance(arg, float | np.floating):
        return Leaf("float")
    if isinstance(arg, np.ndarray):
        if not (
            arg.flags.c_contiguous and arg.flags.aligned and arg.dtype.isnative and arg.dtype.kind in "biuf"
        ):
            raise Unsupported(f"array of {arg.dtype} with strides {arg.strides}")
        return Leaf(arg.dtype.name, arg.ndim)
    if isinstance(arg, tuple) and hasattr(arg, "_fields"):
        return Named(type(arg), signature_of(arg))
    raise Unsupported(type(arg).__name__)


def text_of(signature: tuple[Leaf | Named, ...]) -> str:
    """Text that is the same for the same types, whatever the process."""
    return ",".join(
        f"{item.type.__qualname__}({','.join(item.type._fields)}:{text_of(item.items)})"  # pyrefly: ignore
        if isinstance(item, Named)
        else item.kind + (f"[{item.ndim}]" if item.ndim >= 0 else "")
        for item in signature
    )


def leaves(signature: tuple[Leaf | Named, ...]) -> Iterator[Leaf]:
    """The arguments of an entry: those of the kernel, with named tuples opened."""
    for item in signature:
        if isinstance(item, Named):
            yield from leaves(item.items)
        else:
            yield item


def flat(args: tuple[Any, ...]) -> list[Any]:
    """The arguments with named tuples opened, and numbers as Python's own."""
    found: list[Any] = []
    for arg in args:
        if isinstance(arg, tuple):
            found += flat(arg)
        elif isinstance(arg, np.generic):
            found.append(arg.item())
        else:
            found.append(
                arg.view(np.ndarray) if isinstance(arg, np.ndarray) and type(arg) is not np.ndarray else arg
            )
    return found
