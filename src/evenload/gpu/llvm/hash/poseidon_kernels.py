"""Poseidon of two field elements over Fr, for the levels of Merkle trees: eight hashes at once but at word64.

    pairs(source, target, n, params)     rows of two elements -> one element each
    fold(rows, n, levels, params)        n elements -> n / 2^levels, in place
Elements are rows of 32 bytes, little-endian, below r and not in Montgomery form. ``params`` is not used.
"""

import functools
from collections.abc import Sequence
from typing import Any

from evenload.gpu.field import FR
from evenload.gpu.llvm import program, programs
from evenload.gpu.llvm.program import Program, Recipe
from evenload.gpu.poseidon import FULL_ROUNDS, parameters

SIGNATURES = {"pairs": 4, "fold": 4}
WIDTH = 3


@functools.cache
def poseidon_program(level: str | None = None) -> Program:
    """The kernels at an instruction level (default: the best).

    Raises MissingExtra, UnknownName, and ConfigError for a level that this processor cannot run.
    """
    return program.load(poseidon_recipe(programs.chosen_level(level)))


def poseidon_recipe(level: str) -> Recipe:
    sources = program.sources(
        "field", "poseidon", "llvm.field.arith", "llvm.field.fma", "llvm.field.limbs52", "llvm.field.word64",
        "llvm.hash.poseidon_kernels", "llvm.ir_builder", "llvm.programs",
    )  # fmt: skip
    build, known = functools.partial(poseidon_ir, level), programs.LEVELS[level]
    return Recipe(f"hash-poseidon-{level}", SIGNATURES, build, sources, known.shipped_for, known.beyond)


def poseidon_ir(level: str) -> str:
    """The LLVM IR of the kernels."""
    emit = _PoseidonKernels(level)
    return program.ir_text("hash-poseidon", SIGNATURES, emit, emit.level_type.rounds_to_zero)


class _PoseidonKernels:
    """Bodies of the kernels at one level; each method is one of SIGNATURES."""

    def __init__(self, level: str):
        self.level_type = programs.level_type(level)
        self.chosen = parameters(WIDTH)

    def pairs(self, code: Any, source: Any, target: Any, n: Any, params: Any) -> None:
        body = code.function("poseidon_group", 3, self._group)
        lanes = self.level_type.lanes
        with code.range(0, n, lanes) as i:
            # Lanes beyond the last row repeat it: they read and write what is there.
            left = code.min(code.sub(n, i), lanes)
            at_in, at_out = code.add(source, code.mul(i, 64)), code.add(target, code.mul(i, 32))
            code.call(body, at_in, at_out, code.sub(left, 1))

    def fold(self, code: Any, rows: Any, n: Any, levels: Any, params: Any) -> None:
        left = code.variable(n)
        with code.range(0, levels):
            left.set(code.lshr(left.get(), 1))
            self.pairs(code, rows, rows, left.get(), params)

    def _group(self, code: Any, source: Any, target: Any, last: Any) -> None:
        from evenload.gpu.llvm.field.arith import PrimeField

        f = PrimeField(code, self.level_type, FR)
        rows = [code.min(lane, last) for lane in range(f.level.lanes)]
        sources = [code.add(source, code.mul(row, 64)) for row in rows]
        to_montgomery = f.raw(FR.montgomery(1, 2 * f.level.radix_bits))
        pair = [f.multiply(value, to_montgomery) for value in f.load_rows(sources, 2)]
        digest = self._permute(f, [f.zero(), *pair])
        targets = [code.add(target, code.mul(row, 32)) for row in rows]
        f.store_rows([f.multiply(digest, f.raw(1))], targets)

    def _permute(self, f: Any, state: Sequence[Any]) -> Any:
        from evenload.gpu.llvm.field.arith import Registers

        kept = Registers(f, list(state))
        half, partial = FULL_ROUNDS // 2, self.chosen.partial_rounds
        for start, stop, boxes in (
            (0, half, 3),
            (half, half + partial, 1),
            (half + partial, 2 * half + partial, 3),
        ):
            with f.code.range(start, stop) as number:
                kept.set(self._round(f, kept.get(), number, boxes))
        return kept.get()[0]

    def _round(self, f: Any, state: Sequence[Any], number: Any, boxes: int) -> list[Any]:
        state = [f.add(value, self._constant(f, number, k)) for k, value in enumerate(state)]
        state = [
            f.below(self._fifth_power(f, value), 2) if k < boxes else f.below(value, 3)
            for k, value in enumerate(state)
        ]
        rows = [[f.constant(entry) for entry in row] for row in self.chosen.matrix]
        return [f.dot(*((m, value, 1) for m, value in zip(row, state, strict=True))) for row in rows]

    def _fifth_power(self, f: Any, value: Any) -> Any:
        value = f.tidy(value)
        return f.multiply(f.square(f.square(value)), value)

    def _constant(self, f: Any, number: Any, k: int) -> Any:
        """Constant ``k`` of a round, from a table of limbs."""
        from llvmlite import ir

        from evenload.gpu.llvm.field.arith import Element
        from evenload.gpu.llvm.ir_builder import I64

        code, level = f.code, f.level
        bits = level.radix_bits // level.n_limbs if level.n_limbs > 1 else 64
        n = level.n_limbs if level.n_limbs > 1 else 4
        values = [FR.montgomery(c, level.radix_bits) for row in self.chosen.constants for c in row]
        table = code.table(
            "poseidon_constants", [v >> bits * j & (1 << bits) - 1 for v in values for j in range(n)]
        )
        at = code.add(table, code.mul(number, 8 * n * WIDTH))
        if level.n_limbs == 1:
            return f.load(at, 8 * n * k, bound=1)
        kind = ir.VectorType(I64, level.lanes)
        return Element([code.spread(code.load(at, I64, 8 * (n * k + j)), kind) for j in range(n)], 1)
