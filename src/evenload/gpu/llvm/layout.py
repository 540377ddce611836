"""Sizes that the callers of kernels need to know. Loads nothing, so that asking for them does not load
llvmlite."""

from dataclasses import dataclass

from evenload.gpu.field import X


@dataclass(frozen=True, slots=True)
class Level:
    """An instruction level: ``lanes`` elements of ``radix_bits`` (Montgomery's R) in a block of
    ``block_bytes``.

    needs        what a processor must have for it
    shipped_for  the baselines whose objects come with the package, with the further features ``beyond`` them
    """

    name: str
    needs: frozenset[str]
    shipped_for: tuple[str, ...] = ()
    beyond: frozenset[str] = frozenset()
    lanes: int = 8
    block_bytes: int = 320
    radix_bits: int = 260


_AVX512, _IFMA = frozenset({"avx512f", "avx512dq", "avx512vl"}), frozenset({"avx512ifma"})
LEVELS = {
    level.name: level
    for level in (
        Level("ifma52", _AVX512 | _IFMA, ("x86-64-v4",), _IFMA),
        Level("fma52x8", _AVX512, ("x86-64-v4",)),
        Level("fma52x4", frozenset({"avx2", "fma"}), ("x86-64-v3",)),
        Level("word64", frozenset(), ("x86-64-v3", "armv8-a"), lanes=1, block_bytes=32, radix_bits=256),
        Level("fma52x2", frozenset({"neon"})),
    )
}
"""The fastest first; which of the last two is faster on arm64 was not measured."""

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
