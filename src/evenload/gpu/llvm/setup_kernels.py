"""Kernels of a set-up on rows of Fr, level word64: Lagrange polynomials at a point, and linear
combinations."""

from typing import Any

from llvmlite import ir

from evenload.gpu.field import FR
from evenload.gpu.llvm.field.arith import PrimeField
from evenload.gpu.llvm.field.word64 import Word64
from evenload.gpu.llvm.ir_builder import Code, add_kernel
from evenload.gpu.llvm.loop_registers import Registers

__all__ = ["SIGNATURES", "add_setup_kernels"]

SIGNATURES = {"lagrange": 5, "combine_rows": 6}


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


def add_setup_kernels(module: ir.Module) -> None:
    """Add every kernel of SIGNATURES."""
    for name, body in (("lagrange", lagrange), ("combine_rows", combine_rows)):
        add_kernel(module, name, SIGNATURES[name], body)
