"""The optimal ate pairing with the compiled tower kernels: products of pairings compared with one."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from evenload.gpu.field import FQ
from evenload.gpu.llvm import programs, rows
from evenload.gpu.llvm.layout import N_LINES
from evenload.zk.bn254 import plain_pairing as oracle
from evenload.zk.bn254.plain_curve import G2

__all__ = ["Lines", "final_exponentiation", "g1_row", "g2_row", "is_one_product", "miller_loop"]

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
    """The lines of the Miller loop for one finite point of G2; worth keeping for the points of a key."""

    def __init__(self, point: Any):
        images = [oracle.frobenius_point(point, 1), G2.negate(oracle.frobenius_point(point, 2))]
        images_rows = np.concatenate([g2_row(image) for image in images])
        self.table = rows.empty(N_LINES, _LINE_BYTES)
        given = g2_row(point)
        programs.scalar().g2_lines(*map(rows.address, (given, images_rows, self.table)))


def miller_loop(pairs: Sequence[tuple[Any, Lines]]) -> np.ndarray:
    """The product of the Miller functions; points of G1 must be finite."""
    tables = np.array([rows.address(lines.table) for _, lines in pairs], np.int64)
    points = np.concatenate([g1_row(point) for point, _ in pairs]) if pairs else rows.zeros(1, 64)
    out = rows.empty(1, _F12_BYTES)
    programs.scalar().miller_loop(rows.address(tables), rows.address(points), len(pairs), rows.address(out))
    return out


@functools.cache
def _frobenius_factors(n: int) -> np.ndarray:
    """(9 + u)^(k * (q^n - 1) / 6) for k = 0..5, in Montgomery form."""
    factors = [oracle.power2(oracle.XI, k * (FQ.modulus**n - 1) // 6) for k in range(6)]
    return rows.from_integers([FQ.montgomery(c) for factor in factors for c in factor])


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


def is_one_product(pairs: Sequence[tuple[Any, Lines | None]]) -> bool:
    """Whether the product of e(p, q) is one; a pair with infinity (None) counts as one."""
    finite = [(point, lines) for point, lines in pairs if point is not None and lines is not None]
    return to_integers(final_exponentiation(miller_loop(finite))) == oracle.ONE
