"""Kernels of the pairing: Fq12 = Fq2[w] / (w^6 - (9 + u)) in memory as six Fq2 coefficients, level word64.

Inside, Fq12 = Fq6[w] / (w^2 - v) with Fq6 = Fq2[v] / (v^3 - (9 + u)): even and odd coefficients.
Source: Karatsuba and complex squaring as in Devegili, O'hEigeartaigh, Scott, Dahab (2006).
"""

from typing import Any

from llvmlite import ir

from evenload.gpu.field import FQ, X
from evenload.gpu.llvm.field.extension import Pair, QuadraticField
from evenload.gpu.llvm.field.word64 import Word64
from evenload.gpu.llvm.ir_builder import Code
from evenload.gpu.llvm.layout import N_LINES, SCRATCH_BYTES, STEPS

LINE_BYTES = 128
BEFORE, RUN = 128, 192  # in a point's scratch
Six = list[Pair]


def _field(code: Code) -> QuadraticField:
    return QuadraticField(code, Word64, FQ)


def _load(f: QuadraticField, address: Any) -> tuple[Six, Six]:
    """Even and odd coefficients."""
    c = [f.load(address, 64 * k) for k in range(6)]
    return c[0::2], c[1::2]


def _store(f: QuadraticField, even: Six, odd: Six, address: Any) -> None:
    for k in range(3):
        f.store(even[k], address, 128 * k)
        f.store(odd[k], address, 128 * k + 64)


def _times_xi(f: QuadraticField, a: Pair) -> Pair:
    """(9 + u) * a."""
    a = f.below(a, 2)
    nine = f.base.times_3b
    return f.below(Pair(f.base.subtract(nine(a.c0), a.c1), f.base.add(nine(a.c1), a.c0)), 2)


def _times_v(f: QuadraticField, a: Six) -> Six:
    return [_times_xi(f, a[2]), a[0], a[1]]


def _sum(f: QuadraticField, a: Six, b: Six) -> Six:
    return [f.below(f.add(x, y), 2) for x, y in zip(a, b, strict=True)]


def _difference(f: QuadraticField, a: Six, b: Six) -> Six:
    return [f.below(f.subtract(x, y), 2) for x, y in zip(a, b, strict=True)]


def _multiply(f: QuadraticField, a: Six, b: Six) -> Six:
    """Six products instead of nine."""
    own = [f.below(f.multiply(a[k], b[k]), 2) for k in range(3)]

    def cross(i: int, j: int) -> Pair:
        product = f.multiply(f.add(a[i], a[j]), f.add(b[i], b[j]))
        return f.below(f.subtract(f.below(f.subtract(f.below(product, 2), own[i]), 2), own[j]), 2)

    return [
        f.below(f.add(own[0], _times_xi(f, cross(1, 2))), 2),
        f.below(f.add(cross(0, 1), _times_xi(f, own[2])), 2),
        f.below(f.add(cross(0, 2), own[1]), 2),
    ]


def _multiply_sparse(f: QuadraticField, a: Six, b0: Pair, b1: Pair) -> Six:
    """a * (b0 + b1*v)."""
    t0, t1 = f.below(f.multiply(a[0], b0), 2), f.below(f.multiply(a[1], b1), 2)
    cross = f.below(f.multiply(f.add(a[0], a[1]), f.add(b0, b1)), 2)
    return [
        f.below(f.add(t0, _times_xi(f, f.multiply(a[2], b1))), 2),
        f.below(f.subtract(f.below(f.subtract(cross, t0), 2), t1), 2),
        f.below(f.add(t1, f.below(f.multiply(a[2], b0), 2)), 2),
    ]


def f12_multiply(code: Code, out: Any, a: Any, b: Any) -> None:
    """out = a * b; ``out`` may be one of them."""
    f = _field(code)
    (a0, a1), (b0, b1) = _load(f, a), _load(f, b)
    low, high = _multiply(f, a0, b0), _multiply(f, a1, b1)
    cross = _multiply(f, _sum(f, a0, a1), _sum(f, b0, b1))
    odd = _difference(f, _difference(f, cross, low), high)
    _store(f, _sum(f, low, _times_v(f, high)), odd, out)


def square(code: Code, out: Any, a: Any) -> None:
    f = _field(code)
    a0, a1 = _load(f, a)
    product = _multiply(f, a0, a1)
    cross = _multiply(f, _sum(f, a0, a1), _sum(f, a0, _times_v(f, a1)))
    even = _difference(f, _difference(f, cross, product), _times_v(f, product))
    _store(f, even, _sum(f, product, product), out)


def _multiplier(code: Code) -> Any:
    return code.function("f12_multiply_body", 3, f12_multiply)


def _squarer(code: Code) -> Any:
    return code.function("f12_square_body", 2, square)


def f12_power_x(code: Code, out: Any, a: Any) -> None:
    """out = a^x, x the curve's parameter; ``out`` is not ``a``."""
    bits = code.table("bits_of_x", [int(bit) for bit in bin(X)[3:]])
    code.copy(out, a, 384)
    with code.range(0, len(bin(X)) - 3) as k:
        code.call(_squarer(code), out, out)
        with code.when(code.ir.icmp_unsigned("!=", code.load_int(bits, k), code.const(0))):
            code.call(_multiplier(code), out, out, a)


def f12_invert(code: Code, out: Any, a: Any) -> None:
    f = _field(code)
    a0, a1 = _load(f, a)
    norm = _difference(f, _multiply(f, a0, a0), _times_v(f, _multiply(f, a1, a1)))
    inverse = _invert(f, norm)
    zero = [f.zero()] * 3
    _store(f, _multiply(f, a0, inverse), _difference(f, zero, _multiply(f, a1, inverse)), out)


def _invert(f: QuadraticField, a: Six) -> Six:
    times, less = lambda x, y: f.below(f.multiply(x, y), 2), lambda x, y: f.below(f.subtract(x, y), 2)
    t0 = less(times(a[0], a[0]), _times_xi(f, times(a[1], a[2])))
    t1 = less(_times_xi(f, times(a[2], a[2])), times(a[0], a[1]))
    t2 = less(times(a[1], a[1]), times(a[0], a[2]))
    rest = f.below(f.add(times(a[2], t1), times(a[1], t2)), 2)
    norm = f.below(f.add(times(a[0], t0), _times_xi(f, rest)), 2)
    inverse = f.below(f.invert(norm), 2)
    return [times(t, inverse) for t in (t0, t1, t2)]


def f12_map(code: Code, out: Any, a: Any, factors: Any, conjugate: Any) -> None:
    """out[k] = a[k] * factors[k], a[k] conjugated first if ``conjugate``: the Frobenius maps."""
    f = _field(code)
    is_odd = code.ir.trunc(conjugate, ir.IntType(1))
    for k in range(6):
        c = f.load(a, 64 * k)
        c = f.select(is_odd, f.below(f.conjugate(c), 2), c)
        f.store(f.multiply(c, f.load(factors, 64 * k)), out, 64 * k)


def g2_lines(code: Code, points: Any, images: Any, n: Any, scratch: Any, out: Any) -> None:
    """The lines of the Miller loop for ``n`` points of G2 (affine rows) of order r.

    images: two affine rows for each point, pi(Q) and -pi^2(Q). scratch: n times SCRATCH_BYTES.
    out: for each point N_LINES times (slope, slope * x - y) as Fq2.
    """
    step = code.function("g2_line_of_each", 5, _line_of_each)
    with code.range(0, n) as i:
        code.copy(code.add(scratch, code.mul(i, SCRATCH_BYTES)), code.add(points, code.mul(i, 128)), 128)
    kinds = code.table("miller_steps", STEPS)
    with code.range(0, len(STEPS)) as k:
        is_tangent = code.ir.icmp_unsigned("!=", code.load_int(kinds, k), code.const(0))
        others = code.ir.select(is_tangent, scratch, points)
        stride = code.ir.select(is_tangent, code.const(SCRATCH_BYTES), code.const(128))
        code.call(step, scratch, others, stride, n, code.add(out, code.mul(k, LINE_BYTES)))
    for k in (0, 1):
        at = code.add(out, code.const((len(STEPS) + k) * LINE_BYTES))
        code.call(step, scratch, code.add(images, 128 * k), 256, n, at)


def _line_of_each(code: Code, scratch: Any, others: Any, stride: Any, n: Any, out: Any) -> None:
    """current += other for each point; ``others`` is ``scratch`` for the tangents.

    One inversion serves all (Montgomery's trick), so no slope may be infinite: true of points of order r.
    """
    f = _field(code)
    is_tangent = code.ir.icmp_unsigned("==", scratch, others)
    product = code.stack(64)
    f.store(f.one(), product)

    def operands(i: Any) -> tuple[Any, ...]:
        current, other = code.add(scratch, code.mul(i, SCRATCH_BYTES)), code.add(others, code.mul(i, stride))
        return current, f.load(current), f.load(current, 64), f.load(other), f.load(other, 64)

    with code.range(0, n) as i:
        current, x, y, x2, y2 = operands(i)
        run = f.select(is_tangent, f.below(f.double(y), 2), f.below(f.subtract(x2, x), 2))
        before = f.load(product)
        f.store(before, current, BEFORE)
        f.store(run, current, RUN)
        f.store(f.multiply(before, run), product)
    f.store(f.invert(f.load(product)), product)
    with code.range(code.sub(n, 1), -1, -1) as i:
        current, x, y, x2, y2 = operands(i)
        inverse = f.below(f.multiply(f.load(product), f.load(current, BEFORE)), 2)
        f.store(f.multiply(f.load(product), f.load(current, RUN)), product)
        tripled = f.below(f.triple(f.below(f.square(x), 1)), 2)
        rise = f.select(is_tangent, tripled, f.below(f.subtract(y2, y), 2))
        slope = f.below(f.multiply(rise, inverse), 2)
        line = code.add(out, code.mul(i, N_LINES * LINE_BYTES))
        f.store(slope, line)
        f.store(f.subtract(f.multiply(slope, x), y), line, 64)
        x3 = f.below(f.subtract(f.subtract(f.below(f.square(slope), 1), f.below(x, 1)), f.below(x2, 1)), 2)
        y3 = f.subtract(f.multiply(slope, f.subtract(x, x3)), y)
        f.store(x3, current)
        f.store(y3, current, 64)


def miller_loop(code: Code, line_tables: Any, points: Any, n: Any, out: Any) -> None:
    """out = the product of the Miller functions of ``n`` pairs.

    line_tables: n addresses of what ``g2_lines`` wrote; points: n affine rows of G1.
    """
    f = _field(code)
    body = code.function("f12_line", 3, _multiply_line)
    _store(f, [f.one(), f.zero(), f.zero()], [f.zero()] * 3, out)
    kinds = code.table("miller_steps_all", [*STEPS, 0, 0])
    with code.range(0, N_LINES) as k:
        with code.when(code.ir.icmp_unsigned("!=", code.load_int(kinds, k), code.const(0))):
            code.call(_squarer(code), out, out)
        with code.range(0, n) as i:
            line = code.add(code.load_int(line_tables, i), code.mul(k, LINE_BYTES))
            code.call(body, out, line, code.add(points, code.mul(i, 64)))


def _multiply_line(code: Code, value: Any, line: Any, point: Any) -> None:
    """value *= y_p - slope * x_p * w + (slope * x - y) * w^3."""
    f = _field(code)
    even, odd = _load(f, value)
    x, y = f.base.load(point), f.base.load(point, 32)
    first = f.below(f.negate(f.scale(f.load(line), x)), 2)
    third = f.load(line, 64)
    low = [f.below(f.scale(c, y), 2) for c in even]
    high = _multiply_sparse(f, odd, first, third)
    start = Pair(f.base.below(f.base.add(first.c0, y), 2), first.c1)
    cross = _multiply_sparse(f, _sum(f, even, odd), start, third)
    _store(f, _sum(f, low, _times_v(f, high)), _difference(f, _difference(f, cross, low), high), value)
