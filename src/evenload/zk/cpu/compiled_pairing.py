"""The optimal ate pairing with the compiled tower kernels: products of pairings compared with one."""

import functools
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from evenload.gpu.field import FQ, FR, X
from evenload.gpu.llvm import programs, rows
from evenload.gpu.llvm.layout import N_LINES, SCRATCH_BYTES
from evenload.zk.bn254 import plain_pairing as oracle
from evenload.zk.bn254.plain_curve import G1, G2, point_of, row_of
from evenload.zk.cpu import points

_F12_BYTES = 384
_LINE_BYTES = 128
_EXPONENT_BITS = 128


def rows_of(points: Sequence[Any], degree: int) -> np.ndarray:
    """[n, 8 * degree] uint64 on a cache line: the affine rows of points."""
    out = rows.empty(len(points), 64 * degree)
    for row, point in zip(out, points, strict=True):
        row[:] = np.frombuffer(row_of(point, degree), np.uint64)
    return out


def lines_of(points: Sequence[Any]) -> list[np.ndarray]:
    """For each of ``points``, finite and of order r, the lines of its Miller loop, worth keeping for a key's.

    Together they cost less than one by one.
    """
    images = [(oracle.frobenius_point(p, 1), G2.negate(oracle.frobenius_point(p, 2))) for p in points]
    images_rows = rows_of([image for both in images for image in both], 2)
    given = rows_of(points, 2)
    scratch = rows.empty(len(points), SCRATCH_BYTES)
    table = rows.empty(len(points) * N_LINES, _LINE_BYTES)
    programs.scalar().g2_lines(
        *map(rows.address, (given, images_rows)), len(points), *map(rows.address, (scratch, table))
    )
    return [table[k : k + N_LINES] for k in range(0, len(table), N_LINES)]


def has_order_r(point: Any) -> bool:
    """Whether a finite point of the twist is in G2.

    The Frobenius map psi has psi^2 - t psi + q = 0 on the whole twist, so where psi(P) = [t - 1] P, it
    follows that [q + 1 - t] P = [r] P = 0; and in G2 psi is [q] = [t - 1]. For this curve t - 1 = 6 x^2.
    """
    multiple = points.combine(2, rows_of([point], 2), [6 * X * X], n_bits=127, are_public=True)
    return point_of(multiple) == oracle.frobenius_point(point, 1)


def miller_loop(given: np.ndarray, lines: Sequence[np.ndarray]) -> np.ndarray:
    """The product of the Miller functions at ``given``, rows of finite points of G1, each with its lines."""
    tables = np.array([rows.address(one) for one in lines], np.int64)
    aligned = rows.aligned(given)
    out = rows.empty(1, _F12_BYTES)
    programs.scalar().miller_loop(rows.address(tables), rows.address(aligned), len(lines), rows.address(out))
    return out


@functools.cache
def _frobenius_factors(n: int) -> np.ndarray:
    """(9 + u)^(k * (q^n - 1) / 6) for k = 0..5, in Montgomery form."""
    return rows.from_integers([FQ.montgomery(c) for factor in oracle.xi_powers(n) for c in factor])


def _frobenius(a: np.ndarray, n: int) -> np.ndarray:
    out = rows.empty(1, _F12_BYTES)
    programs.scalar().f12_map(*map(rows.address, (out, a, _frobenius_factors(n))), n % 2)
    return out


def _conjugate(a: np.ndarray) -> np.ndarray:
    """a^(q^6), which inverts elements of the cyclotomic subgroup."""
    return _frobenius(a, 6)


def _times(*factors: np.ndarray) -> np.ndarray:
    out = factors[0].copy()
    for factor in factors[1:]:
        programs.scalar().f12_multiply(*map(rows.address, (out, out, factor)))
    return out


def _power_x(a: np.ndarray) -> np.ndarray:
    out = rows.empty(1, _F12_BYTES)
    programs.scalar().f12_power_x(rows.address(out), rows.address(a))
    return out


def final_exponentiation(f: np.ndarray) -> np.ndarray:
    """f^((q^12 - 1) / r).

    Source of the addition chain for the last factor: Scott, Benger, Charlemagne, Dominguez Perez, Kachisa,
    "On the final exponentiation for calculating pairings on ordinary elliptic curves" (2009).
    """
    inverse = rows.empty(1, _F12_BYTES)
    programs.scalar().f12_invert(rows.address(inverse), rows.address(f))
    f = _times(_conjugate(f), inverse)
    f = _times(_frobenius(f, 2), f)
    fx = _power_x(f)
    fxx = _power_x(fx)
    fxxx = _power_x(fxx)
    y0 = _times(_frobenius(f, 1), _frobenius(f, 2), _frobenius(f, 3))
    y1, y5 = _conjugate(f), _conjugate(fxx)
    y2 = _frobenius(fxx, 2)
    y3 = _conjugate(_frobenius(fx, 1))
    y4 = _conjugate(_times(fx, _frobenius(fxx, 1)))
    y6 = _conjugate(_times(fxxx, _frobenius(fxxx, 1)))
    t0 = _times(y6, y6, y4, y5)
    t1 = _times(y3, y5, t0)
    t0 = _times(t0, y2)
    t1 = _times(t1, t1, t0)
    t1 = _times(t1, t1)
    t0, t1 = _times(t1, y1), _times(t1, y0)
    return _times(t0, t0, t1)


def to_integers(f: np.ndarray) -> Any:
    """An element as the oracle writes it."""
    values = [FQ.plain(value) for value in rows.to_integers(f)]
    return tuple(zip(values[0::2], values[1::2], strict=True))


def is_one_product(given: np.ndarray, lines: Sequence[np.ndarray]) -> bool:
    """Whether the product of e(p, q) is one.

    given  [n, 8] uint64 rows of points of G1; zeros are infinity, whose pairing is one
    lines  those of n points of G2
    """
    is_finite = np.any(given, axis=1)
    finite = [one for one, counts in zip(lines, is_finite, strict=True) if counts]
    return to_integers(final_exponentiation(miller_loop(given[is_finite], finite))) == oracle.ONE


# --- the equations of statements under one key, several checked at once ---------------------------------
class Equations:
    """The equation e(a, b) = e(alpha, beta) * e(ic, gamma) * e(c, delta) of a key, for statements.

    tables  the lines of beta, gamma and delta
    """

    def __init__(self, alpha1: Any, beta2: Any, gamma2: Any, delta2: Any, ic: Sequence[Any],
                 tables: Sequence[np.ndarray] | None = None):  # fmt: skip
        """Takes the points of a checked key; ``tables`` if they are known."""
        self._alpha1, self._ic = rows_of([alpha1], 1), rows_of(ic, 1)
        fixed = [beta2, gamma2, delta2]
        self.tables = lines_of(fixed) if tables is None else list(tables)

    def unequal(self, statements: Sequence[tuple[Sequence[int], Any]]) -> list[int]:
        """The indices of the (public inputs below r, proof of finite points) whose equation does not hold.

        Each equation is taken to the power of a random number of 128 bits, and their product is compared
        with one; where it is not, halves are, down to single ones. A wrong one is missed with a chance of at
        most 2^-127.
        Source: Bellare, Garay, Rabin, "Fast batch verification" (1998), the small exponents test.
        """
        if not statements:
            return []
        lines = lines_of([proof.b for _, proof in statements])
        return list(self._unequal(statements, lines, range(len(statements))))

    def _unequal(
        self, statements: Sequence[tuple[Sequence[int], Any]], lines: list[np.ndarray], which: range
    ) -> Iterator[int]:
        if self._hold([statements[k] for k in which], [lines[k] for k in which]):
            return
        if len(which) == 1:
            yield which[0]
            return
        middle = len(which) // 2
        for half in (which[:middle], which[middle:]):
            yield from self._unequal(statements, lines, half)

    def _hold(self, statements: Sequence[tuple[Sequence[int], Any]], lines: list[np.ndarray]) -> bool:
        n, n_bits = len(statements), _EXPONENT_BITS
        powers = [secrets.randbits(n_bits) | 1 for _ in statements] if n > 1 else [1]
        n_bits = n_bits if n > 1 else 1
        negative = rows_of([G1.negate(proof.a) for _, proof in statements], 1)
        a = [_sum(row[None], [power], n_bits) for row, power in zip(negative, powers, strict=True)]
        c = _sum(rows_of([proof.c for _, proof in statements], 1), powers, n_bits)
        total = sum(powers) % FR.modulus
        columns = zip(*(public for public, _ in statements), strict=True)
        public = [sum(p * x for p, x in zip(powers, column, strict=True)) % FR.modulus for column in columns]
        alpha, ic = _sum(self._alpha1, [total]), _sum(self._ic, [total, *public])
        return is_one_product(np.stack([*a, alpha, ic, c]), [*lines, *self.tables])


def _sum(given: np.ndarray, scalars: Sequence[int], n_bits: int = 254) -> np.ndarray:
    return points.combine(1, given, scalars, n_bits, are_public=True)
