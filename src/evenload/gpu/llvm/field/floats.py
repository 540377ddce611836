"""Vectors of floating numbers in LLVM code: a lane per sample, the last ones masked where samples end."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from evenload.gpu.llvm.ir_builder import I32, I64, POINTER, Code, Variable
from evenload.native import machine


def lanes_for(samples: int, n_bytes: int) -> int:
    """Samples in a vector: as many as this processor's registers hold, unless half of them serves as well."""
    features = machine.host_features()
    width = 64 if "avx512f" in features else 32 if "avx2" in features else 16
    widest = width // n_bytes
    return widest // 2 if width > 16 and -(-samples // (widest // 2)) % 2 else widest


class Floats:
    """Operations on vectors of ``lanes`` numbers of ``n_bytes``, 4 or 8. Addresses are 64-bit integers."""

    def __init__(self, code: Code, lanes: int, n_bytes: int):
        self.code, self.lanes, self.n_bytes = code, lanes, n_bytes
        self.number = ir.FloatType() if n_bytes == 4 else ir.DoubleType()
        self.integer = I32 if n_bytes == 4 else I64
        self.kind = ir.VectorType(self.number, lanes)
        self.mask_kind = ir.VectorType(ir.IntType(1), lanes)
        self.row_bytes = lanes * n_bytes
        self._name = f"v{lanes}f{8 * n_bytes}"

    def zero(self) -> Any:
        return ir.Constant(self.kind, [0.0] * self.lanes)

    def ones(self) -> Any:
        return ir.Constant(self.kind, [1.0] * self.lanes)

    def whole(self, value: int) -> Any:
        """A whole number, as wide as the floating ones, in every lane."""
        return ir.Constant(ir.VectorType(self.integer, self.lanes), [value] * self.lanes)

    def load(self, address: Any, offset: int = 0, mask: Any = None) -> Any:
        """A vector; with a mask of lanes, zero in the others, whose memory is not touched."""
        if mask is None:
            return self.code.load(address, self.kind, offset, align=self.n_bytes)
        kind = ir.FunctionType(self.kind, [POINTER, I32, self.mask_kind, self.kind])
        function = self.code.intrinsic(f"llvm.masked.load.{self._name}.p0", kind)
        align = self.code.const(self.n_bytes, I32)
        return self.code.ir.call(function, [self.code.pointer(address, offset), align, mask, self.zero()])

    def store(self, value: Any, address: Any, offset: int = 0, mask: Any = None) -> None:
        """Write a vector, or only the lanes of ``mask``; or a single number."""
        if mask is None:
            return self.code.store(value, address, offset, align=self.n_bytes)
        kind = ir.FunctionType(ir.VoidType(), [self.kind, POINTER, I32, self.mask_kind])
        function = self.code.intrinsic(f"llvm.masked.store.{self._name}.p0", kind)
        align = self.code.const(self.n_bytes, I32)
        return self.code.ir.call(function, [value, self.code.pointer(address, offset), align, mask])

    def scalar(self, address: Any, offset: int = 0) -> Any:
        return self.code.load(address, self.number, offset, align=self.n_bytes)

    def spread(self, value: Any) -> Any:
        """One number in every lane."""
        return self.code.spread(value, self.kind)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, rounded once."""
        function = self.code.intrinsic(f"llvm.fma.{self._name}", ir.FunctionType(self.kind, [self.kind] * 3))
        return self.code.ir.call(function, [a, b, c])

    def total(self, value: Any) -> Any:
        """The sum of the lanes, halves added to halves."""
        builder, size = self.code.ir, self.lanes
        while size > 1:
            size //= 2
            order = [size + k for k in range(size)] + [0] * (self.lanes - size)
            value = builder.fadd(value, self.code.shuffle(value, value, order))
        return builder.extract_element(value, self.code.const(0, I32))

    def first(self, n: Any) -> Any:
        """Mask of the lanes below ``n``."""
        kind = ir.VectorType(I32, self.lanes)
        count = self.code.ir.trunc(self.code.min(n, self.lanes), I32)
        lanes = ir.Constant(kind, list(range(self.lanes)))
        return self.code.ir.icmp_signed("<", lanes, self.code.spread(count, kind))


class Sums:
    """A set of running sums: vectors that stay in registers."""

    def __init__(self, floats: Floats, start: Sequence[Any]):
        self._slots = [Variable(floats.code, floats.kind, value) for value in start]
        self._floats = floats

    def add_products(self, a: Sequence[Any], b: Sequence[Any]) -> None:
        """sum[i * len(b) + j] += a[i] * b[j]"""
        for i, left in enumerate(a):
            for j, right in enumerate(b):
                slot = self._slots[i * len(b) + j]
                slot.set(self._floats.multiply_add(left, right, slot.get()))

    def add_product(self, a: Sequence[Any], b: Any, j: int, n: int) -> None:
        """sum[i * n + j] += a[i] * b"""
        for i, left in enumerate(a):
            slot = self._slots[i * n + j]
            slot.set(self._floats.multiply_add(left, b, slot.get()))

    def get(self) -> list[Any]:
        return [slot.get() for slot in self._slots]
