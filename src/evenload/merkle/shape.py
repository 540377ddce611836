"""How a tree of any number of leaves hangs together: complete nodes are stored, the ragged edge is hashed.

A node (height, index) covers leaves index << height .. ((index + 1) << height) - 1. It is *complete* if the
tree has all of them; such a node never changes again. On each level at most one node is partial.
"""

from collections.abc import Callable

import numpy as np

from evenload.errors import ConfigError
from evenload.merkle.scheme import Scheme, zero_node


def require_leaf(index: int, size: int) -> None:
    """Raise ConfigError unless a tree of ``size`` leaves has leaf ``index``."""
    if not 0 <= index < size:
        hint = f"use 0 to {size - 1}" if size else "add leaves first: an empty tree has none to prove"
        raise ConfigError(f"there is no leaf {index} among {size}", hint=hint)


def has_twins(nodes: np.ndarray) -> bool:
    """Is a left node [n, 32] equal to its right neighbour?"""
    words = nodes[: len(nodes) // 2 * 2].view(np.uint64).reshape(-1, 2, 4)
    suspects = words[:, 0, 0] == words[:, 1, 0]
    return bool(suspects.any()) and bool((words[suspects, 0] == words[suspects, 1]).all(axis=1).any())


class Edge:
    """The nodes of a tree of ``size`` leaves, of which ``stored(height, index)`` gives the complete ones."""

    def __init__(self, scheme: Scheme, size: int, stored: Callable[[int, int], bytes]):
        self.scheme, self.size = scheme, size
        self.height = scheme.height(size)
        self.has_twins = False  # among the nodes that were hashed here
        self._stored = stored
        self._hashed: dict[tuple[int, int], bytes] = {}

    def root(self) -> bytes:
        if not self.size:
            return self.scheme.empty_root()
        root = self.node(self.height, 0)
        assert root is not None
        return root

    def node(self, height: int, index: int) -> bytes | None:
        """The node, or None if the tree has nothing there and does not fill up with zeros."""
        if (index + 1) << height <= self.size:
            return self._stored(height, index)
        if index << height >= self.size:
            return zero_node(height) if self.scheme.odd == "zeros" else None
        if (height, index) not in self._hashed:
            self._hashed[height, index] = self._partial(height, index)
        return self._hashed[height, index]

    def _partial(self, height: int, index: int) -> bytes:
        left, right = self.node(height - 1, 2 * index), self.node(height - 1, 2 * index + 1)
        assert left is not None
        if right is None:
            return left if self.scheme.odd == "promote" else self.scheme.hash_pair(left, left)
        self.has_twins |= left == right
        return self.scheme.hash_pair(left, right)

    def path(self, index: int) -> list[bytes]:
        """The siblings that a proof of leaf ``index`` needs, from the leaf to the root."""
        found = []
        for height in range(self.height):
            sibling = self.node(height, index >> height ^ 1)
            if sibling is None and self.scheme.odd == "duplicate":
                sibling = self.node(height, index >> height)
            if sibling is not None:
                found.append(sibling)
        return found
