"""Arguments of anybody, as the numbers and arrays that they should be."""

import operator
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evenload.errors import ConfigError, quoted

__all__ = ["array_of", "instance_of", "number", "whole"]

T = TypeVar("T")
MOST = 1 << 24  # of GPUs, experts, slots


def whole(name: str, value: Any, *, least: int = 0, most: int = MOST) -> int:
    """``value`` as an int from ``least`` to ``most``. Raises ConfigError for others and truth values."""
    try:
        found = operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # the latter of tensors
        found = None
    if found is None or "bool" in str(getattr(value, "dtype", type(value))) or not least <= found <= most:
        raise ConfigError(f"{name} is {quoted(value)}", hint=f"give a whole number from {least} to {most}")
    return found


def number(name: str, value: Any, *, is_zero_allowed: bool = True) -> float:
    """``value`` as a finite float of at least 0. Raises ConfigError for other values."""
    is_real = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    try:
        found = float(value) if is_real else -1.0
    except OverflowError:  # an integer of very many digits
        found = np.inf
    if not 0 <= found < np.inf or not (found or is_zero_allowed):
        least = "of at least 0" if is_zero_allowed else "above 0"
        raise ConfigError(f"{name} is {quoted(value)}", hint=f"give a finite number {least}")
    return found


def array_of(name: str, values: Any) -> NDArray[Any]:
    """``values``, an array, nested lists or a tensor on any device, as an array.

    Tensors of bfloat16 become float32. Raises ConfigError unless they are truth values or real numbers, in
    rows of one length.
    """
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


def instance_of(name: str, value: Any, kind: type[T], how: str) -> T:
    """``value``, if it is of ``kind``; ``how`` says where to get one. Raises ConfigError for others."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {quoted(value)}", hint=f"give {how}")
    return value
