"""Multi-scalar multiplication over G1 or G2 with the bucket kernels: sum of scalars[i] * points[i].

Bases.load(rows)  ->  points on the curve, infinity dropped, in the level's form, once for each key
multiply(bases, scalars)  ->  digits, then windows (in groups) on as many threads as wanted, then one fold
"""

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenload.errors import FormatError
from evenload.gpu.llvm import programs, rows
from evenload.gpu.llvm.layout import LEVELS, PAIR_SLACK, scratch_bytes, shared_inversion
from evenload.zk.bn254.plain_curve import checked_point

_CHUNK_POINTS = 1 << 16
"""Points whose buckets are taken through all rounds at once, so that what lies between rounds stays in the
cache."""
_SORT_TOGETHER = 1 << 19
"""Digits that are sorted at once: small sums take several windows together."""
_BUCKET_COST = 2.7
"""Time of a bucket in ``bucket_sum``, in affine additions; see benchmarks/zk_kernels.py."""


@dataclass(frozen=True, slots=True)
class Bases:
    """Points of a key in a level's form.

    points  [n_padded, 8 * degree] uint64 rows, affine, canonical
    keep    [n] int32, the position of each point among those given (infinity is dropped)
    """

    degree: int
    level: str
    n_given: int
    keep: np.ndarray
    points: np.ndarray

    @classmethod
    def load(
        cls, given: np.ndarray, degree: int, level: str, where: Callable[[int, str], str] | None = None
    ) -> "Bases":
        """``given``: [n, 8 * degree] uint64, affine rows as .zkey holds them (Montgomery, R = 2^256; zeros:
        infinity).

        Raises FormatError if a coordinate is not below q or a point is not on the curve; ``where(position,
        why)`` gives the message.
        """
        n_given, row_bytes = len(given), 64 * degree
        scratch = np.empty(n_given + 1, np.int32)
        count = programs.scalar().nonzero_rows(rows.address(given), n_given, row_bytes, rows.address(scratch))
        keep = scratch[:count].copy()
        points = rows.empty(count + 8, row_bytes)
        if count:
            bad = np.zeros(1, np.int64)
            load = getattr(programs.bulk(level), f"g{degree}_import_points")
            fault = load(*map(rows.address, (given, keep)), count, *map(rows.address, (points, bad)))
            if fault:
                position, why = _locate(given, keep[int(bad[0]) :][:8])
                raise FormatError(where(position, why) if where else f"point {position} {why}")
        return cls(degree, level, n_given, keep, points)


def _locate(given: np.ndarray, candidates: np.ndarray) -> tuple[int, str]:
    """Which of the points the kernel refused, and why, by the oracle."""
    for position in map(int, candidates):
        try:
            checked_point(given[position])
        except ValueError as why:
            return position, str(why)
    raise AssertionError("a kernel refused points that the oracle accepts")


def choose_width(n_bits: int, n: int) -> int:
    """Window width for ``n`` scalars with ``n_bits`` significant bits in total: least estimated time."""

    def time(width: int) -> float:
        return n_bits / width + 254 / width * 2 ** (width - 1) * _BUCKET_COST

    return min(range(4, 17), key=time) if n else 4


def window_count(n_bits: int | None, width: int) -> int:
    """Windows of signed digits for scalars below 2^n_bits, or (None) below r; the top digit must take a
    carry.

    r is about 0.76 * 2^254, so below r and from width 4 on the top window may use all its bits but one.
    """
    return 254 // width + 1 if n_bits is None else (n_bits + 1) // width + 1


@dataclass(slots=True)
class _Work:
    """Buffers of one thread; they grow and are used again."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def get(self, name: str, n: int, row_bytes: int, dtype: type = np.uint64) -> int:
        held = self.arrays.get(name)
        if held is None or held.nbytes < n * row_bytes:
            self.arrays[name] = held = rows.empty(n, row_bytes, dtype)
        return rows.address(held)


def significant_bits(scalars: np.ndarray) -> int:
    """About the sum of the bit lengths of [n, 4] uint64 scalars: 64 for every word up to the top non-zero
    one."""
    high = scalars[:, 3] != 0
    total = int(high.sum()) * 254
    rest = ~high
    for word, bits in ((2, 192), (1, 128), (0, 32)):
        now = rest & (scalars[:, word] != 0)
        total += int(now.sum()) * bits
        rest &= ~now
    return total


def signed_digits(
    keep: np.ndarray, n_given: int, scalars: np.ndarray, width: int | None = None
) -> tuple[np.ndarray, int] | None:
    """[n_windows, n] int16 digits of scalars[keep[i]], and their width in bits; None if all are zero."""
    n = len(keep)
    kept = scalars if n == n_given else scalars[keep]
    top = next((word for word in (3, 2, 1, 0) if kept[:, word].any()), None)
    if top is None:
        return None
    width = width or choose_width(significant_bits(kept), n)
    n_windows = window_count(None if top == 3 else 64 * top + int(kept[:, top].max()).bit_length(), width)
    digit = np.empty((n_windows, n), np.int16)
    programs.scalar().digits(
        rows.address(scalars), rows.address(keep), n, width, n_windows, rows.address(digit)
    )
    return digit, width


def sort_digits(digit: np.ndarray, n_buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each bucket (window, |digit| - 1) begins, [n_windows * n_buckets + 1] int64, and the positions
    sorted by bucket, int32 with the digit's sign in bit 31. Zeros are left out."""
    n_windows, n = digit.shape
    start, index = np.empty(n_windows * n_buckets + 2, np.int64), np.empty(n_windows * n + 1, np.int32)
    programs.scalar().sort(
        rows.address(digit), n, n_windows, n_buckets, rows.address(start), rows.address(index)
    )
    return start[:-1], index[: start[-2]]


def multiply(
    bases: Bases,
    scalars: np.ndarray,
    run: Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]] = map,
    width: int | None = None,
    buffers: threading.local | None = None,
) -> np.ndarray:
    """sum of scalars[i] * point i over the points that were given to ``Bases.load``.

    scalars  [n_given, 4] uint64, plain, below r
    run      ``map``, or a pool's map: window groups run on its threads (kernels release the GIL)
    buffers  work space that is kept between calls, one set for each thread Returns an affine row [8 * degree]
             uint64, Montgomery with R = 2^256, zeros for infinity.
    """
    n, degree = len(bases.keep), bases.degree
    out = rows.zeros(1, 64 * degree)
    found = signed_digits(bases.keep, bases.n_given, scalars, width)
    if found is None:
        return out[0]
    digit, width = found
    n_windows = len(digit)
    together = max(1, min(n_windows, _SORT_TOGETHER // n))
    groups = [digit[w : w + together] for w in range(0, n_windows, together)]
    local = buffers or threading.local()

    def one(group: np.ndarray) -> np.ndarray:
        if not hasattr(local, "work"):
            local.work = _Work()
        return _sum_windows(bases, group, width, local.work)

    segments = np.concatenate(list(run(one, groups)))
    lanes = LEVELS[bases.level].lanes
    log_length = int(math.log2((1 << width - 1) // lanes))
    fold = getattr(programs.scalar(), f"g{degree}_fold")
    fold(rows.address(segments), n_windows, lanes, log_length, width, rows.address(out))
    return out[0]


def _sum_windows(bases: Bases, digit: np.ndarray, width: int, work: _Work) -> np.ndarray:
    """What ``bucket_sum`` leaves for each window: [windows, lanes * 2 * 12 * degree] uint64."""
    n_windows, n = digit.shape
    degree, row_bytes = bases.degree, 64 * bases.degree
    n_buckets, lanes = 1 << width - 1, LEVELS[bases.level].lanes
    n_all = n_windows * n_buckets
    start = np.empty(n_all + 2, np.int64)
    index = work.get("index", n_windows * n + 1, 4, np.int32)
    programs.scalar().sort(rows.address(digit), n, n_windows, n_buckets, rows.address(start), index)
    sums = work.get("sums", n_all, row_bytes)
    _accumulate(bases, index, start[: n_all + 1], sums, work)
    bucket_sum = getattr(programs.bulk(bases.level), f"g{degree}_bucket_sum")
    segments = rows.empty(n_windows, lanes * 192 * degree)
    for w in range(n_windows):
        bucket_sum(sums + w * n_buckets * row_bytes, n_buckets, rows.address(segments[w]))
    return segments


def _accumulate(bases: Bases, index: int, start: np.ndarray, sums: int, work: _Work) -> None:
    """sums[b] (rows at an address) = the sum of bucket b's points, for all buckets of ``start``."""
    degree, row_bytes = bases.degree, 64 * bases.degree
    kernel = getattr(programs.bulk(bases.level), f"g{degree}_accumulate")
    batch = shared_inversion(bases.level, degree)
    scratch = work.get("scratch", 1, scratch_bytes(bases.level, degree, batch))
    points = rows.address(bases.points)
    for first, last in _chunks(start):
        n_rows = int(start[last] - start[first]) // 2 + last - first + 8
        pairs = [work.get(name, n_rows + PAIR_SLACK, 8, np.int64) for name in ("p", "q", "out")]
        counts = [work.get(name, last - first + 1, 8, np.int64) for name in ("counts0", "counts1")]
        space = [work.get(name, n_rows, row_bytes) for name in ("rows0", "rows1")]
        kernel(points, index, rows.address(start), first, last, sums, *pairs, *counts, *space, scratch, batch)


def sum_groups(bases: Bases, index: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Sums of groups of points: [groups, 8 * degree] rows, Montgomery with R = 2^256, zeros for infinity.

    index  int32 positions in ``bases.points``, grouped; the sign bit asks for the negative
    start  [groups + 1] int64: group g is index[start[g]:start[g + 1]]
    """
    n, row_bytes = len(start) - 1, 64 * bases.degree
    sums, out = rows.empty(n, row_bytes), rows.empty(n, row_bytes)
    index, start = np.ascontiguousarray(index, np.int32), np.ascontiguousarray(start, np.int64)
    _accumulate(bases, rows.address(index), start, rows.address(sums), _Work())
    export = getattr(programs.bulk(bases.level), f"g{bases.degree}_export_points")
    export(rows.address(sums), n, rows.address(out))
    return out


def _chunks(start: np.ndarray) -> Sequence[tuple[int, int]]:
    """Ranges of buckets with about ``_CHUNK_POINTS`` points each; a bucket is never split."""
    marks = np.arange(_CHUNK_POINTS, start[-1], _CHUNK_POINTS)
    cuts = sorted({0, *np.searchsorted(start, marks).tolist(), len(start) - 1})
    return list(itertools.pairwise(cuts))
