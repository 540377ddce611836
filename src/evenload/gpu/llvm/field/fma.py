"""Products of 52-bit limbs by fused multiply-add in double precision, for processors without AVX-512 IFMA.

While sums are rounded towards zero, the two halves of a product of numbers below 2^52 come out exactly, and
as bits that can be added up as integers, behind an exponent that is the same for all of them:

    high = a * b + 2^104                  its bits: HIGH + floor(a * b / 2^52)
    low  = a * b + (2^104 + 2^52 - high)  its bits: LOW + (a * b mod 2^52)

Every sum of halves begins at minus the exponents that it will collect. Each operation is on ``width`` lanes,
as many as a register of the processor holds; an element of eight lanes is taken in parts of that width.

Source: Niall Emmart, Fangyu Zheng and Charles Weems, "Faster Modular Exponentiation Using Double Precision
Floating Point Arithmetic on the GPU" (ARITH 2018), there with the same rounding.
"""

import struct
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from evenload.gpu.llvm.field.limbs52 import LIMB, RADIX, VECTOR, Limbs, Limbs52, limbs52
from evenload.gpu.llvm.ir_builder import I64, Code

HIGH, LOW = 0x467 << RADIX, 0x433 << RADIX  # bits of 2.0**104 and 2.0**52
WORD = (1 << 64) - 1


class Fma52(Limbs52):
    """The levels whose products are fused multiply-adds of ``width`` doubles at once."""

    width: int
    rounds_to_zero = "x86"

    def __init__(self, code: Code, modulus: int):
        if not code.rounds_to_zero:
            raise AssertionError("these products are wrong unless sums are rounded towards zero")
        super().__init__(code, modulus)
        self.excess = 1 + sum(_friend(modulus, k) + 1 for k in (1, 2)) / modulus

    def product(self, a: Limbs, b: Limbs) -> list[Any]:
        """The ten limbs of a*b, not tidy."""
        return self._apply("product", 10, a, b)

    def product_square(self, a: Limbs) -> list[Any]:
        """The ten limbs of a*a, not tidy."""
        return self._apply("square", 10, a)

    def reduce_wide(self, wide: Limbs) -> list[Any]:
        """Montgomery reduction: wide / 2^260 mod p, below wide / 2^260 + excess * p. Five limbs, not tidy."""
        return self._apply("reduce", 5, wide)

    def multiply(self, a: Limbs, b: Limbs) -> list[Any]:
        return self._apply("montgomery", 5, a, b)

    multiply_inline = multiply

    def square(self, a: Limbs) -> list[Any]:
        return self._apply("montgomery_square", 5, a)

    def _apply(self, name: str, n_results: int, *operands: Limbs) -> list[Any]:
        """An operation of ``Part`` in a function of its own: inlined everywhere, products would not fit the
        cache of instructions. Operands are read, limb by limb, from where the results are then written."""
        sizes, width = [len(limbs) for limbs in operands], self.width

        def body(code: Code, at: Any) -> None:
            with code.range(0, 64, 8 * width) as first:
                part = Part(code, width, self.modulus)
                part.apply(name, n_results, sizes, code.add(at, first))

        code = self.code
        function = code.function(f"{self.name}_{name}_{self.modulus & 0xFFFFFF:x}", 1, body)
        at = code.scratch("operands", 64 * 20)
        for k, limb in enumerate(limb for limbs in operands for limb in limbs):
            code.store(limb, at, 64 * k, align=64)
        code.call(function, at)
        return [code.load(at, VECTOR, 64 * k, align=64) for k in range(n_results)]


class Part:
    """The products of ``width`` lanes of elements, as LLVM code; constants are read from a table, as
    operands of what needs them."""

    def __init__(self, code: Code, width: int, modulus: int):
        self.code, self.width = code, width
        self._integers, self._doubles = (ir.VectorType(kind, width) for kind in (I64, ir.DoubleType()))
        p, near, far = limbs52(modulus), *(limbs52(_friend(modulus, k)) for k in (1, 2))
        inverse = _inverse(modulus, 1)
        doubles = [*p, *near, *far, inverse, 2**52, 2**104, 2**104 + 2**52]
        starts = [value for start in STARTS for value in start]
        integers = [*dict.fromkeys([*starts, LOW, LIMB, *map(_bits, doubles)])]
        self._index = {value: k for k, value in enumerate(integers)}
        name = f"fma_constants_{width}_{modulus & 0xFFFFFF:x}"
        self._table = code.hidden(code.table(name, [value for value in integers for _ in range(width)]))
        self._p, self._near, self._far = ([self._double(limb) for limb in limbs] for limbs in (p, near, far))
        self._inverse = self._double(inverse)

    def apply(self, name: str, n_results: int, sizes: Sequence[int], at: Any) -> None:
        """One of the products below, from operands of these sizes at ``at``: its last ``n_results`` limbs."""
        limbs = iter(range(sum(sizes)))
        operands = [[self._load(at, next(limbs)) for _ in range(size)] for size in sizes]
        for k, limb in enumerate(getattr(self, name)(*operands)[-n_results:]):
            self.code.store(limb, at, 64 * k, align=8 * self.width)

    def _load(self, base: Any, k: int) -> Any:
        return self.code.load(base, self._integers, 64 * k, align=8 * self.width)

    # --- numbers --------------------------------------------------------------------------------
    def _integer(self, value: int) -> Any:
        offset = 8 * self.width * self._index[value]
        return self.code.load(self._table, self._integers, offset, align=8 * self.width)

    def _double(self, value: int) -> Any:
        return self.code.ir.bitcast(self._integer(_bits(value)), self._doubles)

    def _doubled(self, limb: Any) -> Any:
        """A limb in [0, 2^52) as a double."""
        builder = self.code.ir
        bits = builder.or_(limb, self._integer(LOW))
        return builder.fsub(builder.bitcast(bits, self._doubles), self._double(2**52))

    def _fma(self, a: Any, b: Any, c: Any) -> Any:
        kind = ir.FunctionType(self._doubles, [self._doubles] * 3)
        return self.code.ir.call(self.code.intrinsic(f"llvm.fma.v{self.width}f64", kind), [a, b, c])

    def _high(self, a: Any, b: Any) -> Any:
        return self._fma(a, b, self._double(2**104))

    def _add_bits(self, total: Any, number: Any) -> Any:
        return self.code.ir.add(total, self.code.ir.bitcast(number, self._integers))

    def _settle(self, total: list[Any], k: int) -> None:
        """Have limbs k to k + 5 added up by here: left alone, the compiler puts additions off until it has no
        registers for what it would add."""
        limbs = total[k : k + 6]
        kinds, letter = [self._integers] * len(limbs), {2: "w", 4: "x", 8: "v"}[self.width]
        constraints = ",".join([*[f"={letter}"] * len(limbs), *map(str, range(len(limbs)))])
        kind = ir.FunctionType(ir.LiteralStructType(kinds), kinds)
        settled = self.code.ir.call(ir.InlineAsm(kind, "", constraints, True), limbs)
        total[k : k + 6] = [self.code.ir.extract_value(settled, n) for n in range(len(limbs))]

    def _add_product(self, total: list[Any], k: int, a: Any, b: Any) -> None:
        high = self._high(a, b)
        low = self._fma(a, b, self.code.ir.fsub(self._double(2**104 + 2**52), high))
        total[k] = self._add_bits(total[k], low)
        total[k + 1] = self._add_bits(total[k + 1], high)

    def _plus(self, limbs: Limbs, values: Sequence[int]) -> list[Any]:
        return [self.code.ir.add(x, self._integer(value)) for x, value in zip(limbs, values, strict=True)]

    # --- products -------------------------------------------------------------------------------
    def product(self, a: Limbs, b: Limbs) -> list[Any]:
        y, total = [self._doubled(limb) for limb in b], [self._integer(value) for value in _FULL]
        for i in range(5):
            factor = self._doubled(a[i])
            for j in range(5):
                self._add_product(total, i + j, factor, y[j])
            self._settle(total, i)
        return total

    def square(self, a: Limbs) -> list[Any]:
        """Cross products once, then doubled."""
        x, total = [self._doubled(limb) for limb in a], [self._integer(value) for value in _CROSS]
        for i in range(5):
            for j in range(i + 1, 5):
                self._add_product(total, i + j, x[i], x[j])
            self._settle(total, i)
        total = self._plus([self.code.ir.add(limb, limb) for limb in total], _DIAGONAL)
        for i in range(5):
            self._add_product(total, 2 * i, x[i], x[i])
        return total

    def reduce(self, wide: Limbs) -> list[Any]:
        total = self._plus(wide, _REDUCTION)
        for i in range(5):
            self._reduce_limb(total, i)
        return total

    def montgomery_square(self, a: Limbs) -> list[Any]:
        return self.reduce(self.square(a))

    def montgomery(self, a: Limbs, b: Limbs) -> list[Any]:
        """Product and reduction limb by limb, so that few sums are open at a time."""
        y, total = [self._doubled(limb) for limb in b], [self._integer(value) for value in _MONTGOMERY]
        for i in range(5):
            factor = self._doubled(a[i])
            for j in range(5):
                self._add_product(total, i + j, factor, y[j])
            self._settle(total, i)
            self._reduce_limb(total, i)
        return total

    def _reduce_limb(self, total: list[Any], i: int) -> None:
        """Add the multiple of p that makes limb ``i`` a multiple of 2^52, and carry it.

        A multiple of p that is -1 modulo 2^52 needs no product to find how much of it to add, which halves
        the way from limb to limb; the last step takes p itself, so that the result stays as small.
        """
        builder = self.code.ir
        limb = self._doubled(builder.and_(total[i], self._integer(LIMB)))
        if i < 4:
            total[i + 1] = builder.add(total[i + 1], self._carry(total[i]))
            k, friend = (i + 2, self._far) if i < 3 else (i + 1, self._near)
            for j, factor in enumerate(friend):
                self._add_product(total, k + j, limb, factor)
            self._settle(total, k)
            return
        above = builder.fsub(self._double(2**104), self._high(limb, self._inverse))
        quotient = self._fma(limb, self._inverse, above)
        # The low half of quotient * p[0] is what the limb lacks, so its carry is itself rounded up.
        carry = self._carry(builder.add(total[i], self._integer(LIMB)))
        total[i + 1] = self._add_bits(builder.add(total[i + 1], carry), self._high(quotient, self._p[0]))
        for j in range(1, 5):
            self._add_product(total, i + j, quotient, self._p[j])

    def _carry(self, limb: Any) -> Any:
        return self.code.ir.lshr(limb, ir.Constant(self._integers, [RADIX] * self.width))


def _bits(number: int) -> int:
    """The bits of the double that is ``number``."""
    return struct.unpack("<Q", struct.pack("<d", float(number)))[0]


def _inverse(modulus: int, n_limbs: int) -> int:
    radix = 1 << RADIX * n_limbs
    return -pow(modulus, -1, radix) % radix


def _friend(modulus: int, n_limbs: int) -> int:
    """What times 2^(52 * n_limbs), minus 1, is a multiple of the modulus."""
    return (modulus * _inverse(modulus, n_limbs) + 1) >> RADIX * n_limbs


_Pairs = list[tuple[int, int]]


def _minus(low: _Pairs, high: _Pairs) -> list[int]:
    """Minus the exponents that each of ten limbs collects with halves of products of limbs i and j."""
    n_low = [sum(i + j == k for i, j in low) for k in range(10)]
    n_high = [sum(i + j + 1 == k for i, j in high) for k in range(10)]
    return [-(a * LOW + b * HIGH) & WORD for a, b in zip(n_low, n_high, strict=True)]


def _sum(*starts: list[int]) -> list[int]:
    return [sum(values) & WORD for values in zip(*starts, strict=True)]


_ALL = [(i, j) for i in range(5) for j in range(5)]
_BY_FRIEND, _BY_P = [(k, j) for k in (2, 3, 4, 4) for j in range(5)], [(4, j) for j in range(5)]
_FULL = _minus(_ALL, _ALL)
_CROSS = _minus(*[[(i, j) for i, j in _ALL if i < j]] * 2)
_DIAGONAL = _minus(*[[(i, i) for i in range(5)]] * 2)
# Zero as a whole, but no limb that a reduction carries is negative with it.
_LIFT = [1 << 60, *[(1 << 60) - (1 << 8)] * 4, -(1 << 8), 0, 0, 0, 0]
_REDUCTION = _sum(_minus(_BY_FRIEND + _BY_P[1:], _BY_FRIEND + _BY_P), _LIFT)
_MONTGOMERY = _sum(_FULL, _REDUCTION)
STARTS = (_FULL, _CROSS, _DIAGONAL, _REDUCTION, _MONTGOMERY)


class Fma52x8(Fma52):
    """The level for processors with AVX-512F."""

    name = "fma52x8"
    width = 8


class Fma52x4(Fma52):
    """The level for processors with AVX2 and FMA."""

    name = "fma52x4"
    width = 4
    shifts_signed = False


class Fma52x2(Fma52):
    """The level for arm64, whose NEON registers hold two doubles."""

    name = "fma52x2"
    width = 2
    rounds_to_zero = "arm"
