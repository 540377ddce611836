"""Events as lines of JSON, and JSON that can be written whatever the values are."""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from typing import Any, get_args

from evenload._plain_text import escaped_json
from evenload.events.kinds import Event

_MOST_DEPTH = 50
_MOST_BITS = 14_280  # 4299 digits: Python neither prints nor reads integers of more
_TYPES: dict[str, type] = {cls.__name__: cls for cls in get_args(Event)}
_FIELDS = {name: frozenset(f.name for f in dataclasses.fields(cls)) for name, cls in _TYPES.items()}
_ORDERED = {cls: tuple(f.name for f in dataclasses.fields(cls)) for cls in _TYPES.values()}


def encode(event: Event) -> str:
    """Write ``event`` as one line of JSON without the line end: its type under ``event``, then its fields."""
    row: dict[str, Any] = {"event": type(event).__name__}
    for name in _ORDERED[type(event)]:
        row[name] = getattr(event, name)
    return json_text(row, separators=(",", ":"))


def json_text(value: Any, **layout: Any) -> str:
    """Write any value as strict JSON that any UTF-8 file can hold; ``layout`` as for ``json.dumps``.

    What JSON cannot express becomes the nearest thing that it can: numbers that are not finite become null
    (with ``allow_nan=True`` they stay, as NaN and Infinity, for our own files that Python alone reads),
    halves of surrogate pairs their escapes, everything else its text.
    """
    encoder = _encoder(**layout)
    try:
        text = encoder.encode(value)
    except Exception:  # for example raised by the str() of a user's object
        text = encoder.encode(_nearest_json(value))
    return escaped_json(text)


@functools.lru_cache(maxsize=16)
def _encoder(**layout: Any) -> json.JSONEncoder:
    """Return an encoder, which costs as much to make as a short line to write."""
    options: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "default": str} | layout
    return json.JSONEncoder(**options)


def _nearest_json(value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if value.bit_length() < _MOST_BITS else f"an integer of {value.bit_length()} bits"
    if depth < _MOST_DEPTH and isinstance(value, Mapping):
        return {_str_of(key): _nearest_json(one, depth + 1) for key, one in value.items()}
    if depth < _MOST_DEPTH and isinstance(value, list | tuple):
        return [_nearest_json(one, depth + 1) for one in value]
    return "..." if depth >= _MOST_DEPTH else _str_of(value)


def _str_of(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


def decode(line: str) -> Event | None:
    """Read the event on one line; None for a type of event or a line that this version does not know."""
    try:
        row = json.loads(line)
        name = row.pop("event")
        known = _FIELDS[name]
        if not row.keys() <= known:
            row = {key: value for key, value in row.items() if key in known}
        return _TYPES[name](**row)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
