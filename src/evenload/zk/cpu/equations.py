"""The pairing equations of Groth16 statements under one key, several checked at once."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenload.gpu.field import FR
from evenload.zk.bn254.plain_curve import G1
from evenload.zk.cpu import points
from evenload.zk.cpu.compiled_pairing import Lines, g1_row, is_one_product

EXPONENT_BITS = 128


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in integers: public inputs below r, and a proof's finite points, ``b`` of order r."""

    public: Sequence[int]
    a: Any
    b: Any
    c: Any


class Equations:
    """The equation e(a, b) = e(alpha, beta) * e(ic, gamma) * e(c, delta) of a key, for statements."""

    def __init__(self, alpha1: Any, beta2: Any, gamma2: Any, delta2: Any, ic: Sequence[Any],
                 tables: Sequence[np.ndarray] | None = None):  # fmt: skip
        """Takes the points of a checked key; ``tables`` of lines if they are known."""
        self._alpha1, self._ic = g1_row(alpha1), np.concatenate([g1_row(point) for point in ic])
        fixed = [beta2, gamma2, delta2]
        self._lines = Lines.of_each(fixed) if tables is None else [Lines(table) for table in tables]

    def tables(self) -> list[np.ndarray]:
        """The lines of beta, gamma and delta."""
        return [lines.table for lines in self._lines]

    def unequal(self, statements: Sequence[Statement]) -> list[int]:
        """The indices of those whose equation does not hold.

        Each equation is taken to the power of a random number of 128 bits, and their product is compared
        with one; where it is not, halves are, down to single ones. A wrong one is missed with a chance of at
        most 2^-127.
        Source: Bellare, Garay, Rabin, "Fast batch verification" (1998), the small exponents test.
        """
        if not statements:
            return []
        lines = Lines.of_each([one.b for one in statements])
        return list(self._unequal(statements, lines, range(len(statements))))

    def _unequal(self, statements: Sequence[Statement], lines: list[Lines], which: range) -> Iterator[int]:
        if self._hold([statements[k] for k in which], [lines[k] for k in which]):
            return
        if len(which) == 1:
            yield which[0]
            return
        middle = len(which) // 2
        for half in (which[:middle], which[middle:]):
            yield from self._unequal(statements, lines, half)

    def _hold(self, statements: Sequence[Statement], lines: list[Lines]) -> bool:
        n, n_bits = len(statements), EXPONENT_BITS
        powers = [secrets.randbits(n_bits) | 1 for _ in statements] if n > 1 else [1]
        n_bits = n_bits if n > 1 else 1
        negative = [g1_row(G1.negate(one.a)) for one in statements]
        a = [_sum(row, [power], n_bits) for row, power in zip(negative, powers, strict=True)]
        c = _sum(np.concatenate([g1_row(one.c) for one in statements]), powers, n_bits)
        total = sum(powers) % FR.modulus
        columns = zip(*(one.public for one in statements), strict=True)
        public = [sum(p * x for p, x in zip(powers, column, strict=True)) % FR.modulus for column in columns]
        alpha, ic = _sum(self._alpha1, [total]), _sum(self._ic, [total, *public])
        return is_one_product(np.stack([*a, alpha, ic, c]), [*lines, *self._lines])


def _sum(given: np.ndarray, scalars: Sequence[int], n_bits: int = 254) -> np.ndarray:
    return points.combine(1, given, scalars, n_bits, are_public=True)
