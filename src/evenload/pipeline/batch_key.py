"""What must be equal in all items of a batch, such as their shape, as a text that can be compared."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from evenload.errors import ConfigError, quoted

MOST_LETTERS = 200  # a longer key is told by its digest
MOST_DEPTH = 8


def batch_key_text(value: Any) -> str:
    """Return a text that is equal for equal values: numbers, texts, booleans, None, or a sequence of those.

    NumPy and torch numbers, and shapes, are taken as the numbers that they hold; 1 and 1.0 and true differ.
    Raises ConfigError for anything else, and for NaN, which equals nothing.
    """
    text = json.dumps(_plain(value, 0), ensure_ascii=False, separators=(",", ":"))
    if len(text) > MOST_LETTERS:
        return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return text


def _plain(value: Any, depth: int) -> Any:
    if getattr(value, "ndim", None) == 0:  # a NumPy or torch scalar
        value = value.item()
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and value == value:
        return float(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray) and depth < MOST_DEPTH:
        return [_plain(one, depth + 1) for one in value]
    raise ConfigError(
        f"{quoted(value)} of type {type(value).__name__}",
        hint="give a shape, a number, a text, or a tuple of those; None lets an item run alone",
    )
