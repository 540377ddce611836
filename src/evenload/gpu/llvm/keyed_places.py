"""Places that stay under dropout, decided by a key: the kernel of ``clients.step.dropout.kept_of``.

    kept(keys, out, clients, n, salt, threshold)

keys int64 [clients]; out [clients, n] float32 or float64: 1 where the upper 53 bits of a place's word are at
least ``threshold``, else 0. A word is what SplitMix64 makes of key, salt and place (Steele, Lea and Flood,
Fast splittable pseudorandom number generators, 2014), a vector of places at a time.
"""

import functools
from types import SimpleNamespace
from typing import Any

from evenload.gpu.llvm import program
from evenload.gpu.llvm.program import Program
from evenload.native import machine

GOLDEN, A, B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@functools.cache
def kept_program(n_bytes: int) -> Program:
    """The kernel for results of ``n_bytes`` a number. Raises MissingExtra."""
    lanes = 8 if "avx512dq" in machine.host_features() else 4
    sources = ("llvm.keyed_places", "llvm.field.floats", "llvm.ir_builder")
    bodies = SimpleNamespace(kept=functools.partial(_kept, lanes, n_bytes))
    return program.made_for("kept", (lanes, n_bytes), {"kept": 6}, lambda: bodies, sources)


def _kept(lanes: int, n_bytes: int, code: Any, *arguments: Any) -> None:
    from llvmlite import ir

    from evenload.gpu.llvm.field.floats import Floats
    from evenload.gpu.llvm.ir_builder import I64

    keys, out, k, n, salt, threshold = arguments
    f, builder, kind = Floats(code, lanes, n_bytes), code.ir, ir.VectorType(I64, lanes)

    def constant(*values: int) -> Any:
        words = [value % 2**64 for value in values]
        return ir.Constant(kind, words if len(words) == lanes else words * lanes)

    def mixed(words: Any) -> Any:
        """SplitMix64's output for a state before its step."""
        z = builder.add(words, constant(GOLDEN))
        for shift, factor in ((30, A), (27, B), (31, 1)):
            z = builder.mul(builder.xor(z, builder.lshr(z, constant(shift))), constant(factor))
        return z

    row, least = code.variable(out), code.spread(threshold, kind)
    whole = code.mul(builder.udiv(n, code.const(lanes)), lanes)
    with code.range(0, k) as client:
        start = mixed(code.spread(builder.xor(code.load_int(keys, client), salt), kind))
        places = constant(*(i * GOLDEN for i in range(lanes)))
        words = code.variable(builder.add(start, places), kind)
        for first, last in ((0, whole), (whole, n)):
            with code.range(first, last, lanes) as place:
                is_kept = builder.icmp_unsigned(">=", builder.lshr(mixed(words.get()), constant(11)), least)
                value, at = builder.select(is_kept, f.ones(), f.zero()), code.mul(place, n_bytes)
                mask = f.first(code.sub(n, place)) if last is n else None
                f.store(value, code.add(row.get(), at), mask=mask)
                words.add(constant(lanes * GOLDEN))
        row.add(code.mul(n, n_bytes))
