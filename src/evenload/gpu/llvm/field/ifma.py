"""Products of 52-bit limbs by AVX-512 IFMA: a vpmadd52 adds one half of eight products."""

from typing import Any

from llvmlite import ir

from evenload.gpu.llvm.field.limbs52 import LIMB, RADIX, VECTOR, Limbs, Limbs52, limbs52, splat
from evenload.gpu.llvm.ir_builder import Code

__all__ = ["Ifma52"]


class Ifma52(Limbs52):
    """The level for processors with AVX-512 IFMA."""

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
        wide: list[Any] = [splat(0)] * 10
        for i in range(5):
            for j in range(5):
                wide[i + j] = self._madd("l", wide[i + j], a[i], b[j])
                wide[i + j + 1] = self._madd("h", wide[i + j + 1], a[i], b[j])
        return wide

    def product_square(self, a: Limbs) -> list[Any]:
        """The ten limbs of a*a: cross products once, then doubled."""
        wide: list[Any] = [splat(0)] * 10
        for i in range(5):
            for j in range(i + 1, 5):
                wide[i + j] = self._madd("l", wide[i + j], a[i], a[j])
                wide[i + j + 1] = self._madd("h", wide[i + j + 1], a[i], a[j])
        wide = [self.code.ir.add(limb, limb) for limb in wide]
        for i in range(5):
            wide[2 * i] = self._madd("l", wide[2 * i], a[i], a[i])
            wide[2 * i + 1] = self._madd("h", wide[2 * i + 1], a[i], a[i])
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
