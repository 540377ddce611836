"""Prime field arithmetic, written once for any level; ``extension`` builds Fq2 on it with the same members.

Every ``Element`` carries a bound that is known while the code is emitted: its value is below ``bound * p``.
Sums only add bounds; a reduction is emitted where the next operation would not fit. So the kernels contain
the reductions they need and no others, and a formula that would overflow cannot be emitted at all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from evenload.gpu.field import FQ, Prime
from evenload.gpu.llvm.ir_builder import Code, Variable


@dataclass(frozen=True, slots=True)
class Element:
    """Elements of a prime field in registers, ``lanes`` of them, each below ``bound * p``; ``is_tidy``:
    limbs are carried."""

    limbs: Sequence[Any]
    bound: float
    is_tidy: bool = field(default=True)


class Field:
    """What fields of every degree do alike, with their own sums and products."""

    def double(self: Any, a: Any) -> Any:
        return self.add(a, a)

    def triple(self: Any, a: Any) -> Any:
        return self.add(self.double(a), a)

    def dot(self: Any, *terms: tuple[Any, Any, int]) -> Any:
        """The sum of sign * a * b over ``terms``."""
        total = self.multiply(*terms[0][:2])
        total = total if terms[0][2] > 0 else self.negate(total)
        for a, b, sign in terms[1:]:
            total = (self.add if sign > 0 else self.subtract)(total, self.multiply(a, b))
        return total


class PrimeField(Field):
    """Arithmetic of ``prime`` in Montgomery form at one level, as LLVM code."""

    degree = 1

    def __init__(self, code: Code, level_type: type, prime: Prime):
        self.code, self.prime, self.p = code, prime, prime.modulus
        self.level = level_type(code, prime.modulus)
        self.ratio = self.p / 2**self.level.radix_bits

    # --- elements -------------------------------------------------------------------------------
    def constant(self, value: int) -> Element:
        """``value`` in Montgomery form."""
        return self.raw(self.prime.montgomery(value, self.level.radix_bits))

    def raw(self, value: int) -> Element:
        """``value`` as it stands."""
        return Element(self.level.constant(value % self.p), 1)

    def zero(self) -> Element:
        return self.raw(0)

    def one(self) -> Element:
        return self.constant(1)

    @property
    def block_bytes(self) -> int:
        return self.level.block_bytes

    def load(self, address: Any, offset: int = 0, bound: float = 2, is_tidy: bool = True) -> Element:
        return Element(self.level.load_block(address, offset), bound, is_tidy)

    def store(self, a: Element, address: Any, offset: int = 0, bound: float = 2) -> None:
        """Store as a block, tidy and below ``bound * p``."""
        self.level.store_block(self.below(a, bound).limbs, address, offset)

    def load_rows(self, addresses: Sequence[Any], n_elements: int, bound: float = 1) -> list[Element]:
        return [Element(limbs, bound) for limbs in self.level.load_rows(addresses, n_elements)]

    def store_rows(self, elements: Sequence[Element], addresses: Sequence[Any]) -> None:
        """Store canonical rows of 32 bytes for each element."""
        self.level.store_rows([self.canonical(a).limbs for a in elements], addresses)

    def store_raw(self, a: Element, address: Any, offset: int = 0) -> None:
        """Store as it is: the reader must know the bound and that the limbs may not be tidy."""
        self.level.store_block(a.limbs, address, offset)

    def flatten(self, a: Element) -> list[Any]:
        return list(a.limbs)

    def gather(self, limbs: Sequence[Any], bound: float) -> Element:
        return Element(limbs, bound)

    # --- reductions -----------------------------------------------------------------------------
    def tidy(self, a: Element) -> Element:
        return a if a.is_tidy else Element(self.level.tidy(a.limbs), a.bound)

    def below(self, a: Element, bound: float) -> Element:
        """The residue ``a`` in tidy limbs, below ``bound * p``."""
        a = self.tidy(a)
        while a.bound > bound:
            multiple = math.ceil(a.bound / 2)
            reduced = self.level.subtract_if_not_below(a.limbs, multiple * self.p)
            a = Element(reduced, max(multiple, a.bound - multiple))
        return a

    def canonical(self, a: Element) -> Element:
        return self.below(a, 1)

    # --- arithmetic -----------------------------------------------------------------------------
    def add(self, a: Element, b: Element) -> Element:
        a, b = self._fit(a, b, a.bound + b.bound)
        return Element(self.level.add(a.limbs, b.limbs), a.bound + b.bound, is_tidy=False)

    def subtract(self, a: Element, b: Element) -> Element:
        a, b = self._fit(a, b, a.bound + math.ceil(b.bound))
        multiple = math.ceil(b.bound)
        return Element(
            self.level.subtract(a.limbs, b.limbs, multiple * self.p), a.bound + multiple, is_tidy=False
        )

    def _fit(self, a: Element, b: Element, bound: float) -> tuple[Element, Element]:
        if bound > self.level.capacity:
            a, b = self.below(a, 2), self.below(b, 2)
        return a, b

    def negate(self, a: Element) -> Element:
        return self.subtract(self.zero(), a)

    def times_3b(self, a: Element) -> Element:
        """9*a: three times the constant of y^2 = x^3 + 3."""
        if self.p != FQ.modulus:
            raise AssertionError("3b belongs to the curve over Fq")
        eight = self.double(self.below(self.double(self.below(self.double(a), 2)), 2))
        return self.add(self.below(eight, 2), a)

    def multiply(self, a: Element, b: Element) -> Element:
        a, b = self._factors(a, b)
        return Element(
            self.level.multiply(a.limbs, b.limbs), self._after(a, b), is_tidy=self.level.n_limbs == 1
        )

    def multiply_inline(self, a: Element, b: Element) -> Element:
        a, b = self._factors(a, b)
        return Element(
            self.level.multiply_inline(a.limbs, b.limbs), self._after(a, b), self.level.n_limbs == 1
        )

    def square(self, a: Element) -> Element:
        a, _ = self._factors(a, a)
        return Element(self.level.square(a.limbs), self._after(a, a), is_tidy=self.level.n_limbs == 1)

    def _after(self, a: Element, b: Element) -> float:
        return a.bound * b.bound * self.ratio + self.level.excess

    def _factors(self, a: Element, b: Element) -> tuple[Element, Element]:
        """Tidy, and small enough that the product is below 2p."""
        a, b = self.tidy(a), self.tidy(b)
        while self._after(a, b) > 2 or max(a.bound, b.bound) > self.level.widest_factor:
            if a.bound >= b.bound:
                a = self.below(a, max(1, a.bound / 2))
            else:
                b = self.below(b, max(1, b.bound / 2))
        return a, b

    def dot(self, *terms: tuple[Element, Element, int]) -> Element:
        """The sum of sign * a * b over ``terms``; one reduction for all where the level can add wide
        products."""
        if not hasattr(self.level, "product"):
            return super().dot(*terms)
        wide, bound = None, 0.0
        for a, b, sign in sorted(terms, key=lambda term: -term[2]):
            a, b = self._factors(a, b)
            product = self.level.product(a.limbs, b.limbs)
            size = math.ceil(a.bound * b.bound)
            if wide is None and sign < 0:
                raise AssertionError("a sum of products needs one positive term")
            wide = product if wide is None else self._accumulate(wide, product, sign, size)
            bound += size
        return Element(self.level.reduce_wide(wide), bound * self.ratio + self.level.excess, is_tidy=False)

    def _accumulate(self, wide: Sequence[Any], product: Sequence[Any], sign: int, size: int) -> list[Any]:
        if sign > 0:
            return self.level.add(wide, product)
        return self.level.subtract(wide, product, size * self.p * self.p)

    # --- masks ----------------------------------------------------------------------------------
    def is_zero(self, a: Element) -> Any:
        """The lanes that hold zero; ``a`` must be canonical (bound 1)."""
        return self.level.equal(a.limbs, self.level.constant(0))

    def equal(self, a: Element, b: Element) -> Any:
        return self.level.equal(self.canonical(a).limbs, self.canonical(b).limbs)

    def select(self, mask: Any, a: Element, b: Element) -> Element:
        a, b = self.tidy(a), self.tidy(b)
        return Element(self.level.select(mask, a.limbs, b.limbs), max(a.bound, b.bound))

    def is_canonical(self, a: Element) -> Any:
        """The lanes of a freshly loaded row that are below p."""
        return self.level.is_below(a.limbs, self.p)

    # --- inversion ------------------------------------------------------------------------------
    def invert(self, a: Element) -> Element:
        """a^(p-2) by windows of four bits; zero gives zero."""
        name = f"{self.level.name}_invert_{self.p & 0xFFFFFF:x}"
        function = self.code.function(name, 1, lambda code, slot: self._on(code)._invert_body(slot))
        slot = self.code.stack(self.block_bytes)
        self.store(a, slot)
        self.code.call(function, slot)
        return self.load(slot)

    def _on(self, code: Code) -> "PrimeField":
        return PrimeField(code, type(self.level), self.prime)

    def _invert_body(self, slot: Any) -> None:
        code, size = self.code, self.block_bytes
        digits = [self.p - 2 >> 4 * k & 15 for k in range(63, -1, -1)]
        nibbles = code.table(f"exponent_{self.p & 0xFFFFFF:x}", digits)
        powers = code.stack(16 * size)
        base = self.load(slot)
        self.store(self.one(), powers)
        self.store(base, powers, size)
        with code.range(2, 16) as k:
            at = code.add(powers, code.mul(k, size))
            self.store(self.multiply(self.load(code.sub(at, size)), base), at)
        self.store(self.one(), slot)
        with code.range(0, 64) as k:
            with code.range(0, 4):
                self.store(self.square(self.load(slot)), slot)
            digit = code.load_int(nibbles, k)
            power = self.load(code.add(powers, code.mul(digit, size)))
            self.store(self.multiply(self.load(slot), power), slot)


class Registers:
    """Elements that change inside a loop or a branch; the optimiser keeps them in registers where it can."""

    def __init__(self, f: Any, elements: Sequence[Any], bound: float = 2):
        self.f, self.bound = f, bound
        flat = [limb for element in elements for limb in f.flatten(f.below(element, bound))]
        self._slots = [Variable(f.code, limb.type, limb) for limb in flat]

    def get(self) -> list[Any]:
        limbs = [slot.get() for slot in self._slots]
        size = self.f.degree * self.f.level.n_limbs
        return [self.f.gather(limbs[k : k + size], self.bound) for k in range(0, len(limbs), size)]

    def set(self, elements: Sequence[Any]) -> None:
        flat = [limb for element in elements for limb in self.f.flatten(self.f.below(element, self.bound))]
        for slot, limb in zip(self._slots, flat, strict=True):
            slot.set(limb)
