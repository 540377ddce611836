"""The tree: all complete nodes in memory, roots and proofs of any size it ever had."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from evenload.errors import ConfigError
from evenload.merkle.engine import make_engine
from evenload.merkle.plain_engine import HashEngine
from evenload.merkle.proof import ConsistencyProof, InclusionProof
from evenload.merkle.rows import as_rows, new_nodes
from evenload.merkle.scheme import DIGEST_BYTES, Scheme, as_scheme
from evenload.merkle.shape import Edge, has_twins, require_leaf


class MerkleTree:
    """A Merkle tree that can grow.

    leaves   uint8 [n, width] or a list of bytes of one length; none is an empty tree
    scheme   rfc6962 (default), bitcoin, poseidon, rfc6962-blake2s, or a ``Scheme`` with options
    threads  of the processor; None for as many as this process's device has
    engine   who hashes instead, from ``make_engine``
    Takes 64 bytes of memory per leaf. Raises ConfigError or UnknownName on what it cannot be built from.
    """

    def __init__(
        self,
        leaves: Any = None,
        *,
        scheme: str | Scheme = "rfc6962",
        threads: int | None = None,
        engine: HashEngine | None = None,
    ):
        self.scheme = as_scheme(scheme) if engine is None else engine.scheme
        if self.scheme.odd == "heap":
            raise ConfigError(
                "an openzeppelin tree sorts its leaves and cannot grow",
                hint="use evenload.merkle.StandardTree",
            )
        self._engine = engine or make_engine(self.scheme, threads=threads)
        self._levels: list[np.ndarray] = [new_nodes(0)]
        self._size = 0
        self._has_twins = False
        if leaves is not None:
            self.append(leaves)

    def __len__(self) -> int:
        return self._size

    @property
    def root(self) -> bytes:
        """32 bytes. Raises ConfigError for an empty tree, unless the scheme defines its root."""
        return self.root_at(self._size)

    @property
    def is_mutated(self) -> bool:
        """Bitcoin: two equal neighbours, which may stand for repeated transactions (CVE-2012-2459)."""
        edge = self._edge(self._size)
        if self._size:
            edge.root()
        return self.scheme.flags_twins and (self._has_twins or edge.has_twins)

    def root_at(self, size: int) -> bytes:
        """The root when the tree had ``size`` leaves."""
        return self._edge(size).root()

    def level(self, height: int) -> np.ndarray:
        """The complete nodes [n, 32] at ``height`` above the leaves, read-only."""
        if not 0 <= height < len(self._levels):
            raise ConfigError(f"height {height} is not in 0..{len(self._levels) - 1}")
        nodes = self._levels[height][: self._size >> height]
        nodes.flags.writeable = False
        return nodes

    def append(self, leaves: Any) -> None:
        """Add leaves: uint8 [n, width] or bytes of one length. Older proofs stay valid for their size."""
        rows = as_rows(leaves, self.scheme)
        self._grow(len(rows), lambda out: self._engine.leaves(rows, out))

    def append_records(self, records: Iterable[bytes]) -> None:
        """Add leaves of different lengths, hashed one by one."""
        nodes = [self.scheme.hash_leaf(bytes(record)) for record in records]
        rows = np.frombuffer(b"".join(nodes), np.uint8).reshape(-1, DIGEST_BYTES)
        self.append_hashes(rows)

    def append_hashes(self, nodes: np.ndarray) -> None:
        """Add leaves that are hashed already: uint8 [n, 32]."""
        rows = as_rows(nodes, self.scheme, DIGEST_BYTES)
        self._grow(len(rows), lambda out: np.copyto(out, rows))

    def prove(self, index: int, size: int | None = None) -> InclusionProof:
        """Prove that leaf ``index`` is in the tree (as it was with ``size`` leaves). Raises ConfigError."""
        return self.prove_many([index], size)[0]

    def prove_many(self, indices: Sequence[int], size: int | None = None) -> list[InclusionProof]:
        """One proof per index."""
        chosen = self._size if size is None else size
        edge = self._edge(chosen)
        for index in indices:
            require_leaf(index, chosen)
        return [
            InclusionProof(
                self.scheme, int(index), chosen, tuple(edge.path(int(index))), self._stored(0, int(index))
            )
            for index in indices
        ]

    def prove_consistency(self, old_size: int, new_size: int | None = None) -> ConsistencyProof:
        """Prove that the tree of ``new_size`` leaves begins with the tree of ``old_size`` (at least 1).

        Source: RFC 9162, section 2.1.4.1.
        """
        new_size = self._size if new_size is None else new_size
        edge = self._edge(new_size)
        proof = ConsistencyProof(self.scheme, old_size, new_size)
        if old_size == new_size:
            return proof
        height = 0
        while not old_size >> height & 1:
            height += 1
        # The largest complete node at the old tree's end, then what joins it to the new root.
        at, path = (old_size >> height) - 1, []
        if at:
            path.append(self._stored(height, at))
        for level in range(height, edge.height):
            sibling = edge.node(level, at >> level - height ^ 1)
            if sibling is not None:
                path.append(sibling)
        return ConsistencyProof(self.scheme, old_size, new_size, tuple(path))

    # --- inside -----------------------------------------------------------------------------------

    def _edge(self, size: int) -> Edge:
        if not 0 <= size <= self._size:
            raise ConfigError(f"the tree never had {size} leaves", hint=f"use 0 to {self._size}")
        return Edge(self.scheme, size, self._stored)

    def _stored(self, height: int, index: int) -> bytes:
        return self._levels[height][index].tobytes()

    def _grow(self, n: int, fill: Any) -> None:
        """Make room for ``n`` leaves, let ``fill`` write them, hash the nodes that become complete."""
        old, new = self._size, self._size + n
        self.scheme.height(new)
        fill(self._room(0, old, new))
        self._size = new
        if not old and n > 1:
            for height, nodes in enumerate(self._engine.climb(self._levels[0][:new]), 1):
                self._levels[height:] = [nodes]
        else:
            for height in range(1, new.bit_length()):
                below, first, last = self._levels[height - 1], old >> height, new >> height
                if last > first:
                    self._engine.pairs(below[2 * first : 2 * last], self._room(height, first, last))
        if self.scheme.flags_twins:
            # A level is looked at again from the last pair that was there: it may have become one only now.
            starts = [(level, (old >> h) & ~1, new >> h) for h, level in enumerate(self._levels)]
            self._has_twins |= any(has_twins(level[start:stop]) for level, start, stop in starts)

    def _room(self, height: int, old: int, new: int) -> np.ndarray:
        """Rows ``old`` .. ``new - 1`` of a level, which grows by half at least if it is full."""
        if height == len(self._levels):
            self._levels.append(new_nodes(0))
        level = self._levels[height]
        if new > len(level):
            larger = new_nodes(new if not old else max(new, 3 * old // 2))
            larger[:old] = level[:old]
            self._levels[height] = level = larger
        return level[old:new]
