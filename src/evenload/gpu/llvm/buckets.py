"""Kernels of Pippenger's multi-scalar multiplication, over G1 or G2 at any level.

    digits -> sort (one bucket for each |digit|)
           -> accumulate (affine additions, one shared inversion for many)
           -> bucket_sum (weighted sum of the buckets) -> fold (windows to one point)

Points in memory are rows: affine coordinates, canonical, in the level's Montgomery form, 64 bytes for G1 and
128 for G2; a row of zeros is infinity (no point of either curve has x = 0: 3 and the twist's constant are
non-squares). Affine additions share their inversions (Montgomery's trick): 5 products and a square each,
against 11 in projective coordinates.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from evenload.gpu.curve import Point, add, add_affine, infinity, select_point
from evenload.gpu.field import FQ, TWIST_B
from evenload.gpu.llvm.field.arith import PrimeField, Registers
from evenload.gpu.llvm.field.extension import QuadraticField
from evenload.gpu.llvm.ir_builder import I32, I64, Code

_AHEAD = 6  # blocks between a prefetch and its use


class GroupKernels:
    """Kernels of one group (degree 1: G1, 2: G2) at one level, as LLVM code."""

    def __init__(self, level: type, degree: int):
        self.level, self.degree = level, degree
        self.lanes, self.row_bytes = level.lanes, 64 * degree
        self.element_bytes = level.block_bytes * degree
        self.block_bytes = 5 * self.element_bytes + 64  # prefix, x1, y1, dx, dy, flags
        self.prefix = f"g{degree}_{level.name}_"

    def field(self, code: Code) -> Any:
        return (PrimeField if self.degree == 1 else QuadraticField)(code, self.level, FQ)

    # --- import ---------------------------------------------------------------------------------
    def import_points(self, code: Code, source: Any, keep: Any, n: Any, target: Any, bad: Any) -> Any:
        """Rows ``keep[i]`` of snarkjs's form (R = 2^256) -> rows of this level.

        Returns 0, or 1 if a coordinate is not below q, 2 if a point is not on the curve; ``bad`` gets the
        position in ``keep`` of the first row of the block that holds it.
        """
        f = self.field(code)
        fault = code.variable(0)
        with code.range(0, n, self.lanes) as i:
            positions = [code.min(code.add(i, lane), code.sub(n, 1)) for lane in range(self.lanes)]
            x, y = f.load_rows(self._rows(code, source, [code.load_int(keep, k, I32) for k in positions]), 2)
            is_canonical = code.ir.and_(f.is_canonical(x), f.is_canonical(y))
            # Rows are of R = 2^256, and the product takes the level's R away once.
            x, y = (self._scaled(f, value, 2 * self.level.radix_bits - 256) for value in (x, y))
            right = f.add(f.multiply(f.square(x), x), self._curve_constant(f))
            is_on_curve = f.equal(f.square(y), right)
            for mask, number in ((is_on_curve, 2), (is_canonical, 1)):
                with code.when(self._any_missing(code, f, mask), likely=False):
                    fault.set(code.const(number))
                    code.store_int(i, bad, 0)
            f.store_rows([x, y], self._rows(code, target, [code.add(i, lane) for lane in range(self.lanes)]))
            with code.when(code.ir.icmp_signed("!=", fault.get(), code.const(0)), likely=False):
                code.ir.ret(fault.get())
                code.ir.position_at_end(code.ir.append_basic_block("unreachable"))
        return fault.get()

    def export_points(self, code: Code, source: Any, n: Any, target: Any) -> None:
        """Rows of this level -> rows with R = 2^256."""
        f = self.field(code)
        with code.range(0, n, self.lanes) as i:
            positions = [code.min(code.add(i, lane), code.sub(n, 1)) for lane in range(self.lanes)]
            x, y = f.load_rows(self._rows(code, source, positions), 2)
            values = [self._to_common_form(f, value) for value in (x, y)]
            f.store_rows(values, self._rows(code, target, positions))

    def _rows(self, code: Code, base: Any, numbers: list[Any]) -> list[Any]:
        return [code.add(base, code.mul(k, self.row_bytes)) for k in numbers]

    def _any_missing(self, code: Code, f: Any, mask: Any) -> Any:
        full = code.const((1 << self.lanes) - 1)
        return code.ir.icmp_unsigned("!=", f.level.bits(mask), full)

    def _curve_constant(self, f: Any) -> Any:
        return f.constant(3) if self.degree == 1 else f.constant(TWIST_B)

    def _to_common_form(self, f: Any, value: Any) -> Any:
        """Back to R = 2^256."""
        return self._scaled(f, value, 256)

    def _scaled(self, f: Any, value: Any, log_factor: int) -> Any:
        """The Montgomery product with 2^log_factor; none where the level's R is 2^256 itself."""
        if self.level.radix_bits == 256:
            return f.canonical(value)
        base = f if self.degree == 1 else f.base
        scale = lambda c: base.canonical(base.multiply(c, base.raw(pow(2, log_factor, base.p))))  # noqa: E731
        return scale(value) if self.degree == 1 else f._each(scale, value)

    # --- affine additions -----------------------------------------------------------------------
    def load_points(self, code: Code, f: Any, pairs: Any) -> tuple[Any, Any]:
        """Points at the ``lanes`` tagged addresses at ``pairs``; tag bit 0 asks for the negative."""
        tagged = [code.load_int(pairs, lane) for lane in range(self.lanes)]
        x, y = f.load_rows([code.and_(address, -64) for address in tagged], 2)
        if self.lanes == 1:
            negative = code.ir.trunc(tagged[0], f.level.mask_type)
        else:
            vector = code.load(pairs, ir.VectorType(I64, self.lanes), align=64)
            negative = code.ir.trunc(vector, f.level.mask_type)
        return x, f.select(negative, f.negate(y), y)

    def add_pairs(self, code: Code, p: Any, q: Any, out: Any, n: Any, scratch: Any, batch: Any) -> None:
        """out[i] = p[i] + q[i] for ``n`` pairs of tagged addresses (64-byte aligned arrays, room for a block
        more)."""
        for lane in range(self.lanes - 1):  # fill the last block with a copy of the last pair
            at = code.add(n, lane)
            for array in (p, q):
                code.store_int(code.load_int(array, code.sub(n, 1)), array, at)
            code.store_int(scratch, out, at)
        f = self.field(code)
        product = code.add(scratch, 128)
        blocks = code.add(product, self.element_bytes)
        n_blocks = code.ir.sdiv(code.add(n, self.lanes - 1), code.const(self.lanes))
        n_batches = code.ir.sdiv(code.sub(code.add(n_blocks, batch), 1), batch)
        with code.range(0, n_batches) as number:
            first = code.mul(number, batch)
            last = code.min(code.add(first, batch), n_blocks)
            f.store(f.one(), product)
            with code.range(first, last) as k:
                block = code.add(blocks, code.mul(code.sub(k, first), self.block_bytes))
                self._prefetch(code, p, q, k)
                at = code.mul(k, 8 * self.lanes)
                self._forward(code, f, code.add(p, at), code.add(q, at), block, product)
            f.store(f.invert(f.load(product)), product)
            with code.range(code.sub(last, 1), code.sub(first, 1), -1) as k:
                block = code.add(blocks, code.mul(code.sub(k, first), self.block_bytes))
                self._backward(code, f, block, product, code.add(out, code.mul(k, 8 * self.lanes)))

    def _prefetch(self, code: Code, p: Any, q: Any, k: Any) -> None:
        at = code.mul(code.add(k, _AHEAD), 8 * self.lanes)
        for array in (p, q):
            for lane in range(self.lanes):
                address = code.load(code.add(array, at), I64, 8 * lane, align=8)
                for line in range(self.degree):
                    code.prefetch(code.add(address, 64 * line))

    @property
    def _slots(self) -> dict[str, int]:
        names = ("prefix", "x", "y", "dx", "dy", "flags")
        return {name: k * self.element_bytes for k, name in enumerate(names)}

    def _forward(self, code: Code, f: Any, p: Any, q: Any, block: Any, product: Any) -> None:
        """Store what the backward pass needs and multiply the running product by x2 - x1."""
        builder, at = code.ir, self._slots
        (x1, y1), (x2, y2) = self.load_points(code, f, p), self.load_points(code, f, q)
        y1, y2 = f.tidy(y1), f.tidy(y2)
        same_x, first_infinite, second_infinite = f.equal(x1, x2), f.is_zero(x1), f.is_zero(x2)
        is_special = builder.or_(same_x, builder.or_(first_infinite, second_infinite))
        before = f.load(product)
        dx, dy = f.tidy(f.subtract(x2, x1)), f.tidy(f.subtract(y2, y1))
        for name, value in (("prefix", before), ("x", x1), ("y", y1), ("dx", dx), ("dy", dy)):
            f.store(value, block, at[name])
        code.store(code.const(0), block, at["flags"], align=8)
        with code.when(builder.icmp_unsigned("!=", f.level.bits(is_special), code.const(0)), likely=False):
            same_y = f.equal(y1, y2)
            keep = builder.or_(first_infinite, second_infinite)
            finite = builder.and_(same_x, builder.not_(keep))
            double = builder.and_(finite, same_y)
            cancel = builder.and_(finite, builder.not_(same_y))
            dx = f.select(double, f.below(f.double(y1), 2), f.select(builder.or_(keep, cancel), f.one(), dx))
            dy = f.select(double, f.below(f.triple(f.square(x1)), 2), dy)
            x1, y1 = f.select(first_infinite, x2, x1), f.select(first_infinite, y2, y1)
            for name, value in (("x", x1), ("y", y1), ("dx", dx), ("dy", dy)):
                f.store(value, block, at[name], bound=1 if name == "x" else 2)
            flags = f.level.bits(double)
            for shift, mask in ((8, keep), (16, cancel)):
                flags = builder.or_(flags, code.shl(f.level.bits(mask), shift))
            code.store(flags, block, at["flags"], align=8)
        f.store(f.multiply_inline(before, f.load(block, at["dx"])), product)

    def _backward(self, code: Code, f: Any, block: Any, product: Any, out: Any) -> None:
        """The slope from the inverse of the running product, then the sum of the two points."""
        builder, at = code.ir, self._slots
        after, dx, dy = f.load(product), f.load(block, at["dx"]), f.load(block, at["dy"])
        inverse = f.multiply_inline(after, f.load(block, at["prefix"]))
        f.store(f.multiply_inline(after, dx), product)
        slope = f.multiply_inline(inverse, dy)
        x, y = f.load(block, at["x"], bound=1), f.load(block, at["y"])
        twice = f.double(x)
        flags = code.load(block, I64, at["flags"], align=8)
        is_special = builder.icmp_unsigned("!=", flags, code.const(0))
        sum_x = Registers(f, [f.add(twice, dx)], bound=6)
        with code.when(is_special, likely=False):
            sum_x.set([f.select(f.level.mask(flags), twice, f.add(twice, dx))])
        x3 = f.canonical(f.subtract(f.square(slope), sum_x.get()[0]))
        y3 = f.canonical(f.subtract(f.multiply_inline(slope, f.subtract(x, x3)), y))
        result = Registers(f, [x3, y3], bound=1)
        with code.when(is_special, likely=False):
            keep, cancel = (f.level.mask(code.lshr(flags, shift)) for shift in (8, 16))
            for_lane = lambda old, new: f.select(cancel, f.zero(), f.select(keep, old, new))  # noqa: E731
            result.set([for_lane(x, x3), for_lane(y, y3)])
        x3, y3 = result.get()
        f.store_rows([x3, y3], [code.load_int(out, lane) for lane in range(self.lanes)])

    # --- buckets --------------------------------------------------------------------------------
    def accumulate(self, code: Code, *arguments: Any) -> None:
        """sums[b] = the sum of bucket b's points, for buckets first <= b < last.

        points (rows), index (int32: position, sign bit set for the negative), start (int64: bucket b holds
        index[start[b]:start[b+1]]), first, last, sums (rows); then work space, each on 64 bytes: p, q, out
        (int64, one for each pair and ``PAIR_SLACK`` more), counts0, counts1 (last - first + 1 int64), rows0,
        rows1 (a row for each bucket and pair), scratch (``layout.scratch_bytes``); and batch, the blocks of
        additions that share an inversion.
        """
        points, index, start, first, last, sums, p, q, out, *spaces, scratch, batch = arguments
        counts0, counts1, rows0, rows1 = spaces
        run = code.function(self.prefix + "add_pairs", 6, self.add_pairs)
        begin = code.function(self.prefix + "pair_first", 10, self._pair_first)
        again = code.function(self.prefix + "pair_again", 9, self._pair_again)
        n_buckets = code.sub(last, first)
        sums, start = code.add(sums, code.mul(first, self.row_bytes)), code.add(start, code.mul(first, 8))
        with code.range(0, code.mul(n_buckets, self.row_bytes // 32)) as k:
            code.store(ir.Constant(ir.VectorType(I64, 4), [0] * 4), code.add(sums, code.mul(k, 32)), align=8)
        pairs = (sums, p, q, out)
        n = code.variable(code.call(begin, start, n_buckets, *pairs, rows0, counts0, points, index))
        from_rows, to_rows, from_counts, to_counts = map(code.variable, (rows0, rows1, counts0, counts1))
        with code.loop(lambda: code.less(0, n.get())):
            code.call(run, p, q, out, n.get(), scratch, batch)
            space = (to_rows.get(), to_counts.get(), from_rows.get())
            n.set(code.call(again, from_counts.get(), n_buckets, *pairs, *space))
            for a, b in ((from_rows, to_rows), (from_counts, to_counts)):
                old = a.get()
                a.set(b.get())
                b.set(old)

    def _pair_first(self, code: Code, *arguments: Any) -> Any:
        *common, points, index = arguments

        def source(k: Any) -> Any:
            entry = code.load_int(index, k, I32)
            address = code.add(points, code.mul(code.and_(entry, 0x7FFFFFFF), self.row_bytes))
            return code.ir.or_(address, code.and_(code.lshr(entry, 31), 1))

        return self._pair(code, source, True, *common)

    def _pair_again(self, code: Code, *arguments: Any) -> Any:
        *common, rows = arguments
        return self._pair(code, lambda k: code.add(rows, code.mul(k, self.row_bytes)), False, *common)

    def _pair(self, code: Code, source: Callable[[Any], Any], signed: bool, *common: Any) -> Any:
        """List the additions of one round; a bucket that is down to one point, or will be, goes to
        ``sums``."""
        starts, n_buckets, sums, p, q, out, target, new_starts = common
        n_pairs, n_rows = code.variable(0), code.variable(0)
        with code.range(0, n_buckets) as b:
            begin, end = code.load_int(starts, b), code.load_int(starts, code.add(b, 1))
            code.store_int(n_rows.get(), new_starts, b)
            final = code.add(sums, code.mul(b, self.row_bytes))
            count = code.sub(end, begin)
            ends_here = code.less(count, 3)
            n_even = code.and_(count, -2)
            with code.range(begin, code.add(begin, n_even), 2) as k:
                at = n_pairs.get()
                code.store_int(source(k), p, at)
                code.store_int(source(code.add(k, 1)), q, at)
                row = code.add(target, code.mul(n_rows.get(), self.row_bytes))
                code.store_int(code.ir.select(ends_here, final, row), out, at)
                n_pairs.add(code.const(1))
                n_rows.add(code.ir.select(ends_here, code.const(0), code.const(1)))
            with code.when(code.ir.trunc(count, ir.IntType(1))):
                row = code.add(target, code.mul(n_rows.get(), self.row_bytes))
                last = code.ir.select(ends_here, final, row)
                self._copy_point(code, source(code.sub(end, 1)), last, signed)
                n_rows.add(code.ir.select(ends_here, code.const(0), code.const(1)))
        code.store_int(n_rows.get(), new_starts, n_buckets)
        return n_pairs.get()

    def _copy_point(self, code: Code, tagged: Any, target: Any, signed: bool) -> None:
        address = code.and_(tagged, -64)
        code.copy(target, address, self.row_bytes)
        if not signed:
            return
        wide = ir.IntType(256)
        p, zero = ir.Constant(wide, FQ.modulus), ir.Constant(wide, 0)
        with code.when(code.ir.trunc(tagged, ir.IntType(1))):
            for offset in range(32 * self.degree, self.row_bytes, 32):
                y = code.load(address, wide, offset, align=8)
                negative = code.ir.select(code.ir.icmp_unsigned("==", y, zero), zero, code.ir.sub(p, y))
                code.store(negative, target, offset, align=8)

    def bucket_sum(self, code: Code, sums: Any, n_buckets: Any, out: Any) -> None:
        """The weighted sum of buckets, in ``lanes`` segments of consecutive buckets.

        For each segment a row of six coordinates, R = 2^256: the sum of its buckets, and the sum weighted by
        1, 2, ... from the segment's first bucket on; both projective.
        """
        f = self.field(code)
        length = code.ir.sdiv(n_buckets, code.const(self.lanes))
        start = infinity(f)
        running, total = (Registers(f, [start.x, start.y, start.z]) for _ in range(2))
        with code.range(code.sub(length, 1), -1, -1) as j:
            rows = [code.add(code.mul(length, lane), j) for lane in range(self.lanes)]
            x, y = f.load_rows(self._rows(code, sums, rows), 2)
            old = Point(*running.get())
            new = select_point(f, f.is_zero(x), old, add_affine(f, old, x, y))
            running.set([new.x, new.y, new.z])
            summed = add(f, Point(*total.get()), Point(*running.get()))
            total.set([summed.x, summed.y, summed.z])
        values = [self._to_common_form(f, value) for value in (*running.get(), *total.get())]
        targets = [code.add(out, code.const(lane * 192 * self.degree)) for lane in range(self.lanes)]
        f.store_rows(values, targets)
