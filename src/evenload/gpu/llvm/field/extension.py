"""The quadratic extension Fq2 = Fq[u] / (u^2 + 1) over any level; the same members as ``PrimeField``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenload.gpu.field import TWIST_B, Prime
from evenload.gpu.llvm.field.arith import Element, Field, PrimeField
from evenload.gpu.llvm.ir_builder import Code


@dataclass(frozen=True, slots=True)
class Pair:
    """An element c0 + c1*u of the quadratic extension."""

    c0: Element
    c1: Element


class QuadraticField(Field):
    """Arithmetic of pairs over ``prime`` at one level, as LLVM code."""

    degree = 2

    def __init__(self, code: Code, level_type: type, prime: Prime):
        self.base = PrimeField(code, level_type, prime)
        self.code, self.level, self.p, self.prime = code, self.base.level, self.base.p, prime

    def constant(self, value: tuple[int, int]) -> Pair:
        return Pair(self.base.constant(value[0]), self.base.constant(value[1]))

    def zero(self) -> Pair:
        return Pair(self.base.zero(), self.base.zero())

    def one(self) -> Pair:
        return Pair(self.base.one(), self.base.zero())

    @property
    def block_bytes(self) -> int:
        return 2 * self.base.block_bytes

    def load(self, address: Any, offset: int = 0, bound: float = 2, is_tidy: bool = True) -> Pair:
        size = self.base.block_bytes
        return Pair(*(self.base.load(address, offset + k * size, bound, is_tidy) for k in (0, 1)))

    def store(self, a: Pair, address: Any, offset: int = 0, bound: float = 2) -> None:
        self.base.store(a.c0, address, offset, bound)
        self.base.store(a.c1, address, offset + self.base.block_bytes, bound)

    def load_rows(self, addresses: Sequence[Any], n_elements: int, bound: float = 1) -> list[Pair]:
        flat = self.base.load_rows(addresses, 2 * n_elements, bound)
        return [Pair(*flat[k : k + 2]) for k in range(0, len(flat), 2)]

    def store_rows(self, elements: Sequence[Pair], addresses: Sequence[Any]) -> None:
        self.base.store_rows([c for a in elements for c in (a.c0, a.c1)], addresses)

    def flatten(self, a: Pair) -> list[Any]:
        return [*a.c0.limbs, *a.c1.limbs]

    def gather(self, limbs: Sequence[Any], bound: float) -> Pair:
        half = len(limbs) // 2
        return Pair(Element(limbs[:half], bound), Element(limbs[half:], bound))

    def _each(self, operation: Any, *operands: Pair) -> Pair:
        return Pair(operation(*(a.c0 for a in operands)), operation(*(a.c1 for a in operands)))

    def tidy(self, a: Pair) -> Pair:
        return self._each(self.base.tidy, a)

    def below(self, a: Pair, bound: float) -> Pair:
        return self._each(lambda c: self.base.below(c, bound), a)

    def canonical(self, a: Pair) -> Pair:
        return self._each(self.base.canonical, a)

    def add(self, a: Pair, b: Pair) -> Pair:
        return self._each(self.base.add, a, b)

    def subtract(self, a: Pair, b: Pair) -> Pair:
        return self._each(self.base.subtract, a, b)

    def negate(self, a: Pair) -> Pair:
        return self._each(self.base.negate, a)

    def conjugate(self, a: Pair) -> Pair:
        return Pair(a.c0, self.base.negate(a.c1))

    def scale(self, a: Pair, factor: Element) -> Pair:
        return self._each(lambda c: self.base.multiply(c, factor), a)

    def times_3b(self, a: Pair) -> Pair:
        return self.multiply(a, self.constant((3 * TWIST_B[0], 3 * TWIST_B[1])))

    def multiply(self, a: Pair, b: Pair) -> Pair:
        """Three products (Karatsuba) and, at a level with wide products, only two reductions."""
        f = self.base
        if not hasattr(self.level, "product"):
            low, high = f.multiply(a.c0, b.c0), f.multiply(a.c1, b.c1)
            cross = f.multiply(f.add(a.c0, a.c1), f.add(b.c0, b.c1))
            return Pair(f.subtract(low, high), f.subtract(f.subtract(cross, low), high))
        a, b = self.below(a, 8), self.below(b, 8)
        return self._multiply_wide(a, b)

    def _multiply_wide(self, a: Pair, b: Pair) -> Pair:
        f, level = self.base, self.level
        low, high = level.product(a.c0.limbs, b.c0.limbs), level.product(a.c1.limbs, b.c1.limbs)
        sum_a, sum_b = f.tidy(f.add(a.c0, a.c1)), f.tidy(f.add(b.c0, b.c1))
        cross = level.product(sum_a.limbs, sum_b.limbs)
        size = math.ceil(a.c1.bound * b.c1.bound)
        real = level.subtract(low, high, size * self.p * self.p)
        imaginary = level.subtract(cross, level.add(low, high), 0)  # exactly a0*b1 + a1*b0, so never negative
        real_bound = (a.c0.bound * b.c0.bound + size) * f.ratio + level.excess
        imaginary_bound = (a.c0.bound * b.c1.bound + a.c1.bound * b.c0.bound) * f.ratio + level.excess
        return Pair(
            Element(level.reduce_wide(real), real_bound, is_tidy=False),
            Element(level.reduce_wide(imaginary), imaginary_bound, is_tidy=False),
        )

    multiply_inline = multiply

    def square(self, a: Pair) -> Pair:
        f = self.base
        real = f.multiply(f.add(a.c0, a.c1), f.subtract(a.c0, a.c1))
        return Pair(real, f.multiply(f.double(a.c0), a.c1))

    def is_zero(self, a: Pair) -> Any:
        return self.code.ir.and_(self.base.is_zero(a.c0), self.base.is_zero(a.c1))

    def equal(self, a: Pair, b: Pair) -> Any:
        return self.code.ir.and_(self.base.equal(a.c0, b.c0), self.base.equal(a.c1, b.c1))

    def select(self, mask: Any, a: Pair, b: Pair) -> Pair:
        return self._each(lambda x, y: self.base.select(mask, x, y), a, b)

    def is_canonical(self, a: Pair) -> Any:
        return self.code.ir.and_(self.base.is_canonical(a.c0), self.base.is_canonical(a.c1))

    def invert(self, a: Pair) -> Pair:
        f = self.base
        norm = f.invert(f.dot((a.c0, a.c0, 1), (a.c1, a.c1, 1)))
        return Pair(f.multiply(a.c0, norm), f.multiply(f.negate(a.c1), norm))
