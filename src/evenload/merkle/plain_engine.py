"""What an engine that hashes whole levels of a tree offers, and one in plain Python."""

from collections.abc import Sequence

import numpy as np

from evenload.merkle.rows import new_nodes
from evenload.merkle.scheme import DIGEST_BYTES, Scheme


class HashEngine:
    """An engine that hashes whole levels of a tree. Arrays are uint8, C-contiguous, [n, width].

    One of a kind provides ``_hash_leaves`` and ``_hash_pairs``, which fill ``out``, and what it does better.
    """

    name: str
    scheme: Scheme

    def leaves(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The nodes of leaves, in ``out`` [n, 32] if it is given."""
        if out is None:
            if not self.scheme.hashes_leaves:
                return rows
            out = new_nodes(len(rows))
        if not self.scheme.hashes_leaves:
            out[:] = rows
        elif not rows.shape[1]:
            out[:] = np.frombuffer(self.scheme.hash_leaf(b""), np.uint8)
        else:
            self._hash_leaves(rows, out)
        return out

    def pairs(self, nodes: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The level above an even number of nodes, in ``out`` if it is given."""
        out = new_nodes(len(nodes) // 2) if out is None else out
        self._hash_pairs(nodes, out)
        return out

    def climb(self, nodes: np.ndarray, top: int | None = None) -> list[np.ndarray]:
        """The complete levels above ``nodes``: n // 2, n // 4, ... 1 nodes, at most ``top`` levels."""
        levels: list[np.ndarray] = []
        while len(nodes) > 1 and (top is None or len(levels) < top):
            nodes = self.pairs(nodes[: len(nodes) // 2 * 2])
            levels.append(nodes)
        return levels

    def subtree_roots(self, rows: np.ndarray, height: int) -> np.ndarray:
        """The roots of subtrees of 2^height leaves each, whose number divides by that."""
        nodes = self.leaves(rows)
        return self.climb(nodes, height)[-1] if height else nodes

    def close(self) -> None:
        """Free what the engine holds."""

    def _hash_leaves(self, rows: np.ndarray, out: np.ndarray) -> None:
        raise NotImplementedError

    def _hash_pairs(self, nodes: np.ndarray, out: np.ndarray) -> None:
        raise NotImplementedError


class PlainEngine(HashEngine):
    """An engine that hashes row by row through ``hashlib``: no extra, and the others' slow twin."""

    name = "plain"

    def __init__(self, scheme: Scheme):
        self.scheme = scheme

    def _hash_leaves(self, rows: np.ndarray, out: np.ndarray) -> None:
        out[:] = _joined([self.scheme.hash_leaf(row.tobytes()) for row in rows])

    def _hash_pairs(self, nodes: np.ndarray, out: np.ndarray) -> None:
        content, size, pair = nodes.tobytes(), DIGEST_BYTES, self.scheme.hash_pair
        ends = range(0, len(content), 2 * size)
        out[:] = _joined([pair(content[k : k + size], content[k + size : k + 2 * size]) for k in ends])


def _joined(digests: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)
