"""Check the parts that a stage made of an item, and give each a key that is safe in ids and file names."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from evenload.errors import ConfigError, quoted

MOST_PARTS = 10_000  # of one item; a list that goes on for ever must not fill the memory
_OWN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_key(key: Any) -> bool:
    """Return whether ``key`` may be the name of a part."""
    return isinstance(key, str) and _OWN_ID.fullmatch(key) is not None


def part_keys(
    parts: Any, refused: Callable[[str, str], ConfigError], name: str
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the key of each part, and its values without an ``id`` of its own.

    A part is called by its id, or else by its place, from 001 on. ``refused`` makes the error that says what
    is wrong with ``name``.
    """
    if not isinstance(parts, list | tuple):
        found = f"returned {quoted(name)} that is {type(parts).__name__}, no list"
        raise refused(found, "return a list of dicts, one for each part")
    if len(parts) > MOST_PARTS:
        raise refused(f"returned {len(parts)} {name}", f"at most {MOST_PARTS} are taken: expand in two steps")
    n_digits = max(3, len(str(len(parts))))
    keys, values = [], []
    for number, part in enumerate(parts, start=1):
        if not isinstance(part, Mapping) or not all(isinstance(key, str) for key in part):
            found = f"returned {quoted(name)} of which number {number} is {type(part).__name__}"
            raise refused(found, "return a list of dicts of outputs by name")
        own = part.get("id", f"{number:0{n_digits}}")
        if not is_key(own):
            hint = "use up to 64 letters, digits, - and _, or leave it out"
            raise refused(
                f"returned {quoted(name)} of which number {number} has the id {quoted(str(own))}", hint
            )
        keys.append(own)
        values.append({key: value for key, value in part.items() if key != "id"})
    if len(set(keys)) < len(keys):
        first = next(key for key in keys if keys.count(key) > 1)
        raise refused(
            f"returned {quoted(name)} of which two have the id {quoted(first)}",
            "give each its own id, or none",
        )
    return keys, values
