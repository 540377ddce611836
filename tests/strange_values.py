"""Values of all kinds for options and arguments, and what may come of giving them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from evenload.errors import EvenloadError

MOST_MESSAGE = 1500
MOST_QUOTED = 200


class OwnError(Exception):
    """Raised by the values' own code: it may come through as it is."""


class Strange:
    """A value each of whose methods raises."""

    __hash__ = None  # type: ignore[assignment]

    def _refuse(self, *_: Any) -> Any:
        raise OwnError

    __eq__ = __lt__ = __gt__ = __bool__ = __len__ = __iter__ = __repr__ = __getitem__ = _refuse  # type: ignore[assignment]


class Loud:
    """A value that says very much, and not to a reader."""

    def __repr__(self) -> str:
        return "\x1b[31m" + "x" * 100_000


STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 10**400, -(10**400), 2**63, 0.5, -0.0, math.nan, math.inf, -math.inf,
    "", "x", "\x1b[2J", "cpu", "cpu*2", "\0", "a" * 100_000, "cpu*" + "9" * 5000, b"x", b"\xff" * 1000,
    (), [], {}, set(), [None], ["x"] * 1000, {"a": 1}, {1: 2}, object(), object, len, Strange(), Loud(),
    np.int64(3), np.float32(2.5), np.array(3), np.array([1, 2]), np.array([]), np.array(["a"]), np.ma.masked,
    range(3), 2j, NotImplemented, ..., Exception("x"),
)  # fmt: skip


def check(name: str, call: Callable[[], Any], is_right: Callable[[Any], bool]) -> None:
    """``call`` gives what ``is_right``, raises an error of evenload's, or what the strange value raises."""
    try:
        given = call()
    except OwnError:
        return
    except EvenloadError as error:
        text = str(error)
        assert all(letter.isprintable() or letter == "\n" for letter in text), f"{name}: {text!r}"
        assert len(text) <= MOST_MESSAGE, f"{name}: {len(text)} characters"
        assert not any(letter * (MOST_QUOTED + 1) in text for letter in "ax9"), f"{name}: {text}"
    else:
        assert is_right(given), f"{name}: {type(given).__name__}"
