"""Kernels on few points, one at a time: windows to one sum, and sums of multiples. Level word64 only.

``combine`` does the same operations for every secret scalar (no branch and no address depends on one), as it
handles the blinding of proofs; ``fold`` handles sums that are public or already mixed.
"""

from typing import Any

from llvmlite import ir

from evenload.gpu.curve import Point, add, double, infinity, select_point
from evenload.gpu.field import FQ
from evenload.gpu.llvm.field.arith import PrimeField
from evenload.gpu.llvm.field.extension import QuadraticField
from evenload.gpu.llvm.field.word64 import Word64
from evenload.gpu.llvm.ir_builder import Code


class FoldKernels:
    """Kernels of one group (degree 1: G1, 2: G2)."""

    def __init__(self, degree: int):
        self.degree, self.row_bytes = degree, 64 * degree
        self.point_bytes = 96 * degree

    def field(self, code: Code) -> Any:
        return (PrimeField if self.degree == 1 else QuadraticField)(code, Word64, FQ)

    def _load(self, f: Any, address: Any) -> Point:
        return Point(*(f.load(address, k * f.block_bytes) for k in range(3)))

    def _store(self, f: Any, point: Point, address: Any) -> None:
        for k, value in enumerate((point.x, point.y, point.z)):
            f.store(value, address, k * f.block_bytes)

    def _add_in_place(self, code: Code, target: Any, other: Any) -> None:
        f = self.field(code)
        self._store(f, add(f, self._load(f, target), self._load(f, other)), target)

    def _adder(self, code: Code) -> Any:
        return code.function(f"g{self.degree}_add_in_place", 2, self._add_in_place)

    def _double_in_place(self, code: Code, target: Any) -> None:
        f = self.field(code)
        self._store(f, double(f, self._load(f, target)), target)

    def _doubler(self, code: Code) -> Any:
        return code.function(f"g{self.degree}_double_in_place", 1, self._double_in_place)

    def _slots(self, code: Code, f: Any, n: int) -> list[Any]:
        """``n`` points on the stack, all infinity."""
        slots = [code.stack(self.point_bytes) for _ in range(n)]
        for slot in slots:
            self._store(f, infinity(f), slot)
        return slots

    def _store_affine(self, f: Any, source: Any, out: Any) -> None:
        """Projective point to an affine row; infinity (z = 0) gives zeros, for 0 inverts to 0."""
        point = self._load(f, source)
        inverse = f.invert(point.z)
        f.store_rows([f.multiply(point.x, inverse), f.multiply(point.y, inverse)], [out])

    def fold(
        self, code: Code, segments: Any, n_windows: Any, lanes: Any, log_length: Any, width: Any, out: Any
    ) -> None:
        """sum over w of 2^(w * width) * window w, from what ``bucket_sum`` left; an affine row, R = 2^256.

        segments: [n_windows][lanes][2] projective points; each segment holds 2^log_length buckets.
        """
        f, plus, twice = self.field(code), self._adder(code), self._doubler(code)
        (total,) = self._slots(code, f, 1)
        window_bytes = code.mul(lanes, 2 * self.point_bytes)
        with code.range(code.sub(n_windows, 1), -1, -1) as w:
            with code.range(0, width):
                code.call(twice, total)
            window = code.add(segments, code.mul(w, window_bytes))
            running, weighted = self._slots(code, f, 2)
            with code.range(code.sub(lanes, 1), 0, -1) as s:
                code.call(plus, running, code.add(window, code.mul(s, 2 * self.point_bytes)))
                code.call(plus, weighted, running)
            with code.range(0, log_length):
                code.call(twice, weighted)
            code.call(plus, total, weighted)
            with code.range(0, lanes) as s:
                at = code.add(code.mul(s, 2 * self.point_bytes), self.point_bytes)
                code.call(plus, total, code.add(window, at))
        self._store_affine(f, total, out)

    def combine(
        self, code: Code, points: Any, scalars: Any, n: Any, n_bits: Any, are_public: Any, out: Any
    ) -> None:
        """sum of scalars[i] * points[i]: affine rows (zeros: infinity), scalars of 32 bytes below 2^n_bits.

        are_public: 0 or 1; 1 passes over the bits that are not set.
        """
        f, plus, twice = self.field(code), self._adder(code), self._doubler(code)
        total, addend = self._slots(code, f, 2)
        is_secret = code.ir.icmp_unsigned("==", are_public, code.const(0))
        with code.range(code.sub(n_bits, 1), -1, -1) as bit:
            code.call(twice, total)
            with code.range(0, n) as i:
                word = code.load_int(code.add(scalars, code.mul(i, 32)), code.lshr(bit, 6))
                is_set = code.ir.trunc(code.lshr(word, code.and_(bit, 63)), ir.IntType(1))
                with code.when(code.ir.or_(is_secret, is_set)):
                    x, y = f.load_rows([code.add(points, code.mul(i, self.row_bytes))], 2)
                    is_real = code.ir.and_(is_set, code.ir.not_(f.is_zero(x)))
                    chosen = select_point(f, is_real, Point(x, y, f.one()), infinity(f))
                    self._store(f, chosen, addend)
                    code.call(plus, total, addend)
        self._store_affine(f, total, out)
