"""The domain of a key: roots of unity, tables, and the step from values on the domain to values on its odd
coset."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from evenload.errors import ConfigError
from evenload.gpu.field import FR
from evenload.gpu.llvm import programs, rows
from evenload.gpu.llvm.layout import LEVELS

MAX_LOG_SIZE = 27
"""Fr has roots of order 2^28, and the odd coset of a domain of n needs one of order 2n."""
TABLES = ("groups", "tiles", "twiddles", "roots", "coset")


def bit_reversal(n_bits: int) -> np.ndarray:
    """[2^n_bits] int64: position -> position with its bits reversed."""
    reversed_ = np.zeros(1, np.int64)
    for _ in range(n_bits):
        reversed_ = np.concatenate([2 * reversed_, 2 * reversed_ + 1])
    return reversed_


def powers(base: int, n: int, start: int) -> np.ndarray:
    """[n, 4] rows start * base^i, where ``start`` is taken as it stands."""
    out = rows.empty(n, 32)
    first, factor = rows.from_integers([start]), rows.from_integers([FR.montgomery(base)])
    programs.scalar().powers(*map(rows.address, (first, factor, out)), n)
    return out


def log_of_size(size: int) -> int:
    """The exponent of a domain's size. Raises ConfigError for what is none."""
    log_size = size.bit_length() - 1
    if not 1 <= log_size <= MAX_LOG_SIZE or size != 1 << log_size:
        raise ConfigError(f"a domain of {size}: must be a power of two from 2 to 2^{MAX_LOG_SIZE}")
    return log_size


class Domain:
    """The domain of ``size`` (a power of two) at one level, with its tables; shared by threads, never
    changed.

    level   falls back to word64 for domains smaller than a tile of 64
    tables  of a domain that is equal (``tables()``); computed if there are none
    """

    def __init__(self, size: int, level: str, tables: Mapping[str, np.ndarray] | None = None):
        self.size, self.log_size = size, log_of_size(size)
        self.level = "word64" if size < 64 else level
        kind = LEVELS[self.level]
        self.lanes, self._block_bytes, self._bits = kind.lanes, kind.block_bytes, kind.radix_bits
        self.n_blocks = size // self.lanes
        self._kernels = programs.bulk(self.level)
        if tables is None:
            self._scatter_tables()
            self._gather_tables()
            self._coset_table()
        else:
            self._groups, self._tiles, self._twiddles, self._roots, self._coset = (
                tables[name] for name in TABLES
            )

    # --- tables ---------------------------------------------------------------------------------
    def _powers(self, base: int, n: int, start: int = 1) -> np.ndarray:
        """[n, 4] rows start * base^i, in the level's Montgomery form."""
        return powers(base, n, FR.montgomery(start, self._bits))

    def _blocks(self, table: np.ndarray) -> np.ndarray:
        """Rows, a multiple of ``lanes`` of them, to blocks."""
        n_blocks = len(table) // self.lanes
        blocks = rows.empty(n_blocks, self._block_bytes)
        source = rows.empty(len(table), 32)
        source[:] = table
        self._kernels.pack(rows.address(source), rows.address(blocks), n_blocks)
        return blocks

    def _scatter_tables(self) -> None:
        root = pow(FR.root_of_unity(self.size), -1, FR.modulus)
        twiddles = self._powers(root, max(self.size // 2, 1))[bit_reversal(self.log_size - 1)]
        n_groups = max(self.n_blocks // 2, 1)
        if self.lanes == 1:
            self._groups, self._tiles = rows.empty(n_groups, 32), rows.empty(1, 64)
            self._groups[:] = twiddles
            return
        padded = self._blocks(twiddles[: -(-n_groups // self.lanes) * self.lanes])
        limbs = padded.reshape(-1, self._block_bytes // 8 // self.lanes, self.lanes).transpose(0, 2, 1)
        self._groups = rows.empty(len(limbs) * self.lanes, self._block_bytes // self.lanes)
        self._groups[:] = limbs.reshape(len(self._groups), -1)
        tile, lane = np.arange(self.size // 64)[:, None, None], np.arange(8)[None, None, :]
        group = 8 * tile + lane
        layers = [f * group + np.arange(f)[None, :, None] for f in (1, 2, 4)]
        order = np.concatenate(layers, axis=1).reshape(-1)
        self._tiles = self._blocks(twiddles[order])

    def _gather_tables(self) -> None:
        root = FR.root_of_unity(self.size)
        full = self._powers(root, max(self.size // 2, 1))
        halves = [
            1 << k for k in range(self.n_blocks.bit_length() - 1)
        ]  # blocks in the lower half of a group
        positions = [np.arange(h * self.lanes) * (self.size // (2 * h * self.lanes)) for h in halves]
        self._twiddles = self._blocks(full[np.concatenate(positions)])
        self._roots = rows.empty(1, 64)
        if self.lanes > 1:
            eighth = self._powers(FR.root_of_unity(8), 4)
            self._roots = self._blocks(np.repeat(eighth, self.lanes, axis=0))

    def _coset_table(self) -> None:
        shift = FR.root_of_unity(2 * self.size)
        start = (
            pow(self.size, -1, FR.modulus) << self._bits - 256
        )  # rows of R = 2^256 are 2^256 / R of the level's
        table = self._powers(shift, self.size, start)
        position = np.arange(self.size)
        if self.lanes > 1:
            position = (position & ~63) | ((position & 7) << 3) | (position >> 3 & 7)
        self._coset = self._blocks(table[bit_reversal(self.log_size)[position]])

    def tables(self) -> dict[str, np.ndarray]:
        """What another ``Domain`` of this size and level may be made with."""
        found = (self._groups, self._tiles, self._twiddles, self._roots, self._coset)
        return dict(zip(TABLES, found, strict=True))

    # --- work -----------------------------------------------------------------------------------
    def to_odd_coset(self, values: np.ndarray) -> np.ndarray:
        """Values of a polynomial on the domain -> its values on the odd coset.

        values  [size, 4] uint64 rows, Montgomery with R = 2^256, canonical Returns blocks that only
                ``quotient`` reads.
        """
        blocks = rows.empty(self.n_blocks, self._block_bytes)
        at, n = rows.address(blocks), self.n_blocks
        self._kernels.pack(rows.address(values), at, n)
        self._kernels.scatter(at, n, rows.address(self._groups), rows.address(self._tiles))
        self._kernels.multiply_blocks(at, at, rows.address(self._coset), n)
        self._kernels.gather(at, n, rows.address(self._twiddles), rows.address(self._roots))
        return blocks

    def quotient(
        self,
        a: np.ndarray,
        b: np.ndarray,
        c: np.ndarray,
        run: Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]] = map,
    ) -> np.ndarray:
        """[size, 4] plain canonical rows of a*b - c on the odd coset, from values on the domain as in
        ``to_odd_coset``."""
        blocks = list(run(self.to_odd_coset, (a, b, c)))
        out = rows.empty(self.size, 32)
        self._kernels.quotient(*map(rows.address, (*blocks, out)), self.n_blocks)
        return out
