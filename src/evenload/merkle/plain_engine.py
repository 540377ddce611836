"""What an engine that hashes whole levels of a tree offers, and one in plain Python."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from evenload.merkle.scheme import DIGEST_BYTES, Scheme


class HashEngine(Protocol):
    """An engine that hashes whole levels of a tree. Arrays are uint8, C-contiguous, [n, width].

    ``leaves`` and ``pairs`` write to ``out`` [n, 32] if it is given; ``climb`` returns the levels above
    ``nodes`` that are complete: n // 2, n // 4, ... 1 nodes; ``subtree_roots`` the roots of subtrees of
    2^height leaves each, whose number divides by that.
    """

    name: str
    scheme: Scheme

    def leaves(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray: ...

    def pairs(self, nodes: np.ndarray, out: np.ndarray | None = None) -> np.ndarray: ...

    def climb(self, nodes: np.ndarray, top: int | None = None) -> list[np.ndarray]: ...

    def subtree_roots(self, rows: np.ndarray, height: int) -> np.ndarray: ...

    def close(self) -> None: ...


def climb(engine: HashEngine, nodes: np.ndarray, top: int | None = None) -> list[np.ndarray]:
    """``HashEngine.climb`` level by level."""
    levels: list[np.ndarray] = []
    while len(nodes) > 1 and (top is None or len(levels) < top):
        nodes = engine.pairs(nodes[: len(nodes) // 2 * 2])
        levels.append(nodes)
    return levels


class PlainEngine:
    """An engine that hashes row by row through ``hashlib``: no extra, and the others' slow twin."""

    name = "plain"

    def __init__(self, scheme: Scheme):
        self.scheme = scheme

    def leaves(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        if not self.scheme.hashes_leaves:
            return into(out, rows)
        return into(out, _joined([self.scheme.hash_leaf(row.tobytes()) for row in rows]))

    def pairs(self, nodes: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        content, size, pair = nodes.tobytes(), DIGEST_BYTES, self.scheme.hash_pair
        ends = range(0, len(content), 2 * size)
        return into(
            out, _joined([pair(content[k : k + size], content[k + size : k + 2 * size]) for k in ends])
        )

    def climb(self, nodes: np.ndarray, top: int | None = None) -> list[np.ndarray]:
        return climb(self, nodes, top)

    def subtree_roots(self, rows: np.ndarray, height: int) -> np.ndarray:
        nodes = self.leaves(rows)
        return climb(self, nodes, height)[-1] if height else nodes

    def close(self) -> None:
        """Nothing to free."""


def _joined(digests: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)


def into(out: np.ndarray | None, result: np.ndarray) -> np.ndarray:
    """``result``, or ``out`` filled with it."""
    if out is None:
        return result
    out[:] = result
    return out
