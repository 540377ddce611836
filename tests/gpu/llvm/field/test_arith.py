"""Field kernels against Python integers, at every instruction level."""

import ctypes
import functools
import mmap
import platform
import random

import pytest

from evenload.errors import ConfigError
from evenload.gpu.field import FQ, FR
from evenload.gpu.llvm import program, programs, rows
from evenload.gpu.llvm.layout import LEVELS
from evenload.native import machine

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
KERNELS = {
    "multiply": 4,
    "square": 4,
    "invert": 4,
    "sums": 4,
    "long": 4,
    "extension": 4,
    "extension_invert": 4,
}


@pytest.fixture(params=list(LEVELS))
def level(request):
    if request.param not in programs.levels_here():
        pytest.skip(f"this processor cannot run {request.param}")
    return LEVELS[request.param]


def arithmetic_ir(level_name, prime):
    """Kernels of the form (out, a, b, n) that apply one operation to n blocks."""
    from llvmlite import ir

    from evenload.gpu.llvm.field.arith import PrimeField
    from evenload.gpu.llvm.field.extension import QuadraticField
    from evenload.gpu.llvm.ir_builder import add_kernel

    module, level_type = ir.Module("arithmetic"), programs.level_type(level_name)

    def each(field_type, operation):
        def body(code, out, a, b, n):
            f = field_type(code, level_type, prime)
            with code.range(0, n) as k:
                at = code.mul(k, f.block_bytes)
                x, y = f.load(code.add(a, at)), f.load(code.add(b, at))
                f.store(f.canonical(operation(f, x, y)), code.add(out, at), bound=1)

        return body

    def sums(f, x, y):  # ((x - y)*2 - 3y) * (x + y) - x, bounds growing as far as they may
        left = f.subtract(f.double(f.subtract(x, y)), f.triple(y))
        return f.subtract(f.multiply_inline(left, f.add(x, y)), x)

    def long(f, x, y):  # without a word about reductions: they are put in where they are needed
        total = x
        for _ in range(39):
            total = f.add(total, x)
        return total

    def add(name, body):
        add_kernel(module, name, 4, body, level_type.rounds_to_zero)

    add("multiply", each(PrimeField, lambda f, x, y: f.multiply_inline(x, y)))
    add("square", each(PrimeField, lambda f, x, y: f.square(x)))
    add("invert", each(PrimeField, lambda f, x, y: f.invert(x)))
    add("sums", each(PrimeField, sums))
    add("long", each(PrimeField, long))
    add("extension", each(QuadraticField, lambda f, x, y: f.multiply_inline(x, y)))
    add("extension_invert", each(QuadraticField, lambda f, x, y: f.invert(x)))
    return str(module)


@functools.cache
def kernels(level_name, prime):
    name = f"test-arithmetic-{level_name}-{prime.name}"
    return program.load(
        program.Recipe(name, KERNELS, lambda: arithmetic_ir(level_name, prime), (__file__, *_sources()))
    )


def _sources():
    files = ("arith", "extension", "fma", "limbs52", "word64")
    return program.sources("field", "curve", "llvm.ir_builder", *(f"llvm.field.{name}" for name in files))


def to_blocks(values, level):
    limb_bits = 52 if level.lanes == 8 else 64
    blocks = rows.empty(len(values) // level.lanes, level.block_bytes)
    shaped = blocks.reshape(len(blocks), -1, level.lanes)
    for k in range(shaped.shape[1]):
        for i, value in enumerate(values):
            shaped[i // level.lanes, k, i % level.lanes] = value >> limb_bits * k & (1 << limb_bits) - 1
    return blocks


def from_blocks(blocks, level):
    limb_bits = 52 if level.lanes == 8 else 64
    shaped = blocks.reshape(len(blocks), -1, level.lanes)
    n = len(blocks) * level.lanes
    limbs = range(shaped.shape[1])
    return [
        sum(int(shaped[i // level.lanes, k, i % level.lanes]) << limb_bits * k for k in limbs)
        for i in range(n)
    ]


def operands(prime, n=64):
    """Any values below 2p, extremes included."""
    p, draw = prime.modulus, random.Random(7)
    edges = [0, 1, 2, p - 1, p, p + 1, 2 * p - 1, 1 << 52, (1 << 52) - 1, 1 << 208, (1 << 253) - 1]
    left = [a for a in edges for _ in edges] + [draw.randrange(2 * p) for _ in range(n)]
    right = edges * len(edges) + [draw.randrange(2 * p) for _ in range(n)]
    spare = -len(left) % 16
    return left + left[:spare], right + right[:spare]


def apply(name, level, prime, left, right, per_block=1):
    a, b = to_blocks(left, level), to_blocks(right, level)
    out = rows.zeros(len(a), level.block_bytes)
    getattr(kernels(level.name, prime), name)(*map(rows.address, (out, a, b)), len(a) // per_block)
    return from_blocks(out, level)


@pytest.mark.parametrize("prime", [FQ, FR], ids=lambda p: p.name)
def test_prime_field(level, prime):
    p, r_inverse = prime.modulus, pow(2, -level.radix_bits, prime.modulus)
    left, right = operands(prime)
    assert apply("multiply", level, prime, left, right) == [
        x * y * r_inverse % p for x, y in zip(left, right, strict=True)
    ]
    assert apply("square", level, prime, left, right) == [x * x * r_inverse % p for x in left]
    pairs = list(zip(left, right, strict=True))
    expected = [((2 * (x - y) - 3 * y) * (x + y) * r_inverse - x) % p for x, y in pairs]
    assert apply("sums", level, prime, left, right) == expected
    assert apply("long", level, prime, left, right) == [40 * x % p for x in left]


def test_inversion_and_that_zero_gives_zero(level):
    p, radix = FQ.modulus, pow(2, level.radix_bits, FQ.modulus)
    left = [0, 1, p - 1, p, radix, 2 * p - 1, 3, 5]
    got = apply("invert", level, FQ, left, left)
    assert got == [pow(x, -1, p) * radix * radix % p if x % p else 0 for x in left]


def test_quadratic_extension(level):
    p, r_inverse, lanes = FQ.modulus, pow(2, -level.radix_bits, FQ.modulus), level.lanes
    left, right = operands(FQ)
    product = apply("extension", level, FQ, left, right, per_block=2)
    inverse = apply("extension_invert", level, FQ, left, right, per_block=2)
    radix = pow(2, level.radix_bits, p)
    for block in range(0, len(left), 2 * lanes):
        for lane in range(lanes):
            i, j = block + lane, block + lanes + lane
            a, b, c, d = left[i], left[j], right[i], right[j]
            assert product[i] == (a * c - b * d) * r_inverse % p
            assert product[j] == (a * d + b * c) * r_inverse % p
            norm = (a * a + b * b) % p
            unit = pow(norm, -1, p) * radix * radix % p if norm else 0
            assert (inverse[i], inverse[j]) == (a * unit % p, -b * unit % p)


def test_products_compile_for_arm64_as_vectors():
    """What cannot run here is at least accepted by the code generator of that processor."""
    from llvmlite import binding

    try:
        machine.initialize_all_targets()
        target = machine.machine_for("armv8-a")
    except RuntimeError as error:
        pytest.skip(f"this llvmlite has no AArch64 back end: {error}")
    module = binding.parse_assembly(arithmetic_ir("fma52x2", FQ))
    module.triple, module.data_layout = target.triple, str(target.target_data)
    module.verify()
    text = target.emit_assembly(module)
    assert text.count(".2d, v") > 200  # fused multiply-adds and sums on both doubles of a register
    assert "fmla" in text
    assert "FPCR" in text.upper()  # where rounding is chosen


def test_a_level_of_another_processor_is_refused(monkeypatch):
    monkeypatch.setattr(machine, "host_features", lambda: frozenset({"avx2", "fma"}))
    assert programs.best_level() == "fma52x4"
    with pytest.raises(ConfigError, match=r"fma52x8 needs avx512dq(?s:.*)use fma52x4 or word64"):
        programs.chosen_level("fma52x8")
    with pytest.raises(ConfigError, match="needs neon"):
        programs.chosen_level("fma52x2")


def test_products_are_not_emitted_where_sums_would_be_rounded_to_nearest():
    from llvmlite import ir

    from evenload.gpu.llvm.ir_builder import add_kernel

    with pytest.raises(AssertionError, match="towards zero"):
        add_kernel(ir.Module("wrong"), "f", 0, lambda code: programs.level_type("fma52x4")(code, FQ.modulus))


@pytest.fixture
def mxcsr():
    """(read, write) of the register of the vector unit alone, as a library with intrinsics sets it."""
    if platform.machine() != "x86_64":
        pytest.skip("another processor's register")
    with mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(bytes.fromhex("0fae17c3 0fae1fc3"))  # ldmxcsr [rdi]; ret; stmxcsr [rdi]; ret
        first = ctypes.c_char.from_buffer(page)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        load, store = (kind(ctypes.addressof(first) + at) for at in (0, 4))

        def read():
            value = ctypes.c_uint32()
            store(ctypes.addressof(value))
            return value.value

        before = read()
        yield read, lambda value: load(ctypes.addressof(ctypes.c_uint32(value)))
        load(ctypes.addressof(ctypes.c_uint32(before)))
        del first


@pytest.mark.parametrize("rounding", range(4))
def test_the_callers_modes_change_nothing_and_are_as_before(level, mxcsr, rounding):
    """Rounding and flushing of denormals, set in the vector unit alone; flags may be anybody's."""
    read, write = mxcsr
    left, right = operands(FQ)
    expected = apply("multiply", level, FQ, left, right)
    a, b = to_blocks(left, level), to_blocks(right, level)
    out = rows.zeros(len(a), level.block_bytes)
    multiply, where = kernels(level.name, FQ).multiply, [*map(rows.address, (out, a, b)), len(a)]
    for mode in (0x1F80, 0x9FC0):  # usual; flushing
        wanted = mode | rounding << 13
        before = read()
        write(wanted)
        multiply(*where)
        after = read()
        write(before)
        assert from_blocks(out, level) == expected
        assert after & ~0x3F == wanted & ~0x3F
