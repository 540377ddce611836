"""Kernels on rows at level word64: of Fr, for products with a circuit, powers and a set-up; and of integers,
for the signed digits of scalars and the order of points by digit.
"""

from typing import Any

from llvmlite import ir

from evenload.gpu.field import FR
from evenload.gpu.llvm.field.arith import Element, PrimeField, Registers
from evenload.gpu.llvm.field.word64 import Word64
from evenload.gpu.llvm.ir_builder import I16, I32, I64, Code

COEFFICIENT_BYTES = 44
"""A record of section 4 of a .zkey: u32 matrix, u32 row, u32 wire, 32 bytes of value."""
I256 = ir.IntType(256)
_DIGIT_BLOCK = 256  # scalars whose digits are taken together: they stay in the first-level cache


def _record(code: Code, records: Any, k: Any) -> tuple[Any, Any, Any, Any]:
    at = code.add(records, code.mul(k, COEFFICIENT_BYTES))
    fields = [code.ir.zext(code.load(at, I32, 4 * i), I64) for i in range(3)]
    return fields[0], fields[1], fields[2], code.load(at, I256, 12)


def sparse_products(code: Code, records: Any, n: Any, witness: Any, a: Any, b: Any) -> None:
    """a[row] or b[row] += value * witness[wire] for every record; rows stay canonical, in Montgomery form."""
    f = PrimeField(code, Word64, FR)
    with code.range(0, n) as k:
        matrix, row, wire, value = _record(code, records, k)
        w = code.load(code.add(witness, code.mul(wire, 32)), I256, align=8)
        product = f.multiply_inline(Element([value], 1), Element([w], 1))
        target = code.ir.select(code.ir.icmp_unsigned("==", matrix, code.const(0)), a, b)
        target = code.add(target, code.mul(row, 32))
        f.store(f.add(product, f.load(target, bound=1)), target, bound=1)


def multiply_rows(code: Code, a: Any, b: Any, out: Any, n: Any) -> None:
    """out = a * b, canonical, in Montgomery form."""
    f = PrimeField(code, Word64, FR)
    with code.range(0, n) as k:
        x, y = (f.load(code.add(rows, code.mul(k, 32)), bound=1) for rows in (a, b))
        f.store(f.multiply_inline(x, y), code.add(out, code.mul(k, 32)), bound=1)


def powers(code: Code, start: Any, base: Any, out: Any, n: Any) -> None:
    """out[i] = start * base^i, where ``base`` is in Montgomery form and ``start`` in any."""
    f = PrimeField(code, Word64, FR)
    factor = f.load(base, bound=1)
    value = code.variable(code.load(start, I256, align=8), I256)
    with code.range(0, n) as k:
        code.store(value.get(), code.add(out, code.mul(k, 32)), align=8)
        value.set(f.canonical(f.multiply_inline(Element([value.get()], 1), factor)).limbs[0])


# --- set-up ---------------------------------------------------------------------------------------
def lagrange(code: Code, nodes: Any, n: Any, point: Any, factor: Any, out: Any) -> None:
    """out[i] = factor * nodes[i] / (point - nodes[i]), all in Montgomery form; the point is none of the
    nodes."""
    f = PrimeField(code, Word64, FR)
    at = lambda base, i: code.add(base, code.mul(i, 32))  # noqa: E731
    x, scale = f.load(point, bound=1), f.load(factor, bound=1)
    product = Registers(f, [f.one()])
    with code.range(0, n) as i:
        f.store(product.get()[0], at(out, i))
        difference = f.subtract(x, f.load(at(nodes, i), bound=1))
        product.set([f.multiply_inline(product.get()[0], difference)])
    product.set([f.invert(product.get()[0])])
    with code.range(code.sub(n, 1), -1, -1) as i:
        node = f.load(at(nodes, i), bound=1)
        inverse = f.multiply_inline(product.get()[0], f.load(at(out, i)))
        product.set([f.multiply_inline(product.get()[0], f.subtract(x, node))])
        f.store(f.multiply_inline(f.multiply_inline(inverse, node), scale), at(out, i), bound=1)


def combine_rows(code: Code, a: Any, b: Any, c: Any, factors: Any, out: Any, n: Any) -> None:
    """out = a*x + b*y + c*z, canonical, where ``factors`` holds x, y, z in Montgomery form; the form of a,
    b, c stays."""
    f = PrimeField(code, Word64, FR)
    x, y, z = (f.load(factors, 32 * k, bound=1) for k in range(3))
    with code.range(0, n) as i:
        at = code.mul(i, 32)
        terms = [f.multiply(f.load(code.add(rows, at), bound=1), k) for rows, k in ((a, x), (b, y), (c, z))]
        f.store(f.add(f.add(terms[0], terms[1]), terms[2]), code.add(out, at), bound=1)


# --- digits ---------------------------------------------------------------------------------------
def digits(code: Code, scalars: Any, keep: Any, n: Any, width: Any, n_windows: Any, out: Any) -> None:
    """Signed digits of ``width`` bits (4..16): out[w][i] int16 in [-2^(width-1), 2^(width-1)), for row
    keep[i].

    Half of the base is added to every window but the last; then digits are read off without carries and the
    half is taken away again. The last digit is not negative (``evenload.zk.cpu.msm.window_count``).
    """
    half, mask = code.shl(1, code.sub(width, 1)), code.sub(code.shl(1, width), 1)
    offset = code.variable(ir.Constant(I256, 0), I256)
    last = code.sub(n_windows, 1)
    with code.range(0, last) as w:
        bit = code.ir.zext(code.sub(code.mul(code.add(w, 1), width), 1), I256)
        offset.set(code.ir.add(offset.get(), code.ir.shl(ir.Constant(I256, 1), bit)))
    shifted = code.stack(32 * _DIGIT_BLOCK + 8)
    with code.range(0, n, _DIGIT_BLOCK) as first:
        count = code.min(code.sub(n, first), _DIGIT_BLOCK)
        with code.range(0, count) as i:
            row = code.add(scalars, code.mul(code.load_int(keep, code.add(first, i), I32), 32))
            value = code.ir.add(code.load(row, I256, align=8), offset.get())
            code.store(value, code.add(shifted, code.mul(i, 32)), align=8)
        with code.range(0, n_windows) as w:
            less = code.ir.select(code.less(w, last), half, code.const(0))
            target = code.add(out, code.mul(code.add(code.mul(w, n), first), 2))
            _read_window(code, shifted, count, code.mul(w, width), (mask, less), target)


def _read_window(code: Code, rows: Any, count: Any, bit: Any, how: tuple[Any, Any], target: Any) -> None:
    """target[i] = (rows[i] >> bit & mask) - less, for windows that may reach into the next word but not the
    next row."""
    mask, less = how
    word, shift = code.mul(code.lshr(bit, 6), 8), code.and_(bit, 63)
    left = code.sub(63, shift)
    is_top = code.ir.icmp_unsigned("==", word, code.const(24))
    reach = code.ir.select(is_top, code.const(0), code.const(-1))
    with code.range(0, count) as i:
        at = code.add(rows, code.mul(i, 32), word)
        low = code.lshr(code.load(at, I64, align=8), shift)
        high = code.shl(code.shl(code.and_(code.load(at, I64, 8, align=8), reach), 1), left)
        code.store_int(code.sub(code.and_(code.ir.or_(low, high), mask), less), target, i, I16)


def sort(code: Code, digit: Any, n: Any, n_windows: Any, n_buckets: Any, start: Any, index: Any) -> None:
    """Counting sort of ``n_windows`` rows of int16 digits by bucket (window, |digit| - 1); zeros are left
    out.

    start gets n_windows * n_buckets + 1 int64 (room for one more), index the sorted positions with bit 31 as
    sign.
    """
    n_all = code.mul(n_windows, n_buckets)
    with code.range(0, code.add(n_all, 2)) as b:
        code.store_int(0, start, b)

    def bucket(w: Any, i: Any) -> tuple[Any, Any]:
        value = code.load_int(digit, code.add(code.mul(w, n), i), I16)
        is_negative = code.less(value, 0)
        size = code.ir.select(is_negative, code.sub(0, value), value)
        return size, code.shl(code.ir.zext(is_negative, I64), 31)

    with code.range(0, n_windows) as w:
        base = code.add(code.mul(w, n_buckets), 1)
        with code.range(0, n) as i:
            size, _ = bucket(w, i)
            with code.when(code.less(0, size)):
                at = code.add(base, size)
                code.store_int(code.add(code.load_int(start, at), 1), start, at)
    total = code.variable(0)
    with code.range(0, code.add(n_all, 2)) as b:
        total.add(code.load_int(start, b))
        code.store_int(total.get(), start, b)
    with code.range(0, n_windows) as w:
        base = code.mul(w, n_buckets)
        with code.range(0, n) as i:
            size, sign = bucket(w, i)
            with code.when(code.less(0, size)):
                at = code.add(base, size)
                place = code.load_int(start, at)
                code.store_int(code.ir.or_(i, sign), index, place, I32)
                code.store_int(code.add(place, 1), start, at)
    # Each slot now holds the end of the bucket before it; slot 0 is the beginning of the first.


def nonzero_rows(code: Code, rows: Any, n: Any, row_bytes: Any, out: Any) -> Any:
    """out gets the int32 positions of the rows that are not all zeros; returns how many."""
    kind = ir.VectorType(I64, 4)
    count = code.variable(0)
    n_quads = code.lshr(row_bytes, 5)
    with code.range(0, n) as i:
        seen = code.variable(ir.Constant(kind, [0] * 4), kind)
        row = code.add(rows, code.mul(i, row_bytes))
        with code.range(0, n_quads) as k:
            seen.set(code.ir.or_(seen.get(), code.load(code.add(row, code.mul(k, 32)), kind)))
        code.store_int(i, out, count.get(), I32)
        words = [code.ir.extract_element(seen.get(), ir.Constant(I32, k)) for k in range(4)]
        any_word = code.ir.or_(code.ir.or_(words[0], words[1]), code.ir.or_(words[2], words[3]))
        is_nonzero = code.ir.icmp_unsigned("!=", any_word, code.const(0))
        count.add(code.ir.zext(is_nonzero, I64))
    return count.get()
