"""Field elements as one 256-bit integer: four 64-bit words, one element at a time. Runs on any 64-bit
processor.

Montgomery form has R = 2^256. Multiplication is the "no-carry" operand scanning of Acar, possible because the
modulus leaves the two top bits free; LLVM turns the 128-bit products into mulx or umulh.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from evenload.gpu.llvm.ir_builder import I64, Code

I128, I256 = ir.IntType(128), ir.IntType(256)
Limbs = Sequence[Any]


class Word64:
    """A *level*: how elements lie in registers and memory, and the few operations that depend on it.

    A register element is a list of ``n_limbs`` IR values and holds ``lanes`` field elements. In memory it is
    either a *block* (``block_bytes``, the registers one after the other) or ``lanes`` *rows* of 32 bytes,
    little-endian.
    """

    name = "word64"
    lanes = 1
    n_limbs = 1
    radix_bits = 256
    block_bytes = 32
    excess = 1.0  # a product is below a * b / R + excess * p
    rounds_to_zero = ""  # or the kind of processor on which kernels must round doubles towards zero
    is_lazy = False  # no head-room for long sums: values are brought below 2p before they are stored
    capacity = 5.0  # multiples of p that fit
    widest_factor = 4.0  # the second factor of a product must stay below this many p
    mask_type = ir.IntType(1)

    def __init__(self, code: Code, modulus: int):
        self.code, self.modulus = code, modulus
        self._inverse = -pow(modulus, -1, 1 << 64) % (1 << 64)

    # --- constants and moves --------------------------------------------------------------------
    def constant(self, value: int) -> list[Any]:
        return [ir.Constant(I256, value)]

    def load_block(self, address: Any, offset: int = 0) -> list[Any]:
        return [self.code.load(address, I256, offset, align=8)]

    def store_block(self, limbs: Limbs, address: Any, offset: int = 0) -> None:
        self.code.store(limbs[0], address, offset, align=8)

    def load_rows(self, addresses: Sequence[Any], n_elements: int) -> list[list[Any]]:
        """One row of ``n_elements`` for each lane -> ``n_elements`` register elements. Rows need no
        alignment."""
        return [[self.code.load(addresses[0], I256, 32 * k, align=1)] for k in range(n_elements)]

    def store_rows(self, elements: Sequence[Limbs], addresses: Sequence[Any]) -> None:
        for k, limbs in enumerate(elements):
            self.code.store(limbs[0], addresses[0], 32 * k, align=8)

    # --- arithmetic without reduction -----------------------------------------------------------
    def add(self, a: Limbs, b: Limbs) -> list[Any]:
        return [self.code.ir.add(a[0], b[0])]

    def subtract(self, a: Limbs, b: Limbs, plus: int) -> list[Any]:
        """a + plus - b, which the caller knows to be non-negative."""
        return [self.code.ir.sub(self.code.ir.add(a[0], ir.Constant(I256, plus)), b[0])]

    def tidy(self, limbs: Limbs) -> list[Any]:
        return list(limbs)

    def subtract_if_not_below(self, limbs: Limbs, value: int) -> list[Any]:
        builder, constant = self.code.ir, ir.Constant(I256, value)
        is_below = builder.icmp_unsigned("<", limbs[0], constant)
        return [builder.select(is_below, limbs[0], builder.sub(limbs[0], constant))]

    def is_below(self, limbs: Limbs, value: int) -> Any:
        return self.code.ir.icmp_unsigned("<", limbs[0], ir.Constant(I256, value))

    def multiply(self, a: Limbs, b: Limbs) -> list[Any]:
        """Montgomery product; a*b/R + p at most. Operands below 4p."""
        return [self.code.ir.call(self._multiply_function(), [a[0], b[0]])]

    def _multiply_function(self) -> Any:
        module, name = self.code.ir.module, f"word64_multiply_{self.modulus & 0xFFFFFF:x}"
        if name in module.globals:
            return module.globals[name]
        function = ir.Function(module, ir.FunctionType(I256, [I256, I256]), name)
        function.linkage = "internal"
        for attribute in ("noinline", "nounwind"):
            function.attributes.add(attribute)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        builder.ret(self._montgomery(Code(builder), *function.args))
        return function

    def square(self, a: Limbs) -> list[Any]:
        return self.multiply(a, a)

    def multiply_inline(self, a: Limbs, b: Limbs) -> list[Any]:
        """``multiply`` without a call, for the innermost loops."""
        return [self._montgomery(self.code, a[0], b[0])]

    def _montgomery(self, code: Code, a: Any, b: Any) -> Any:
        builder = code.ir
        x, y = self._words(builder, a), [builder.zext(word, I128) for word in self._words(builder, b)]
        p = [ir.Constant(I128, self.modulus >> 64 * k & (2**64 - 1)) for k in range(4)]
        total: list[Any] = [None] * 4
        for i in range(4):
            factor = builder.zext(x[i], I128)
            low, carry = self._split(builder, self._sum(builder, builder.mul(factor, y[0]), total[0]))
            quotient = builder.zext(builder.mul(low, ir.Constant(I64, self._inverse)), I128)
            _, borrow = self._split(builder, self._sum(builder, builder.mul(quotient, p[0]), low))
            next_total: list[Any] = [None] * 4
            for j in range(1, 4):
                wide = self._sum(builder, builder.mul(factor, y[j]), carry, total[j])
                low, carry = self._split(builder, wide)
                wide = self._sum(builder, builder.mul(quotient, p[j]), low, borrow)
                next_total[j - 1], borrow = self._split(builder, wide)
            next_total[3] = builder.add(carry, borrow)
            total = next_total
        wide = builder.zext(total[0], I256)
        for k in range(1, 4):
            wide = builder.or_(wide, builder.shl(builder.zext(total[k], I256), ir.Constant(I256, 64 * k)))
        return wide

    @staticmethod
    def _words(builder: ir.IRBuilder, value: Any) -> list[Any]:
        return [builder.trunc(builder.lshr(value, ir.Constant(I256, 64 * k)), I64) for k in range(4)]

    @staticmethod
    def _sum(builder: ir.IRBuilder, wide: Any, *words: Any) -> Any:
        for word in words:
            if word is not None:
                wide = builder.add(wide, builder.zext(word, I128))
        return wide

    @staticmethod
    def _split(builder: ir.IRBuilder, wide: Any) -> tuple[Any, Any]:
        return builder.trunc(wide, I64), builder.trunc(builder.lshr(wide, ir.Constant(I128, 64)), I64)

    # --- masks ----------------------------------------------------------------------------------
    def equal(self, a: Limbs, b: Limbs) -> Any:
        return self.code.ir.icmp_unsigned("==", a[0], b[0])

    def select(self, mask: Any, a: Limbs, b: Limbs) -> list[Any]:
        return [self.code.ir.select(mask, a[0], b[0])]

    def bits(self, mask: Any) -> Any:
        """A mask as an integer, bit i for lane i."""
        return self.code.ir.zext(mask, I64)

    def mask(self, bits: Any) -> Any:
        return self.code.ir.trunc(bits, self.mask_type)
