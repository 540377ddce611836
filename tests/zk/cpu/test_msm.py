"""Multi-scalar multiplication against multiples that are known because the points are multiples of the
generator."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from evenload.errors import FormatError
from evenload.gpu.field import FQ, FR
from evenload.gpu.llvm import rows
from evenload.zk.bn254.plain_curve import G1, G2, point_of
from evenload.zk.cpu import msm, points
from evenload.zk.formats.zkey import point_rows

GROUPS = {1: G1, 2: G2}
R = FR.modulus


@pytest.fixture(scope="module")
def multiples():
    """degree -> rows of 0 (infinity), 1, -1, 2, -2, ... times the generator, and those factors."""
    made = {}
    for degree, group in GROUPS.items():
        factors, found, point = [0], [None], None
        for k in range(1, 40):
            point = group.add(point, group.generator)
            factors += [k, R - k]
            found += [point, group.negate(point)]
        made[degree] = (point_rows(found, degree), factors)
    return made


def expected(degree, total):
    return GROUPS[degree].multiply(GROUPS[degree].generator, total % R)


def draw(multiples, degree, n, seed):
    table, factors = multiples[degree]
    dice = random.Random(seed)
    chosen = [dice.randrange(len(factors)) for _ in range(n)]
    kinds = [0, 1, R - 1, 2, R - 2, 1 << 64, (1 << 128) - 1, *(dice.randrange(R) for _ in range(5))]
    scalars = [dice.choice(kinds) for _ in range(n)]
    total = sum(factors[k] * s for k, s in zip(chosen, scalars, strict=True))
    return np.ascontiguousarray(table[chosen]), scalars, total


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 300])
def test_equal_opposite_and_infinite_points(level, multiples, degree, n):
    """Few points, often repeated: buckets meet P + P, P - P and infinity all the time."""
    given, scalars, total = draw(multiples, degree, n, seed=n)
    bases = msm.Bases.load(given, degree, level)
    for width in (4, 6, 9):
        got = msm.multiply(bases, rows.from_integers(scalars), width=width)
        assert point_of(got) == expected(degree, total)


@pytest.fixture(scope="module")
def many(multiples):
    """More than one chunk of buckets, and many shared inversions: points, scalars and their sum."""
    given, scalars, total = draw(multiples, 1, 70_000, seed=5)
    return given, rows.from_integers(scalars), expected(1, total)


def test_many_batches_chunks_and_threads(level, many):
    given, scalars, total = many
    bases = msm.Bases.load(given, 1, level)
    with ThreadPoolExecutor(2) as pool:
        got = msm.multiply(bases, scalars, pool.map)
    assert point_of(got) == total
    assert (msm.multiply(bases, scalars) == got).all()


def test_one_hot_bucket(level, multiples):
    """All scalars are one, as in a witness of bits."""
    given, _, _ = draw(multiples, 1, 5000, seed=6)
    bases = msm.Bases.load(given, 1, level)
    ones = rows.from_integers([1] * len(given))
    table, factors = multiples[1]
    lookup = {row.tobytes(): factor for row, factor in zip(table, factors, strict=True)}
    total = sum(lookup[row.tobytes()] for row in given)
    assert point_of(msm.multiply(bases, ones)) == expected(1, total)


def test_nothing_to_add(level, multiples):
    nothing = msm.Bases.load(np.zeros((3, 8), np.uint64), 1, level)
    assert not msm.multiply(nothing, rows.from_integers([1, 2, 3])).any()
    bases = msm.Bases.load(multiples[1][0], 1, level)
    assert not msm.multiply(bases, rows.zeros(len(multiples[1][0]), 32)).any()


@pytest.mark.parametrize("n_bits", [None, 1, 3, 15, 64, 131, 192])
@pytest.mark.parametrize("width", range(4, 17))
def test_signed_digits_make_up_the_scalar(width, n_bits):
    from evenload.gpu.llvm import programs

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
def test_bad_points_are_named(level, multiples, degree):
    given, _, _ = draw(multiples, degree, 50, seed=1)
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


def test_width_grows_with_the_number_of_points():
    widths = [msm.choose_width(254 << k, 1 << k) for k in range(4, 22)]
    assert widths == sorted(widths)
    assert widths[0] >= 4
    assert widths[-1] <= 16


@pytest.mark.parametrize("degree", [1, 2])
def test_combine(multiples, degree):
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    given, scalars, total = draw(multiples, degree, 5, seed=9)
    assert point_of(points.combine(degree, given, scalars)) == expected(degree, total)
    order = points.combine(degree, multiples[degree][0][1:2], [R])
    assert point_of(order) is None
