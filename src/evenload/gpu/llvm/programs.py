"""The programs that are compiled together and cached as one object each.

``scalar`` works on single points and on rows of integers and runs everywhere; ``bulk`` holds the kernels that
take nearly all of a proof's time, once for each instruction level.
"""

import functools

from evenload.errors import ConfigError, UnknownName
from evenload.gpu.llvm import program
from evenload.gpu.llvm.layout import LEVELS
from evenload.gpu.llvm.program import Program, Recipe
from evenload.native import machine

__all__ = [
    "LEVELS",
    "SHIPPED_FOR",
    "best_level",
    "bulk",
    "bulk_recipe",
    "chosen_level",
    "level_type",
    "levels_here",
    "scalar",
    "scalar_recipe",
]

# Baselines and further features of the objects that come with the package.
SHIPPED_FOR = {
    "word64": (("x86-64-v3", "armv8-a"), frozenset[str]()),
    "ifma52": (("x86-64-v4",), frozenset({"avx512ifma"})),
    "fma52x8": (("x86-64-v4",), frozenset[str]()),
    "fma52x4": (("x86-64-v3",), frozenset[str]()),
    "fma52x2": ((), frozenset[str]()),
}

_AVX512 = frozenset({"avx512f", "avx512dq", "avx512vl"})
_NEEDED = {
    "ifma52": _AVX512 | {"avx512ifma"},
    "fma52x8": _AVX512,
    "fma52x4": frozenset({"avx2", "fma"}),
    "word64": frozenset[str](),
    "fma52x2": frozenset({"neon"}),
}
"""What a processor must have for each level, the fastest first; which of the last two is faster on arm64 was
not measured."""

_SHARED_SOURCES = (
    "curve", "field", "llvm.field.arith", "llvm.field.extension", "llvm.field.word64", "llvm.ir_builder",
    "llvm.layout", "llvm.loop_registers", "llvm.programs",
)  # fmt: skip
"""What both programs are made from; ``program.sources`` finds the files."""


def levels_here() -> list[str]:
    """The levels that this processor can run, the fastest first."""
    present = machine.host_features()
    return [level for level, needed in _NEEDED.items() if needed <= present]


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
        missing = ", ".join(sorted(_NEEDED[level] - machine.host_features()))
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
    signatures = {f"g{d}_{name}": n for d in (1, 2) for name, n in {"fold": 6, "combine": 6}.items()}
    signatures |= {"digits": 6, "sort": 6, "nonzero_rows": 4}
    signatures |= {"sparse_products": 5, "multiply_rows": 4, "powers": 4}
    signatures |= {"lagrange": 5, "combine_rows": 6}
    signatures |= {"f12_multiply": 3, "f12_power_x": 2, "f12_invert": 2, "f12_map": 4}
    signatures |= {"g2_lines": 5, "miller_loop": 4}
    sources = program.sources(
        *_SHARED_SOURCES, "llvm.field.digits", "llvm.field.fold", "llvm.field.tower",
        "llvm.setup_kernels", "llvm.witness_kernels",
    )  # fmt: skip
    return Recipe("bn254-scalar", signatures, _scalar_ir, sources, SHIPPED_FOR["word64"][0])


def _scalar_ir() -> str:
    from llvmlite import ir

    from evenload.gpu.llvm import setup_kernels, witness_kernels
    from evenload.gpu.llvm.field import digits, fold, tower

    module = ir.Module("bn254-scalar")
    for degree in (1, 2):
        fold.add_fold_kernels(module, degree)
    digits.add_digit_kernels(module)
    witness_kernels.add_witness_kernels(module)
    setup_kernels.add_setup_kernels(module)
    tower.add_tower_kernels(module)
    return str(module)


@functools.cache
def bulk(level: str | None = None) -> Program:
    """import_points, accumulate and bucket_sum for g1 and g2, and the transforms, at ``level`` (default: the
    best). Raises as ``chosen_level``."""
    return program.load(bulk_recipe(chosen_level(level)))


def bulk_recipe(level: str) -> Recipe:
    group = {"import_points": 6, "export_points": 3, "accumulate": 15, "bucket_sum": 3}
    signatures = {f"g{degree}_{name}": n for degree in (1, 2) for name, n in group.items()}
    signatures |= {"scatter": 4, "gather": 4, "multiply_blocks": 4, "pack": 3, "unpack": 3, "quotient": 5}
    sources = program.sources(
        *_SHARED_SOURCES, "llvm.buckets", "llvm.field.fma", "llvm.field.ifma", "llvm.field.limbs52",
        "llvm.transform",
    )  # fmt: skip
    return Recipe(
        f"bn254-{level}", signatures, functools.partial(_bulk_ir, level), sources, *SHIPPED_FOR[level]
    )


def level_type(name: str) -> type:
    """The class that emits the arithmetic of an instruction level."""
    from evenload.gpu.llvm.field.fma import Fma52x2, Fma52x4, Fma52x8
    from evenload.gpu.llvm.field.ifma import Ifma52
    from evenload.gpu.llvm.field.word64 import Word64

    return {kind.name: kind for kind in (Ifma52, Fma52x8, Fma52x4, Word64, Fma52x2)}[name]


def _bulk_ir(level: str) -> str:
    from llvmlite import ir

    from evenload.gpu.llvm import buckets, transform

    module = ir.Module(f"bn254-{level}")
    for degree in (1, 2):
        buckets.add_group_kernels(module, level_type(level), degree)
    transform.add_transform_kernels(module, level_type(level))
    return str(module)
