"""Hashes on a GPU, or on a driver that poses as one, through WGSL kernels."""

import numpy as np

from evenload.gpu.hashing.rules import RULES
from evenload.gpu.wgsl.context import Context
from evenload.gpu.wgsl.hashes import MAX_BLOCKS, hash_kernel, poseidon_constants, poseidon_kernel
from evenload.gpu.wgsl.kernel import Buffer
from evenload.gpu.wgsl.queue import KernelPace, Queue
from evenload.merkle.plain_engine import HashEngine, PlainEngine
from evenload.merkle.rows import new_nodes
from evenload.merkle.scheme import DIGEST_BYTES, Scheme

WORDS = DIGEST_BYTES // 4
MAX_CHUNK_HEIGHT = 20


class WgslEngine(HashEngine):
    """An engine on a GPU: leaves are sent in chunks, and only what was asked for comes back.

    adapter  ``Device.uuid`` of a wgpu device; None for the best one
    """

    name = "wgsl"

    def __init__(self, scheme: Scheme, adapter: str | None = None, context: Context | None = None):
        self.scheme = scheme
        self.context = context or Context(adapter)
        self._is_own = context is None
        self._pace = KernelPace()
        if scheme.name == "poseidon":
            variant = "u64" if self.context.has_int64 else "limb13"
            self._pair, self._known = poseidon_kernel(variant), poseidon_constants(variant)
        else:
            self._pair = hash_kernel(scheme.rule, "pair")
            self._known = np.array(scheme.params(), np.uint32)
        # Leaves, their nodes and all levels above lie in one binding: three times 32 bytes per leaf.
        most_leaves = self.context.max_binding_bytes // (3 * DIGEST_BYTES)
        self._chunk_height = min(MAX_CHUNK_HEIGHT, most_leaves.bit_length() - 1)

    def _hash_leaves(self, rows: np.ndarray, out: np.ndarray) -> None:
        step = self._rows_at_once(rows.shape[1])
        for start in range(0, len(rows), step):
            self.context.run(lambda part=slice(start, start + step): self._hash_chunk(rows[part], out[part]))

    def _hash_pairs(self, nodes: np.ndarray, out: np.ndarray) -> None:
        step = 1 << self._chunk_height
        for start in range(0, len(nodes), step):
            part = nodes[start : start + step]
            out[start // 2 : (start + len(part)) // 2] = self.context.run(
                lambda part=part: self._levels(part, 1)
            )[0]

    def climb(self, nodes: np.ndarray, top: int | None = None) -> list[np.ndarray]:
        height = max(len(nodes).bit_length() - 1, 0)
        height = height if top is None else min(top, height)
        if len(nodes) <= 1 << self._chunk_height:
            return self.context.run(lambda: self._levels(nodes, height)) if height else []
        low = min(height, self._chunk_height)
        step = 1 << self._chunk_height
        parts = []
        for start in range(0, len(nodes), step):
            part = nodes[start : start + step]
            parts.append(self.context.run(lambda part=part: self._levels(part, low)))
        levels = [np.concatenate([part[k] for part in parts]) for k in range(low)]
        return levels + super().climb(levels[-1], height - low)

    def subtree_roots(self, rows: np.ndarray, height: int) -> np.ndarray:
        if rows.shape[1] != DIGEST_BYTES or height > self._chunk_height:
            return super().subtree_roots(rows, height)
        out = new_nodes(len(rows) >> height)
        step = 1 << self._chunk_height
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            roots = self.context.run(lambda part=part: self._roots(part, height))
            out[start >> height : (start + len(part)) >> height] = roots
        return out

    def close(self) -> None:
        """Free the device, unless it was given."""
        if self._is_own:
            self.context.close()

    # --- one chunk; repeated as a whole if the device is lost -----------------------------------------

    def _rows_at_once(self, width: int) -> int:
        if width == DIGEST_BYTES:
            return 1 << self._chunk_height
        most = self.context.max_binding_bytes // (self._padded_bytes(width) + DIGEST_BYTES)
        return max(1, min(most, 1 << self._chunk_height))

    def _padded_bytes(self, width: int) -> int:
        return RULES[self.scheme.rule].padded_bytes(width)

    def _hash_chunk(self, rows: np.ndarray, out: np.ndarray) -> None:
        n, width = rows.shape
        context, rule = self.context, RULES[self.scheme.rule]
        queue, known = Queue(context, self._pace), context.upload(self._known)
        if width == DIGEST_BYTES:
            buffer = context.upload(rows, context.buffer(2 * n * DIGEST_BYTES))
            at = n * DIGEST_BYTES
            queue.dispatch(
                hash_kernel(self.scheme.rule, "leaf"), [buffer, known], n, read_at=0, write_at=at // 4
            )
        else:
            padded = np.zeros((n, self._padded_bytes(width)), np.uint8)
            rule.pad(rows, padded)
            at, n_blocks = padded.nbytes, padded.shape[1] // rule.block_bytes
            if n_blocks > MAX_BLOCKS:
                out[:] = PlainEngine(self.scheme).leaves(rows)
                return
            buffer = context.upload(padded, context.buffer(at + n * DIGEST_BYTES))
            queue.dispatch(
                hash_kernel(self.scheme.rule, "message"), [buffer, known], n,
                read_at=0, write_at=at // 4, n_blocks=n_blocks, length=width,
            )  # fmt: skip
        queue.finish()
        out[:] = context.download(buffer, n * DIGEST_BYTES, at).reshape(n, DIGEST_BYTES)

    def _levels(self, nodes: np.ndarray, height: int) -> list[np.ndarray]:
        """The ``height`` levels above ``nodes``."""
        n = len(nodes)
        sizes = [n >> k for k in range(1, height + 1)]
        buffer = self.context.upload(nodes, self.context.buffer((n + sum(sizes)) * DIGEST_BYTES))
        queue = Queue(self.context, self._pace)
        self._climb(queue, buffer, 0, n, height)
        queue.finish()
        content = self.context.download(buffer, sum(sizes) * DIGEST_BYTES, n * DIGEST_BYTES)
        return np.split(content.reshape(-1, DIGEST_BYTES), np.cumsum(sizes)[:-1])

    def _roots(self, rows: np.ndarray, height: int) -> np.ndarray:
        """Roots of subtrees of 2^height leaves of 32 bytes; nothing else comes back."""
        n = len(rows)
        first = n if self.scheme.hashes_leaves else 0
        total = first + sum(n >> k for k in range(height + 1))
        buffer = self.context.upload(rows, self.context.buffer(total * DIGEST_BYTES))
        queue = Queue(self.context, self._pace)
        if first:
            known = self.context.upload(self._known)
            kernel = hash_kernel(self.scheme.rule, "leaf")
            queue.dispatch(kernel, [buffer, known], n, read_at=0, write_at=first * WORDS)
        self._climb(queue, buffer, first, n, height)
        queue.finish()
        n_bytes = (n >> height) * DIGEST_BYTES
        return self.context.download(buffer, n_bytes, total * DIGEST_BYTES - n_bytes).reshape(
            -1, DIGEST_BYTES
        )

    def _climb(self, queue: Queue, buffer: Buffer, at: int, n: int, height: int) -> None:
        """Each level behind the one below it; ``at`` counts nodes."""
        known = self.context.upload(self._known)
        for _ in range(height):
            queue.dispatch(self._pair, [buffer, known], n // 2, read_at=at * WORDS, write_at=(at + n) * WORDS)
            at, n = at + n, n // 2
