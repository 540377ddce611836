"""Field elements as five 52-bit limbs, eight of them side by side, multiplied by IFMA here and by ``fma``.

Montgomery form has R = 2^260. The six bits between p and 2^260 are head-room: sums of many elements need no
reduction, only carries. Factors of a product must be *tidy* (limbs in [0, 2^52)) and non-negative; addends
may be any signed 64-bit limbs. ``arith`` keeps account of both.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from evenload.gpu.llvm.ir_builder import I8, I64, Code

VECTOR = ir.VectorType(I64, 8)
QUAD = ir.VectorType(I64, 4)
RADIX = 52
LIMB = (1 << RADIX) - 1
Limbs = Sequence[Any]


def splat(value: int) -> ir.Constant:
    return ir.Constant(VECTOR, [value] * 8)


def limbs52(value: int, n_limbs: int = 5) -> list[int]:
    """Limbs of ``value``; the last one keeps whatever is left."""
    limbs = [value >> RADIX * k & LIMB for k in range(n_limbs - 1)]
    return [*limbs, value >> RADIX * (n_limbs - 1)]


class Limbs52:
    """What levels with limbs of 52 bits have in common: all but products. Same members as ``Word64``."""

    name: str
    lanes = 8
    n_limbs = 5
    radix_bits = 260
    block_bytes = 320
    is_lazy = True
    excess = 1.0  # a product is below a * b / R + excess * p
    shifts_signed = True  # the processor has a shift of signed 64-bit lanes
    rounds_to_zero = ""  # or the kind of processor on which doubles must be
    capacity = 64.0
    widest_factor = 64.0
    mask_type = ir.VectorType(ir.IntType(1), 8)

    def __init__(self, code: Code, modulus: int):
        self.code, self.modulus = code, modulus

    # --- constants and moves --------------------------------------------------------------------
    def constant(self, value: int) -> list[Any]:
        return [splat(limb) for limb in limbs52(value)]

    def load_block(self, address: Any, offset: int = 0) -> list[Any]:
        return [self.code.load(address, VECTOR, offset + 64 * k, align=64) for k in range(5)]

    def store_block(self, limbs: Limbs, address: Any, offset: int = 0) -> None:
        for k, limb in enumerate(limbs):
            self.code.store(limb, address, offset + 64 * k, align=64)

    def load_rows(self, addresses: Sequence[Any], n_elements: int) -> list[list[Any]]:
        """Eight rows of ``n_elements`` -> ``n_elements`` register elements."""
        if n_elements == 1:
            rows = [self.code.load(address, QUAD) for address in addresses]
            return [self._from_words(self._transpose_quads(rows))]
        elements = []
        for k in range(0, n_elements, 2):
            words = self.transpose([self.code.load(address, VECTOR, 32 * k) for address in addresses])
            elements += [self._from_words(words[:4]), self._from_words(words[4:])]
        return elements

    def store_rows(self, elements: Sequence[Limbs], addresses: Sequence[Any]) -> None:
        """Elements must be tidy and below 2^256."""
        for k in range(0, len(elements), 2):
            pair = elements[k : k + 2]
            words = [word for limbs in pair for word in self._to_words(limbs)]
            if len(pair) == 2:
                for row, address in zip(self.transpose(words), addresses, strict=True):
                    self.code.store(row, address, 32 * k, align=8)
            else:
                rows = self.transpose([*words, *words])
                for row, address in zip(rows, addresses, strict=True):
                    self.code.store(self.code.shuffle(row, row, range(4)), address, 32 * k, align=8)

    def transpose(self, rows: Sequence[Any]) -> list[Any]:
        """8 x 8 words, in three rounds of two-input shuffles."""
        low, high = [0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15]
        pairs = [
            self.code.shuffle(rows[k], rows[k + 1], lanes) for k in (0, 2, 4, 6) for lanes in (low, high)
        ]
        low, high = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
        quads: list[Any] = [None] * 8
        for half in (0, 4):
            for k in (0, 1):
                a, b = pairs[half + k], pairs[half + 2 + k]
                quads[half + k] = self.code.shuffle(a, b, low)
                quads[half + 2 + k] = self.code.shuffle(a, b, high)
        low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
        return [self.code.shuffle(quads[k], quads[4 + k], lanes) for lanes in (low, high) for k in range(4)]

    def _transpose_quads(self, rows: Sequence[Any]) -> list[Any]:
        """Eight rows of four words -> four vectors of eight lanes."""
        wide = [self.code.shuffle(rows[k], rows[k + 4], range(8)) for k in range(4)]
        low, high = [0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15]
        even, odd = (
            [self.code.shuffle(wide[0], wide[1], lanes), self.code.shuffle(wide[2], wide[3], lanes)]
            for lanes in (low, high)
        )
        low, high = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
        return [self.code.shuffle(a, b, lanes) for lanes in (low, high) for a, b in (even, odd)]

    def _from_words(self, words: Sequence[Any]) -> list[Any]:
        """Four 64-bit words -> five 52-bit limbs."""
        builder = self.code.ir
        left = lambda k, n: builder.shl(words[k], splat(n))  # noqa: E731
        right = lambda k, n: builder.lshr(words[k], splat(n))  # noqa: E731
        middle = [builder.or_(right(k, 52 - 12 * k), left(k + 1, 12 * k + 12)) for k in range(3)]
        return [builder.and_(limb, splat(LIMB)) for limb in (words[0], *middle)] + [right(3, 16)]

    def _to_words(self, limbs: Limbs) -> list[Any]:
        builder = self.code.ir
        right = lambda k: builder.lshr(limbs[k], splat(12 * k))  # noqa: E731
        left = lambda k: builder.shl(limbs[k + 1], splat(52 - 12 * k))  # noqa: E731
        return [builder.or_(right(k), left(k)) for k in range(4)]

    # --- arithmetic without reduction -----------------------------------------------------------
    def add(self, a: Limbs, b: Limbs) -> list[Any]:
        return [self.code.ir.add(x, y) for x, y in zip(a, b, strict=True)]

    def subtract(self, a: Limbs, b: Limbs, plus: int) -> list[Any]:
        builder = self.code.ir
        plus_limbs = map(splat, limbs52(plus, len(a)))
        return [builder.sub(builder.add(x, c), y) for x, y, c in zip(a, b, plus_limbs, strict=True)]

    def tidy(self, limbs: Limbs) -> list[Any]:
        """Carry from limb to limb; the top limb takes what is left (and the sign)."""
        builder, tidied, carry = self.code.ir, [], None
        if not self.shifts_signed:  # lift each limb by 2^62, and take the 2^10 that this carries back
            lift = [1 << 62, *[(1 << 62) - (1 << 10)] * (len(limbs) - 2), -(1 << 10)]
            limbs = [builder.add(limb, splat(value)) for limb, value in zip(limbs, lift, strict=True)]
        shift = builder.ashr if self.shifts_signed else builder.lshr
        for k, limb in enumerate(limbs):
            value = limb if carry is None else builder.add(limb, carry)
            if k < len(limbs) - 1:
                carry = shift(value, splat(RADIX))
                value = builder.and_(value, splat(LIMB))
            tidied.append(value)
        return tidied

    def _minus(self, limbs: Limbs, value: int) -> tuple[list[Any], Any]:
        builder = self.code.ir
        constants = map(splat, limbs52(value))
        difference = self.tidy([builder.sub(x, c) for x, c in zip(limbs, constants, strict=True)])
        return difference, builder.icmp_signed("<", difference[-1], splat(0))

    def subtract_if_not_below(self, limbs: Limbs, value: int) -> list[Any]:
        """Limbs must be tidy; so is the result."""
        difference, is_below = self._minus(limbs, value)
        return self.select(is_below, limbs, difference)

    def is_below(self, limbs: Limbs, value: int) -> Any:
        return self._minus(limbs, value)[1]

    # --- masks ----------------------------------------------------------------------------------
    def equal(self, a: Limbs, b: Limbs) -> Any:
        """The lanes whose limbs agree; both sides must be canonical."""
        builder = self.code.ir
        difference = builder.xor(a[0], b[0])
        for x, y in zip(a[1:], b[1:], strict=True):
            difference = builder.or_(difference, builder.xor(x, y))
        return builder.icmp_unsigned("==", difference, splat(0))

    def select(self, mask: Any, a: Limbs, b: Limbs) -> list[Any]:
        return [self.code.ir.select(mask, x, y) for x, y in zip(a, b, strict=True)]

    def bits(self, mask: Any) -> Any:
        return self.code.ir.zext(self.code.ir.bitcast(mask, I8), I64)

    def mask(self, bits: Any) -> Any:
        return self.code.ir.bitcast(self.code.ir.trunc(bits, I8), self.mask_type)


class Ifma52(Limbs52):
    """The level for processors with AVX-512 IFMA: a vpmadd52 adds one half of eight products."""

    name = "ifma52"

    def __init__(self, code: Code, modulus: int):
        super().__init__(code, modulus)
        self._p = [splat(limb) for limb in limbs52(modulus)]
        self._inverse = splat(-pow(modulus, -1, 1 << RADIX) % (1 << RADIX))

    def _madd(self, half: str, total: Any, a: Any, b: Any) -> Any:
        kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
        function = self.code.intrinsic(f"llvm.x86.avx512.vpmadd52{half}.uq.512", kind)
        return self.code.ir.call(function, [total, a, b])

    def product(self, a: Limbs, b: Limbs) -> list[Any]:
        """The ten limbs of a*b, not tidy."""
        return self._with_products([splat(0)] * 10, a, b, [(i, j) for i in range(5) for j in range(5)])

    def product_square(self, a: Limbs) -> list[Any]:
        """The ten limbs of a*a: cross products once, then doubled."""
        crossed = [(i, j) for i in range(5) for j in range(i + 1, 5)]
        wide = self._with_products([splat(0)] * 10, a, a, crossed)
        doubled = [self.code.ir.add(limb, limb) for limb in wide]
        return self._with_products(doubled, a, a, [(i, i) for i in range(5)])

    def _with_products(self, wide: list[Any], a: Limbs, b: Limbs, pairs: Sequence[tuple[int, int]]) -> Any:
        """``wide``, with both halves of a[i] * b[j] added for each pair (i, j)."""
        for i, j in pairs:
            wide[i + j] = self._madd("l", wide[i + j], a[i], b[j])
            wide[i + j + 1] = self._madd("h", wide[i + j + 1], a[i], b[j])
        return wide

    def reduce_wide(self, wide: Limbs) -> list[Any]:
        """Montgomery reduction: wide / 2^260 mod p, below wide / 2^260 + p. Five limbs, not tidy."""
        builder, total = self.code.ir, list(wide)
        for i in range(5):
            quotient = self._madd("l", splat(0), total[i], self._inverse)
            # The low limb becomes a multiple of 2^52, so its carry is itself rounded up.
            carry = builder.ashr(builder.add(total[i], splat(LIMB)), splat(RADIX))
            total[i + 1] = builder.add(total[i + 1], carry)
            for j in range(1, 5):
                total[i + j] = self._madd("l", total[i + j], quotient, self._p[j])
            for j in range(5):
                total[i + j + 1] = self._madd("h", total[i + j + 1], quotient, self._p[j])
        return total[5:]

    def multiply(self, a: Limbs, b: Limbs) -> list[Any]:
        return self.reduce_wide(self.product(a, b))

    multiply_inline = multiply

    def square(self, a: Limbs) -> list[Any]:
        return self.reduce_wide(self.product_square(a))
