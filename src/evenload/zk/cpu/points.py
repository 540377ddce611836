"""Sums of few multiples, on rows: what blinding and verification need."""

from collections.abc import Sequence

import numpy as np

from evenload.gpu.llvm import programs, rows


def combine(
    degree: int, points: np.ndarray, scalars: Sequence[int], n_bits: int = 254, are_public: bool = False
) -> np.ndarray:
    """sum of scalars[i] * points[i], an affine row [8 * degree] uint64; zeros stand for infinity.

    points   [n, 8 * degree] uint64 affine rows, Montgomery with R = 2^256
    scalars  n integers in [0, 2^n_bits); unless ``are_public``, the time does not depend on them
    """
    out, factors = rows.zeros(1, 64 * degree), rows.from_integers(scalars)
    given = rows.aligned(points)
    kernel = getattr(programs.scalar(), f"g{degree}_combine")
    kernel(rows.address(given), rows.address(factors), len(scalars), n_bits, are_public, rows.address(out))
    return out[0]
