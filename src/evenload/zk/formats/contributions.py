"""Section 10 of a .zkey: who contributed to the set-up. It plays no part in proving."""

import struct

from evenload.errors import printable

_CONTRIBUTION_BYTES = 64 * 3 + 128 + 64
_MAX_LISTED = 1000


def contribution_names(content: bytes) -> list[str]:
    """The name of each contribution, "?" where there is none or the section is damaged from there on."""
    if len(content) < 68:
        return []
    n, at, names = struct.unpack_from("<I", content, 64)[0], 68, []
    for _ in range(min(n, _MAX_LISTED)):
        head = at + _CONTRIBUTION_BYTES
        if head + 8 > len(content):
            return [*names, "?"]
        length = struct.unpack_from("<I", content, head + 4)[0]
        names.append(_name(content[head + 8 : head + 8 + length]))
        at = head + 8 + length
    return names


def _name(parameters: bytes) -> str:
    """Parameters are a type byte, then: 1 length and name; 2 one byte; 3 length and beacon hash."""
    at = 0
    while at + 1 < len(parameters):
        kind, value = parameters[at], parameters[at + 1]
        if kind == 1:
            return printable(parameters[at + 2 : at + 2 + value].decode("utf-8", "replace"), 255)
        at += 2 if kind == 2 else 2 + value
    return "?"
