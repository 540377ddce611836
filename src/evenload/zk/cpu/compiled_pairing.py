"""The optimal ate pairing with the compiled tower kernels: products of pairings compared with one."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from evenload.gpu.field import FQ, X
from evenload.gpu.llvm import programs, rows
from evenload.gpu.llvm.layout import N_LINES, SCRATCH_BYTES
from evenload.zk.bn254 import plain_pairing as oracle
from evenload.zk.bn254.plain_curve import G2
from evenload.zk.cpu import points

_F12_BYTES = 384
_LINE_BYTES = 128


def g1_row(point: Any) -> np.ndarray:
    """[1, 8] uint64, Montgomery; zeros for infinity."""
    return rows.from_integers([FQ.montgomery(c) for c in (point or (0, 0))], 4).reshape(1, 8)


def g2_row(point: Any) -> np.ndarray:
    """[1, 16] uint64, Montgomery; zeros for infinity."""
    x, y = point or ((0, 0), (0, 0))
    return rows.from_integers([FQ.montgomery(c) for c in (*x, *y)]).reshape(1, 16)


class Lines:
    """The lines of the Miller loop for one finite point of G2, worth keeping for the points of a key."""

    def __init__(self, table: np.ndarray):
        self.table = table

    @classmethod
    def of_each(cls, points: Sequence[Any]) -> list["Lines"]:
        """For each of ``points``, which have order r; together they cost less than one by one."""
        images = [(oracle.frobenius_point(p, 1), G2.negate(oracle.frobenius_point(p, 2))) for p in points]
        images_rows = np.concatenate([g2_row(image) for both in images for image in both])
        given = np.concatenate([g2_row(point) for point in points])
        scratch = rows.empty(len(points), SCRATCH_BYTES)
        table = rows.empty(len(points) * N_LINES, _LINE_BYTES)
        programs.scalar().g2_lines(
            *map(rows.address, (given, images_rows)), len(points), *map(rows.address, (scratch, table))
        )
        return [cls(table[k : k + N_LINES]) for k in range(0, len(table), N_LINES)]


def has_order_r(point: Any) -> bool:
    """Whether a finite point of the twist is in G2.

    The Frobenius map psi has psi^2 - t psi + q = 0 on the whole twist, so where psi(P) = [t - 1] P, it
    follows that [q + 1 - t] P = [r] P = 0; and in G2 psi is [q] = [t - 1]. For this curve t - 1 = 6 x^2.
    """
    multiple = points.combine(2, g2_row(point), [6 * X * X], n_bits=127, are_public=True)
    return points.to_integers(multiple) == oracle.frobenius_point(point, 1)


def miller_loop(given: np.ndarray, lines: Sequence[Lines]) -> np.ndarray:
    """The product of the Miller functions at ``given``, rows of finite points of G1, each with its lines."""
    tables = np.array([rows.address(one.table) for one in lines], np.int64)
    aligned = rows.empty(max(1, len(given)), 64)
    aligned[: len(given)] = given
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


def is_one_product(given: np.ndarray, lines: Sequence[Lines]) -> bool:
    """Whether the product of e(p, q) is one.

    given  [n, 8] uint64 rows of points of G1; zeros are infinity, whose pairing is one
    lines  those of n points of G2
    """
    is_finite = np.any(given, axis=1)
    finite = [one for one, counts in zip(lines, is_finite, strict=True) if counts]
    return to_integers(final_exponentiation(miller_loop(given[is_finite], finite))) == oracle.ONE
