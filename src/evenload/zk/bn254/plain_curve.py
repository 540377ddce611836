"""The groups G1 and G2 of BN254 in plain Python integers.

A point is None (infinity) or (x, y). Coordinates are integers for G1 and pairs (c0, c1) = c0 + c1*u for G2.
"""

from dataclasses import dataclass
from typing import Any

from evenload.gpu import field

Q = field.FQ.modulus
Fq2 = tuple[int, int]


def fq2_multiply(a: Fq2, b: Fq2) -> Fq2:
    return (a[0] * b[0] - a[1] * b[1]) % Q, (a[0] * b[1] + a[1] * b[0]) % Q


def fq2_inverse(a: Fq2) -> Fq2:
    norm = pow(a[0] * a[0] + a[1] * a[1], -1, Q)
    return a[0] * norm % Q, -a[1] * norm % Q


@dataclass(frozen=True, slots=True)
class CurveGroup:
    """Affine arithmetic on y^2 = x^3 + b. ``degree`` is 1 over Fq, 2 over Fq2."""

    degree: int
    generator: Any
    b: Any

    # --- the field ------------------------------------------------------------------------------
    def _add(self, x: Any, y: Any) -> Any:
        return (x + y) % Q if self.degree == 1 else ((x[0] + y[0]) % Q, (x[1] + y[1]) % Q)

    def _negate(self, x: Any) -> Any:
        return -x % Q if self.degree == 1 else (-x[0] % Q, -x[1] % Q)

    def _multiply(self, x: Any, y: Any) -> Any:
        return x * y % Q if self.degree == 1 else fq2_multiply(x, y)

    def _inverse(self, x: Any) -> Any:
        return pow(x, -1, Q) if self.degree == 1 else fq2_inverse(x)

    # --- the group ------------------------------------------------------------------------------
    def contains(self, point: Any) -> bool:
        """True for infinity and for canonical coordinates that satisfy the curve's equation (of any
        order)."""
        if point is None:
            return True
        flat = point if self.degree == 1 else (*point[0], *point[1])
        if not all(0 <= c < Q for c in flat):
            return False
        x, y = point
        return self._multiply(y, y) == self._add(self._multiply(self._multiply(x, x), x), self.b)

    def negate(self, point: Any) -> Any:
        return None if point is None else (point[0], self._negate(point[1]))

    def add(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        if a[0] == b[0]:
            if a[1] != b[1] or a[1] == self._negate(a[1]):
                return None
            square = self._multiply(a[0], a[0])
            rise, run = self._add(square, self._add(square, square)), self._add(a[1], a[1])
        else:
            rise, run = self._add(b[1], self._negate(a[1])), self._add(b[0], self._negate(a[0]))
        slope = self._multiply(rise, self._inverse(run))
        x = self._add(self._multiply(slope, slope), self._negate(self._add(a[0], b[0])))
        return x, self._add(self._multiply(slope, self._add(a[0], self._negate(x))), self._negate(a[1]))

    def multiply(self, point: Any, scalar: int) -> Any:
        total = None
        for bit in bin(scalar)[2:] if scalar else "":
            total = self.add(total, total)
            if bit == "1":
                total = self.add(total, point)
        return total


G1 = CurveGroup(1, field.G1, 3)
G2 = CurveGroup(2, field.G2, field.TWIST_B)


# --- rows, as files of keys and kernels hold points: Montgomery with R = 2^256, zeros for infinity ------
def row_of(point: Any, degree: int) -> bytes:
    """The affine row of a point."""
    flat = [0] * (2 * degree) if point is None else point if degree == 1 else (*point[0], *point[1])
    return b"".join(field.FQ.montgomery(c).to_bytes(32, "little") for c in flat)


def point_of(row: Any) -> Any:
    """The point of an affine row, given as bytes or as words."""
    c = [field.FQ.plain(value) for value in _integers(row)]
    if not any(c):
        return None
    return (c[0], c[1]) if len(c) == 2 else ((c[0], c[1]), (c[2], c[3]))


def checked_point(row: Any) -> Any:
    """``point_of`` a row that a stranger wrote. Raises ValueError that says what is wrong with it."""
    if any(value >= Q for value in _integers(row)):
        raise ValueError("has a coordinate that is not below q")
    point = point_of(row)
    if not (G1 if len(bytes(row)) == 64 else G2).contains(point):
        raise ValueError("is not on the curve")
    return point


def _integers(row: Any) -> list[int]:
    content = bytes(row)
    return [int.from_bytes(content[k : k + 32], "little") for k in range(0, len(content), 32)]
