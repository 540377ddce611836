"""Values that JSON can hold as they are: what a stage may hand on without a file."""

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

from evenload.errors import ConfigError, quoted

MOST_LETTERS = 1 << 18  # of a value in JSON; larger ones belong into files
PLAIN = (str, int, float, bool, type(None))
_MOST_DEPTH = 50
_INTEGERS_END = 10**4299  # with more digits no reader of JSON in Python takes it


def is_plain(value: Any) -> bool:
    """Whether it is a number, text, boolean or None that JSON can hold."""
    if isinstance(value, int):
        return -_INTEGERS_END < value < _INTEGERS_END
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, PLAIN)


def is_json(value: Any) -> bool:
    """Whether it is made of lists, dicts with texts as keys, and plain values, not too deep or too many."""
    todo, n_seen = [(value, 0)], 0
    while todo:
        (one, depth), n_seen = todo.pop(), n_seen + 1
        if depth > _MOST_DEPTH or n_seen > MOST_LETTERS:
            return False
        if type(one) is dict and all(type(key) is str for key in one):
            todo += [(part, depth + 1) for part in one.values()]
        elif type(one) is list:
            todo += [(part, depth + 1) for part in one]
        elif not is_plain(one):
            return False
    return True


def json_value(value: Any) -> Any:
    """Return ``value`` as it is read back from JSON: arrays as lists, NumPy's numbers as plain ones.

    Raises ConfigError, with words that fit after what was returned, if anything of it would not come back.
    """
    plain = _plain(value, 0)
    n_letters = len(json.dumps(plain))
    if n_letters > MOST_LETTERS:
        raise ConfigError(
            f"of {n_letters:,} letters in JSON; {MOST_LETTERS:,} are allowed",
            hint="declare it as npy, bytes or file",
        )
    return plain


def _plain(value: Any, depth: int) -> Any:
    """Rebuild ``value`` of lists, dicts and Python's own types."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # an array or scalar of NumPy, a tensor of torch
        value = value.tolist()
    if depth > _MOST_DEPTH:
        raise _refused(f"lists more than {_MOST_DEPTH} deep")
    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise _refused(f"the key {quoted(odd[0])}, which is no text")
        return {str(key): _plain(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, depth + 1) for part in value]
    if not is_plain(value):
        raise _refused(f"{quoted(value)}, of type {type(value).__name__}")
    if value is None or isinstance(value, bool):
        return value
    return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))


def _refused(what: str) -> ConfigError:
    return ConfigError(
        f"with {what}", hint="return lists, dicts with texts as keys, texts, finite numbers, booleans, None"
    )


# --- keys of batches ----------------------------------------------------------------------------------

_MOST_KEY_LETTERS = 200  # a longer key is told by its digest
_MOST_KEY_DEPTH = 8


def batch_key_text(value: Any) -> str:
    """Return a text that is equal for equal values: numbers, texts, booleans, None, or a sequence of those.

    NumPy and torch numbers, and shapes, are taken as the numbers that they hold; 1 and 1.0 and true differ.
    Raises ConfigError for anything else, and for NaN, which equals nothing.
    """
    text = json.dumps(_key_part(value, 0), ensure_ascii=False, separators=(",", ":"))
    if len(text) > _MOST_KEY_LETTERS:
        return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return text


def _key_part(value: Any, depth: int) -> Any:
    if getattr(value, "ndim", None) == 0:  # a NumPy or torch scalar
        value = value.item()
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and value == value:
        return float(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray) and depth < _MOST_KEY_DEPTH:
        return [_key_part(one, depth + 1) for one in value]
    raise ConfigError(
        f"{quoted(value)} of type {type(value).__name__}",
        hint="give a shape, a number, a text, or a tuple of those; None lets an item run alone",
    )
