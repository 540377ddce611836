"""Integer kernels of Pippenger's method: signed digits of scalars, and sorting points into buckets by
digit."""

from typing import Any

from llvmlite import ir

from evenload.gpu.llvm.ir_builder import I16, I32, I64, Code, add_kernel

__all__ = ["SIGNATURES", "add_digit_kernels"]

SIGNATURES = {"digits": 6, "sort": 6, "nonzero_rows": 4}


WIDE = ir.IntType(256)
_DIGIT_BLOCK = 256  # scalars whose digits are taken together: they stay in the first-level cache


def digits(code: Code, scalars: Any, keep: Any, n: Any, width: Any, n_windows: Any, out: Any) -> None:
    """Signed digits of ``width`` bits (4..16): out[w][i] int16 in [-2^(width-1), 2^(width-1)), for row
    keep[i].

    Half of the base is added to every window but the last; then digits are read off without carries and the
    half is taken away again. The last digit is not negative (``evenload.zk.cpu.msm.window_count``).
    """
    half, mask = code.shl(1, code.sub(width, 1)), code.sub(code.shl(1, width), 1)
    offset = code.variable(ir.Constant(WIDE, 0), WIDE)
    last = code.sub(n_windows, 1)
    with code.range(0, last) as w:
        bit = code.ir.zext(code.sub(code.mul(code.add(w, 1), width), 1), WIDE)
        offset.set(code.ir.add(offset.get(), code.ir.shl(ir.Constant(WIDE, 1), bit)))
    shifted = code.stack(32 * _DIGIT_BLOCK + 8)
    with code.range(0, n, _DIGIT_BLOCK) as first:
        count = code.min(code.sub(n, first), _DIGIT_BLOCK)
        with code.range(0, count) as i:
            row = code.add(scalars, code.mul(code.load_int(keep, code.add(first, i), I32), 32))
            value = code.ir.add(code.load(row, WIDE, align=8), offset.get())
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


def add_digit_kernels(module: ir.Module) -> None:
    """Add digits, sort and nonzero_rows."""
    for name, body in (("digits", digits), ("sort", sort), ("nonzero_rows", nonzero_rows)):
        add_kernel(module, name, SIGNATURES[name], body)
