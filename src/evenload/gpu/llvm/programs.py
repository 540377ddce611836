"""The programs that are compiled together and cached as one object each.

``scalar`` works on single points and on rows of integers and runs everywhere; ``bulk`` holds the kernels that
take nearly all of a proof's time, once for each instruction level.
"""

import functools
from typing import Any

from evenload.errors import ConfigError, UnknownName
from evenload.gpu.llvm import program
from evenload.gpu.llvm.layout import LEVELS
from evenload.gpu.llvm.program import Program, Recipe
from evenload.native import machine

# Kernels with their numbers of arguments: for G1 and G2 each, and for all.
FOLD = {"fold": 6, "combine": 6}
ROWS = {
    "digits": 6, "sort": 6, "nonzero_rows": 4, "sparse_products": 5, "multiply_rows": 4, "powers": 4,
    "lagrange": 5, "combine_rows": 6,
}  # fmt: skip
TOWER = {
    "f12_multiply": 3, "f12_power_x": 2, "f12_invert": 2, "f12_map": 4, "g2_lines": 5, "miller_loop": 4,
}  # fmt: skip
GROUP = {"import_points": 5, "export_points": 3, "accumulate": 15, "bucket_sum": 3}
TRANSFORM = {"scatter": 4, "gather": 4, "multiply_blocks": 4, "pack": 3, "quotient": 5}

_SHARED_SOURCES = (
    "curve", "field", "llvm.field.arith", "llvm.field.extension", "llvm.field.word64", "llvm.ir_builder",
    "llvm.layout", "llvm.programs",
)  # fmt: skip
"""What both programs are made from; ``program.sources`` finds the files."""


def levels_here() -> list[str]:
    """The levels that this processor can run, the fastest first."""
    present = machine.host_features()
    return [name for name, level in LEVELS.items() if level.needs <= present]


def best_level() -> str:
    """The fastest level that this processor has."""
    return levels_here()[0]


def chosen_level(level: str | None) -> str:
    """``level``, or the best. Raises UnknownName, or ConfigError for one that this processor cannot run."""
    if level is None:
        return best_level()
    if level not in LEVELS:
        raise UnknownName("instruction level", level, LEVELS)
    if level not in levels_here():
        missing = ", ".join(sorted(LEVELS[level].needs - machine.host_features()))
        raise ConfigError(
            f"level {level} needs {missing}, which this processor does not have",
            hint=f"use {' or '.join(levels_here())}, or leave it out",
        )
    return level


@functools.cache
def scalar() -> Program:
    """fold and combine for g1 and g2, pairing, digits, sort, sparse products, range checks."""
    return program.load(scalar_recipe())


def scalar_recipe() -> Recipe:
    sources = program.sources(*_SHARED_SOURCES, "llvm.field.fold", "llvm.field.tower", "llvm.witness_kernels")
    signatures = _of_both_groups(FOLD) | ROWS | TOWER
    return Recipe("bn254-scalar", signatures, _scalar_ir, sources, LEVELS["word64"].shipped_for)


def _of_both_groups(signatures: dict[str, int]) -> dict[str, int]:
    return {f"g{degree}_{name}": n for degree in (1, 2) for name, n in signatures.items()}


def _scalar_ir() -> str:
    from llvmlite import ir

    from evenload.gpu.llvm import witness_kernels
    from evenload.gpu.llvm.field import fold, tower
    from evenload.gpu.llvm.ir_builder import add_kernels

    module = ir.Module("bn254-scalar")
    for degree in (1, 2):
        add_kernels(module, FOLD, fold.FoldKernels(degree), f"g{degree}_")
    add_kernels(module, ROWS, witness_kernels)
    add_kernels(module, TOWER, tower)
    return str(module)


@functools.cache
def bulk(level: str | None = None) -> Program:
    """import_points, accumulate and bucket_sum for g1 and g2, and the transforms, at ``level`` (default: the
    best). Raises as ``chosen_level``."""
    return program.load(bulk_recipe(chosen_level(level)))


def bulk_recipe(level: str) -> Recipe:
    sources = program.sources(
        *_SHARED_SOURCES, "llvm.buckets", "llvm.field.fma", "llvm.field.limbs52", "llvm.transform"
    )
    build, known = functools.partial(_bulk_ir, level), LEVELS[level]
    signatures = _of_both_groups(GROUP) | TRANSFORM
    return Recipe(f"bn254-{level}", signatures, build, sources, known.shipped_for, known.beyond)


def level_type(name: str) -> Any:
    """The class that emits the arithmetic of an instruction level."""
    from evenload.gpu.llvm.field.fma import Fma52x2, Fma52x4, Fma52x8
    from evenload.gpu.llvm.field.limbs52 import Ifma52
    from evenload.gpu.llvm.field.word64 import Word64

    return {kind.name: kind for kind in (Ifma52, Fma52x8, Fma52x4, Word64, Fma52x2)}[name]


def _bulk_ir(level: str) -> str:
    from llvmlite import ir

    from evenload.gpu.llvm.buckets import GroupKernels
    from evenload.gpu.llvm.ir_builder import add_kernels
    from evenload.gpu.llvm.transform import TransformKernels

    module, kind = ir.Module(f"bn254-{level}"), level_type(level)
    for degree in (1, 2):
        add_kernels(module, GROUP, GroupKernels(kind, degree), f"g{degree}_", kind.rounds_to_zero)
    add_kernels(module, TRANSFORM, TransformKernels(kind), rounds_to_zero=kind.rounds_to_zero)
    return str(module)
