"""Places that stay under dropout, decided by a key: the kernel of ``clients.step.dropout.kept_of``.

    kept(keys, out, clients, n, salt, threshold)

keys int64 [clients]; out [clients, n] float32 or float64: 1 where the upper 53 bits of a place's word are at
least ``threshold``, else 0. A word is what SplitMix64 makes of key, salt and place (Steele, Lea and Flood,
Fast splittable pseudorandom number generators, 2014), a vector of places at a time.
"""

import functools
from collections.abc import Callable
from typing import Any

from evenload.gpu.llvm import program
from evenload.gpu.llvm.program import Program, Recipe
from evenload.native import machine

__all__ = ["kept_program"]

SIGNATURES = {"kept": 6}
GOLDEN, A, B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@functools.cache
def kept_program(n_bytes: int) -> Program:
    """The kernel for results of ``n_bytes`` a number. Raises MissingExtra."""
    lanes = 8 if "avx512dq" in machine.host_features() else 4
    build = functools.partial(kept_ir, lanes, n_bytes)
    sources = program.sources("llvm.keyed_places", "llvm.ir_builder")
    return program.load(Recipe(f"kept-{lanes}-{n_bytes}", SIGNATURES, build, sources))


def kept_ir(lanes: int, n_bytes: int) -> str:
    """The LLVM IR of the kernel."""
    from llvmlite import ir

    from evenload.gpu.llvm.ir_builder import I64, add_kernel

    number = ir.FloatType() if n_bytes == 4 else ir.DoubleType()
    wide = ir.VectorType(I64, lanes)

    def emit(code: Any, keys: Any, out: Any, k: Any, n: Any, salt: Any, threshold: Any) -> None:
        def spread(value: Any) -> Any:
            nothing = ir.Constant(wide, ir.Undefined)
            one = code.ir.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
            order = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
            return code.ir.shuffle_vector(one, nothing, order)

        def chosen(words: Any, kind: Any, like: Callable[[int], Any], least: Any) -> Any:
            upper = code.ir.lshr(_mix(code.ir, words, like), like(11))
            ones, zeros = (
                ir.Constant(kind, [v] * lanes) if kind is not number else ir.Constant(kind, v)
                for v in (1.0, 0.0)
            )
            return code.ir.select(code.ir.icmp_unsigned(">=", upper, least), ones, zeros)

        many, single = _constants(wide, lanes), _constants(I64, 0)
        row = code.variable(out)
        with code.range(0, k) as client:
            start = _mix(code.ir, code.ir.xor(code.load_int(keys, client), salt), single)
            first = code.ir.add(spread(start), ir.Constant(wide, [_signed(i * GOLDEN) for i in range(lanes)]))
            words, least = code.variable(first, wide), spread(threshold)
            whole = code.mul(code.ir.udiv(n, code.const(lanes)), lanes)
            with code.range(0, whole, lanes) as place:
                value = chosen(words.get(), ir.VectorType(number, lanes), many, least)
                code.store(value, code.add(row.get(), code.mul(place, n_bytes)), align=n_bytes)
                words.add(many(lanes * GOLDEN))
            with code.range(whole, n) as place:
                word = code.add(start, code.mul(place, single(GOLDEN)))
                value = chosen(word, number, single, threshold)
                code.store(value, code.add(row.get(), code.mul(place, n_bytes)), align=n_bytes)
            row.add(code.mul(n, n_bytes))

    module = ir.Module("kept")
    add_kernel(module, "kept", SIGNATURES["kept"], emit)
    return str(module)


def _mix(builder: Any, words: Any, like: Callable[[int], Any]) -> Any:
    """SplitMix64's output for a state before its step."""
    z = builder.add(words, like(GOLDEN))
    for shift, factor in ((30, A), (27, B)):
        z = builder.mul(builder.xor(z, builder.lshr(z, like(shift))), like(factor))
    return builder.xor(z, builder.lshr(z, like(31)))


def _constants(kind: Any, lanes: int) -> Callable[[int], Any]:
    from llvmlite import ir

    def constant(value: int) -> Any:
        value = _signed(value)
        return ir.Constant(kind, [value] * lanes) if lanes else ir.Constant(kind, value)

    return constant


def _signed(value: int) -> int:
    """The same 64 bits as a signed number."""
    value &= 2**64 - 1
    return value - 2**64 if value >> 63 else value
