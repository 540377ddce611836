"""Kernels on rows of Fr at level word64: the sparse products A*w and B*w, and powers."""

from typing import Any

from llvmlite import ir

from evenload.gpu.field import FR
from evenload.gpu.llvm.field.arith import Element, PrimeField
from evenload.gpu.llvm.field.word64 import Word64
from evenload.gpu.llvm.ir_builder import I32, I64, Code, add_kernel

__all__ = ["COEFFICIENT_BYTES", "SIGNATURES", "add_witness_kernels"]

SIGNATURES = {
    "sparse_products": 5,
    "multiply_rows": 4,
    "powers": 4,
}
COEFFICIENT_BYTES = 44
"""A record of section 4 of a .zkey: u32 matrix, u32 row, u32 wire, 32 bytes of value."""
I256 = ir.IntType(256)


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


def add_witness_kernels(module: ir.Module) -> None:
    """Add every kernel of SIGNATURES."""
    bodies = {
        "sparse_products": sparse_products,
        "multiply_rows": multiply_rows,
        "powers": powers,
    }
    for name, n_arguments in SIGNATURES.items():
        add_kernel(module, name, n_arguments, bodies[name])
