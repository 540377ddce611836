"""Tiles: the nodes and entries of a log as files of 256 each, which any web server can serve.

Level l holds roots of subtrees of 256^l leaves, and ``entries`` the leaves themselves. The last tile of a
level may be partial: it has the number of its nodes in its name. Source: C2SP tlog-tiles v1.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from evenload.errors import FormatError

WIDTH = 256
MOST_ENTRY_BYTES = (1 << 16) - 1
MOST_BUNDLE_BYTES = WIDTH * (2 + MOST_ENTRY_BYTES)


class Tile(NamedTuple):
    """A tile's place in the tree, and how many nodes it has."""

    level: int
    index: int
    width: int

    @property
    def path(self) -> str:
        """The file of its nodes, below the log's folder."""
        return _path(str(self.level), self.index, self.width)

    @property
    def entries_path(self) -> str:
        """The file of the leaves of a tile of level 0."""
        return _path("entries", self.index, self.width)


def tiles_of(size: int, since: int = 0) -> Iterator[Tile]:
    """Yield the tiles of a log of ``size`` leaves that are not whole in one of ``since`` leaves."""
    level = 0
    while size >> 8 * level:
        n_nodes, n_old = size >> 8 * level, since >> 8 * level
        for index in range(n_old // WIDTH, -(-n_nodes // WIDTH)):
            tile = Tile(level, index, min(WIDTH, n_nodes - index * WIDTH))
            if n_nodes > n_old:
                yield tile
        level += 1


def bundle(entries: Sequence[bytes]) -> bytes:
    """Entries of at most 65,535 bytes as the content of a file: each behind its length, two bytes."""
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def bundled(content: bytes, n: int) -> list[bytes]:
    """The ``n`` entries of a file. Raises FormatError if there are more or fewer."""
    entries, at = [], 0
    while at + 2 <= len(content) and len(entries) < n:
        stop = at + 2 + int.from_bytes(content[at : at + 2], "big")
        entries.append(content[at + 2 : stop])
        at = stop
    if len(entries) != n or at != len(content):
        raise FormatError(f"an entry bundle does not consist of {n} entries, at byte {min(at, len(content))}")
    return entries


def _path(kind: str, index: int, width: int) -> str:
    digits = f"{index:03d}"
    digits = digits.zfill(-(-len(digits) // 3) * 3)
    parts = re.findall("...", digits)
    name = "/".join([*(f"x{part}" for part in parts[:-1]), parts[-1]])
    return f"tile/{kind}/{name}" + (f".p/{width}" if width < WIDTH else "")
