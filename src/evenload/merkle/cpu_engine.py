"""Hashes on the processor: compiled vector kernels, over as many threads as asked for."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from evenload.errors import ConfigError
from evenload.gpu.llvm.rows import address
from evenload.merkle.plain_engine import HashEngine
from evenload.merkle.rows import new_nodes
from evenload.merkle.scheme import DIGEST_BYTES, Scheme

CHUNK_LEAVES = 1 << 14
"""Subtrees of so many leaves are folded at once: their nodes stay in the cache."""
ROWS_PER_THREAD = 4096
"""A level is split over threads only if each gets so many rows."""
PAD_ROWS = 16
"""Leaves of lengths other than 32 are padded into groups of a multiple of so many rows, the widest vector."""


class CpuEngine(HashEngine):
    """An engine of ``threads`` threads that hash parts of a level; kernels release the GIL."""

    name = "cpu"

    def __init__(self, scheme: Scheme, threads: int = 1):
        if threads < 1:
            raise ConfigError(f"{threads} threads cannot hash", hint="use 1 or more")
        self.scheme, self.threads = scheme, threads
        self._pool: ThreadPoolExecutor | None = None
        if scheme.name == "poseidon":
            from evenload.gpu.llvm.hash.poseidon_kernels import poseidon_program

            self._kernels = poseidon_program()
        else:
            from evenload.gpu.llvm.hash.hash_kernels import hash_program

            self._kernels = hash_program(scheme.rule)
        kind = np.uint64 if scheme.name == "openzeppelin" else np.uint32
        self._params = np.array(scheme.params(), kind)

    def _hash_leaves(self, rows: np.ndarray, out: np.ndarray) -> None:
        self._split(len(rows), lambda start, stop: self._leaves(rows[start:stop], out[start:stop]))

    def _hash_pairs(self, nodes: np.ndarray, out: np.ndarray) -> None:
        source, target, params = address(nodes), address(out), address(self._params)

        def part(start: int, stop: int) -> None:
            self._kernels.pairs(
                source + 2 * DIGEST_BYTES * start, target + DIGEST_BYTES * start, stop - start, params
            )

        self._split(len(out), part)

    def subtree_roots(self, rows: np.ndarray, height: int) -> np.ndarray:
        n_roots = len(rows) >> height
        out = new_nodes(n_roots)
        if (1 << height) <= CHUNK_LEAVES:
            self._split(n_roots, lambda start, stop: self._roots(rows, height, out, start, stop), least=1)
            return out
        low = int(math.log2(CHUNK_LEAVES))
        below = self.subtree_roots(rows, low)
        out[:] = self.climb(below, height - low)[-1]
        return out

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _roots(self, rows: np.ndarray, height: int, out: np.ndarray, start: int, stop: int) -> None:
        """Roots ``start`` .. ``stop - 1``, as many at once as fill a chunk."""
        at_once = CHUNK_LEAVES >> height
        scratch = new_nodes(at_once << height)
        for first in range(start, stop, at_once):
            n = min(at_once, stop - first)
            nodes = scratch[: n << height]
            part = rows[first << height : (first + n) << height]
            if self.scheme.hashes_leaves:
                self._leaves(part, nodes)
            else:
                nodes[:] = part
            self._kernels.fold(address(nodes), len(nodes), height, address(self._params))
            out[first : first + n] = nodes[:n]

    def _leaves(self, rows: np.ndarray, out: np.ndarray) -> None:
        n, width = rows.shape
        if width == DIGEST_BYTES:
            self._kernels.leaves(address(rows), address(out), n, address(self._params))
            return
        from evenload.gpu.hashing.rules import RULES

        rule = RULES[self.scheme.rule]
        for start in range(0, n, ROWS_PER_THREAD):
            part = rows[start : start + ROWS_PER_THREAD]
            n_padded = -(-len(part) // PAD_ROWS) * PAD_ROWS
            padded = np.zeros((n_padded, rule.padded_bytes(width)), np.uint8)
            rule.pad(part, padded)
            digests = new_nodes(n_padded)
            n_blocks = padded.shape[1] // rule.block_bytes
            self._kernels.messages(
                address(padded), padded.shape[1], n_blocks, width, address(digests), n_padded,
                address(self._params),
            )  # fmt: skip
            out[start : start + len(part)] = digests[: len(part)]

    def _split(self, n: int, work: Callable[[int, int], None], least: int = ROWS_PER_THREAD) -> None:
        """``work(start, stop)`` on parts of ``n`` rows, in threads if it is worth it."""
        parts = min(self.threads, n // least)
        if parts < 2:
            if n:
                work(0, n)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="merkle")
        bounds = [n * k // parts for k in range(parts + 1)]
        # Results are asked for so that what a thread raises is raised here.
        list(self._pool.map(work, bounds[:-1], bounds[1:]))
