"""Sizes that the callers of kernels need to know. Loads nothing, so that asking for them does not load
llvmlite."""

from dataclasses import dataclass

from evenload.gpu.field import X

__all__ = [
    "LEVELS",
    "N_LINES",
    "PAIR_SLACK",
    "SCRATCH_BYTES",
    "STEPS",
    "Level",
    "scratch_bytes",
    "shared_inversion",
]


@dataclass(frozen=True, slots=True)
class Level:
    """An instruction level: ``lanes`` elements of ``radix_bits`` (Montgomery's R) in a block of
    ``block_bytes``."""

    name: str
    lanes: int
    block_bytes: int
    radix_bits: int


LEVELS = {
    "ifma52": Level("ifma52", 8, 320, 260),
    "fma52x8": Level("fma52x8", 8, 320, 260),
    "fma52x4": Level("fma52x4", 8, 320, 260),
    "word64": Level("word64", 1, 32, 256),
    "fma52x2": Level("fma52x2", 8, 320, 260),
}

PAIR_SLACK = 64
"""Elements that a pair array needs beyond its pairs: the last block is filled up, and prefetches look
ahead."""

STEPS = [step for bit in bin(6 * X + 2)[3:] for step in ((1, 0) if bit == "1" else (1,))]
"""The Miller loop. 1: square, then a tangent's line; 0: a chord's line."""

N_LINES = len(STEPS) + 2
"""Two chords for the Frobenius images follow the steps."""

SCRATCH_BYTES = 256
"""For the lines of a point: where it is (x, y), the product before it, its slope's denominator."""


def shared_inversion(level: str, degree: int) -> int:
    """Blocks of affine additions that share one inversion: as many as their scratch leaves room for in the
    cache."""
    return (256 if LEVELS[level].lanes == 8 else 2048) // degree


def scratch_bytes(level: str, degree: int, batch: int) -> int:
    """Work space of ``accumulate`` for ``batch`` blocks that share an inversion."""
    element = LEVELS[level].block_bytes * degree
    return 128 + element + batch * (5 * element + 64)
