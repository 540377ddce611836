"""Putting the results of slices together, each kind by the library that it comes from."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from evenload.errors import ConfigError


def join(results: Sequence[Any]) -> Any:
    """All of ``results`` as one, along their first axis.

    Lists, tuples and ranges give a list; bytes and text stay what they are; torch tensors, JAX arrays, pandas
    frames, series and indices, and numpy arrays (masked ones too) keep their kind, dtype and device. Other
    arrays are joined as numpy joins them.
    Raises ConfigError for no results, for scalars, and for results that do not fit together.
    """
    if not results:
        raise ConfigError("there are no slices to join", hint="the array was empty: use .results")
    try:
        return _joiner(results)(results)
    except (TypeError, ValueError, RuntimeError) as error:
        kinds = ", ".join(sorted({type(result).__name__ for result in results}))
        raise ConfigError(
            f"results of type {kinds} cannot be joined: {type(error).__name__}: {str(error)[:200]}",
            hint="have the function return arrays or lists of as many rows as its slice, or use .results",
        ) from error


def _joiner(results: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    for kinds, joiner in (
        ((list, tuple, range), lambda pieces: [value for piece in pieces for value in piece]),
        ((bytes, bytearray), lambda pieces: type(pieces[0])().join(pieces)),
        ((str,), "".join),
    ):
        if all(isinstance(result, kinds) for result in results):
            return joiner
    for package, kinds, joiner in (
        ("torch", ("Tensor",), lambda torch: lambda pieces: torch.cat(list(pieces))),
        ("jax", ("Array",), lambda jax: lambda pieces: jax.numpy.concatenate(list(pieces))),
        ("pandas", ("DataFrame", "Series"), lambda pandas: pandas.concat),
        ("pandas", ("Index",), lambda pandas: lambda pieces: pieces[0].append(list(pieces[1:]))),
        ("numpy", ("ma.MaskedArray",), lambda numpy: numpy.ma.concatenate),
    ):
        module = sys.modules.get(package)  # what is not imported has made none of the results
        classes = tuple(_member(module, kind) for kind in kinds)
        if module is not None and all(isinstance(result, classes) for result in results):
            return joiner(module)
    import numpy

    return numpy.concatenate


def _member(module: Any, path: str) -> Any:
    """``module.a.b`` for "a.b"; an empty tuple, which nothing is an instance of, if it has none."""
    for name in path.split("."):
        module = getattr(module, name, ())
    return module
