"""Multi-scalar multiplication against multiples that are known because the points are multiples of the
generator."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from evenload.errors import FormatError
from evenload.gpu.field import FQ, FR
from evenload.gpu.llvm import programs, rows
from evenload.zk.bn254.plain_curve import point_of
from evenload.zk.cpu import msm, points

R = FR.modulus


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 300])
def test_equal_opposite_and_infinite_points(level, draw, degree, n):
    """Few points, often repeated: buckets meet P + P, P - P and infinity all the time."""
    given, scalars, expected = draw(degree, n, seed=n)
    bases = msm.Bases.load(given, degree, level)
    for width in (4, 6, 9):
        assert point_of(msm.multiply(bases, rows.from_integers(scalars), width=width)) == expected


@pytest.fixture(scope="module")
def many(draw):
    """More than one chunk of buckets, and many shared inversions: points, scalars and their sum."""
    given, scalars, expected = draw(1, 70_000, seed=5)
    return given, rows.from_integers(scalars), expected


def test_many_batches_chunks_and_threads(level, many):
    given, scalars, total = many
    bases = msm.Bases.load(given, 1, level)
    with ThreadPoolExecutor(2) as pool:
        got = msm.multiply(bases, scalars, pool.map)
    assert point_of(got) == total
    assert (msm.multiply(bases, scalars) == got).all()


def test_one_hot_bucket_and_nothing_to_add(level, draw):
    """All scalars are one, as in a witness of bits; or zero."""
    given, ones, expected = draw(1, 5000, 6, [1] * 5000)
    bases = msm.Bases.load(given, 1, level)
    assert point_of(msm.multiply(bases, rows.from_integers(ones))) == expected
    assert not msm.multiply(bases, rows.zeros(5000, 32)).any()
    nothing = msm.Bases.load(np.zeros((3, 8), np.uint64), 1, level)
    assert not msm.multiply(nothing, rows.from_integers([1, 2, 3])).any()


@pytest.mark.parametrize("width", range(4, 17))
def test_signed_digits_make_up_the_scalar(width):
    for n_bits in (None, 1, 3, 15, 64, 131, 192):
        assert_digits(width, n_bits)


def assert_digits(width, n_bits):
    limit, dice = (1 << n_bits) if n_bits else R, random.Random(width)
    values = [0, 1, limit - 1, limit // 2, limit - 2, *(dice.randrange(limit) for _ in range(20))]
    values += [((1 << 253) - 1) % limit, limit - 1 - (1 << width - 1) % limit]
    scalars, keep = rows.from_integers(values), np.arange(len(values), dtype=np.int32)
    n_windows = msm.window_count(n_bits, width)
    digit = np.empty((n_windows, len(values)), np.int16)
    programs.scalar().digits(
        *map(rows.address, (scalars, keep)), len(values), width, n_windows, rows.address(digit)
    )
    assert (digit >= -(1 << width - 1)).all()
    assert (digit.astype(int) < 1 << width - 1).all()
    for k, value in enumerate(values):
        assert sum(int(d) << width * w for w, d in enumerate(digit[:, k])) == value


@pytest.mark.parametrize("degree", [1, 2])
def test_bad_points_are_named(level, draw, degree):
    given, _, _ = draw(degree, 50, seed=1)
    given[7] = 0
    off_curve = given.copy()
    off_curve[23, 0] ^= np.uint64(1)
    with pytest.raises(FormatError, match="point 23 is not on the curve"):
        msm.Bases.load(off_curve, degree, level)
    values = rows.to_integers(given[31])
    too_large = given.copy()
    too_large[31] = rows.from_integers([values[0] + FQ.modulus, *values[1:]]).reshape(-1)
    with pytest.raises(FormatError, match="point 31 has a coordinate that is not below q"):
        msm.Bases.load(too_large, degree, level)


@pytest.mark.parametrize("degree", [1, 2])
def test_combine(draw, degree):
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    given, scalars, expected = draw(degree, 5, seed=9)
    assert point_of(points.combine(degree, given, scalars)) == expected
