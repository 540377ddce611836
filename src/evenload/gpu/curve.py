"""Points of y^2 = x^3 + b: complete projective addition, with no special cases, for any kernel language.

``f`` is what emits or does the arithmetic: LLVM code (``llvm.arith``, ``llvm.extension``) or WGSL text
(``wgsl.sums``).
Source: Renes, Costello, Batina, "Complete addition formulas for prime order elliptic curves" (2016),
algorithms 7, 8 and 9 for a = 0. They are complete where the curve has no point of order two, which holds for
G1 and for the whole twist of BN254 (its order, r times 2q - r, is odd).
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Point:
    """A point (x : y : z) in projective coordinates; infinity is (0 : 1 : 0)."""

    x: Any
    y: Any
    z: Any


def infinity(f: Any) -> Point:
    return Point(f.zero(), f.one(), f.zero())


def select_point(f: Any, mask: Any, a: Point, b: Point) -> Point:
    return Point(f.select(mask, a.x, b.x), f.select(mask, a.y, b.y), f.select(mask, a.z, b.z))


def add(f: Any, a: Point, b: Point) -> Point:
    """a + b for any two points, equal, opposite or infinite ones included."""
    xx, yy, zz = f.multiply(a.x, b.x), f.multiply(a.y, b.y), f.multiply(a.z, b.z)
    xy = _cross(f, a.x, a.y, b.x, b.y, xx, yy)
    yz = _cross(f, a.y, a.z, b.y, b.z, yy, zz)
    xz = _cross(f, a.x, a.z, b.x, b.z, xx, zz)
    return _combine(f, xx, yy, f.times_3b(zz), xy, yz, f.times_3b(xz))


def add_affine(f: Any, a: Point, x: Any, y: Any) -> Point:
    """a + (x, y), where (x, y) is not infinity."""
    xx, yy = f.multiply(a.x, x), f.multiply(a.y, y)
    xy = _cross(f, a.x, a.y, x, y, xx, yy)
    yz = f.add(f.multiply(y, a.z), a.y)
    xz = f.add(f.multiply(x, a.z), a.x)
    return _combine(f, xx, yy, f.times_3b(a.z), xy, yz, f.times_3b(xz))


def double(f: Any, a: Point) -> Point:
    """a + a, in nine products instead of fourteen."""
    yy, zz3 = f.below(f.square(a.y), 2), f.below(f.times_3b(f.below(f.square(a.z), 2)), 2)
    yy8 = yy
    for _ in range(3):
        yy8 = f.below(f.double(yy8), 2)
    plus, minus = f.below(f.add(yy, zz3), 4), f.below(f.subtract(yy, f.below(f.triple(zz3), 2)), 4)
    return Point(
        f.double(f.multiply(minus, f.below(f.multiply(a.x, a.y), 2))),
        f.dot((minus, plus, 1), (zz3, yy8, 1)),
        f.multiply(f.below(f.multiply(a.y, a.z), 2), yy8),
    )


def _cross(f: Any, a0: Any, a1: Any, b0: Any, b1: Any, low: Any, high: Any) -> Any:
    """a0*b1 + a1*b0."""
    return f.subtract(f.subtract(f.multiply(f.add(a0, a1), f.add(b0, b1)), low), high)


def _combine(f: Any, xx: Any, yy: Any, zz: Any, xy: Any, yz: Any, xz: Any) -> Point:
    """The last step of both algorithms; ``zz`` and ``xz`` come multiplied by 3b."""
    xx3 = f.below(f.triple(xx), 4)
    plus, minus = f.below(f.add(yy, zz), 4), f.below(f.subtract(yy, zz), 4)
    xy, yz, xz = f.below(xy, 4), f.below(yz, 4), f.below(xz, 4)
    return Point(
        f.dot((xy, minus, 1), (yz, xz, -1)),
        f.dot((minus, plus, 1), (xx3, xz, 1)),
        f.dot((plus, yz, 1), (xx3, xy, 1)),
    )
