"""Places that stay under dropout, decided by a key: the kernel of ``clients.step.dropout.kept_of``.

    kept(keys, out, clients, n, salt, threshold)

keys int64 [clients]; out [clients, n] float32 or float64: 1 where the upper 53 bits of a place's word are at
least ``threshold``, else 0. A word is what SplitMix64 makes of key, salt and place (Steele, Lea and Flood,
Fast splittable pseudorandom number generators, 2014), a vector of places at a time.
"""

import functools
from typing import Any

from evenload.gpu.llvm import program
from evenload.gpu.llvm.program import Program
from evenload.native import machine

GOLDEN, A, B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@functools.cache
def kept_program(n_bytes: int) -> Program:
    """The kernel for results of ``n_bytes`` a number. Raises MissingExtra."""
    lanes = 8 if "avx512dq" in machine.host_features() else 4
    sources = ("llvm.keyed_places", "llvm.ir_builder")
    return program.made_for(
        "kept", (lanes, n_bytes), {"kept": 6}, lambda: _KeptKernel(lanes, n_bytes), sources
    )


class _KeptKernel:
    """The kernel's body, as ``program.made_for`` takes it."""

    def __init__(self, lanes: int, n_bytes: int):
        self.lanes, self.n_bytes = lanes, n_bytes

    def kept(self, code: Any, keys: Any, out: Any, k: Any, n: Any, salt: Any, threshold: Any) -> None:
        from llvmlite import ir

        from evenload.gpu.llvm.ir_builder import I64

        lanes, n_bytes = self.lanes, self.n_bytes
        number = ir.FloatType() if n_bytes == 4 else ir.DoubleType()
        many = _Words(ir.VectorType(I64, lanes), ir.VectorType(number, lanes), lanes)
        single = _Words(I64, number, 0)
        row, least = code.variable(out), many.spread(code, threshold)
        whole = code.mul(code.ir.udiv(n, code.const(lanes)), lanes)
        with code.range(0, k) as client:
            start = single.mixed(code.ir, code.ir.xor(code.load_int(keys, client), salt))
            places = ir.Constant(many.kind, [_signed(i * GOLDEN) for i in range(lanes)])
            words = code.variable(code.ir.add(many.spread(code, start), places), many.kind)
            with code.range(0, whole, lanes) as place:
                value = many.chosen(code.ir, words.get(), least)
                code.store(value, code.add(row.get(), code.mul(place, n_bytes)), align=n_bytes)
                words.add(many.constant(lanes * GOLDEN))
            with code.range(whole, n) as place:
                word = code.add(start, code.mul(place, single.constant(GOLDEN)))
                value = single.chosen(code.ir, word, threshold)
                code.store(value, code.add(row.get(), code.mul(place, n_bytes)), align=n_bytes)
            row.add(code.mul(n, n_bytes))


class _Words:
    """Operations on a vector of 64-bit words, or on one (``lanes`` 0); results are of type ``result``."""

    def __init__(self, kind: Any, result: Any, lanes: int):
        self.kind, self.result, self.lanes = kind, result, lanes

    def constant(self, value: int) -> Any:
        return self._of(self.kind, _signed(value))

    def _of(self, kind: Any, value: float) -> Any:
        from llvmlite import ir

        return ir.Constant(kind, [value] * self.lanes if self.lanes else value)

    def spread(self, code: Any, value: Any) -> Any:
        """One word in every lane."""
        return code.spread(value, self.kind)

    def mixed(self, builder: Any, words: Any) -> Any:
        """SplitMix64's output for a state before its step."""
        z = builder.add(words, self.constant(GOLDEN))
        for shift, factor in ((30, A), (27, B)):
            z = builder.mul(self._folded(builder, z, shift), self.constant(factor))
        return self._folded(builder, z, 31)

    def _folded(self, builder: Any, z: Any, shift: int) -> Any:
        return builder.xor(z, builder.lshr(z, self.constant(shift)))

    def chosen(self, builder: Any, words: Any, least: Any) -> Any:
        """1 where the upper 53 bits of the mixed words are at least ``least``, else 0."""
        upper = builder.lshr(self.mixed(builder, words), self.constant(11))
        is_kept = builder.icmp_unsigned(">=", upper, least)
        return builder.select(is_kept, self._of(self.result, 1.0), self._of(self.result, 0.0))


def _signed(value: int) -> int:
    """The 64 bits of ``value`` as a signed number."""
    value &= 2**64 - 1
    return value - 2**64 if value >> 63 else value
