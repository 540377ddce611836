"""The odd-coset transform against the oracle, for every size around the tile and chunk borders."""

import functools
import random

import pytest
from reference.plain_prover import to_odd_coset

from evenload.errors import ConfigError
from evenload.gpu.field import FR
from evenload.gpu.llvm import rows
from evenload.zk.cpu.ntt import Domain

R = FR.modulus


@functools.cache
def drawn(log_size):
    """Three columns in Montgomery form, which nothing writes to, and the oracle's answer: for every level."""
    dice, n = random.Random(log_size), 1 << log_size
    values = [[dice.choice([0, 1, R - 1, dice.randrange(R)]) for _ in range(n)] for _ in range(3)]
    a, b, c = map(to_odd_coset, values)
    given = [rows.from_integers([FR.montgomery(v) for v in column]) for column in values]
    return given, [(x * y - z) % R for x, y, z in zip(a, b, c, strict=True)]


@pytest.mark.parametrize("log_size", [1, 2, 3, 5, 6, 7, 8, 9, 10, 13])
def test_against_the_oracle(level, log_size):
    given, expected = drawn(log_size)
    got = rows.to_integers(Domain(1 << log_size, level).quotient(*given))
    assert got == expected


def test_large_transform_by_a_polynomial_that_is_known(level):
    """Values of w -> w^3 + 5 on the domain must come out as those on the coset."""
    n = 1 << 15
    domain, root, shift = Domain(n, level), FR.root_of_unity(n), FR.root_of_unity(2 * n)
    value, values = 1, []
    for _ in range(n):
        values.append((pow(value, 3, R) + 5) % R)
        value = value * root % R
    one = rows.from_integers([FR.montgomery(1)] * n)
    zero = rows.zeros(n, 32)
    got = rows.to_integers(domain.quotient(rows.from_integers([FR.montgomery(v) for v in values]), one, zero))
    for i in (0, 1, 2, 7, 8, 63, 64, 4095, n - 1):
        x = shift * pow(root, i, R) % R
        assert got[i] == (x**3 + 5) % R


def test_worst_case_growth_stays_exact(level):
    """All r - 1: every lazy sum takes its largest value."""
    n = 1 << 12
    most = rows.from_integers([R - 1] * n)  # the largest row, in Montgomery form
    got = rows.to_integers(Domain(n, level).quotient(most, most, most))
    value = FR.plain(R - 1)
    assert set(got) == {(value * value - value) % R}


@pytest.mark.parametrize("size", [0, 1, 3, 100, 1 << 28])
def test_impossible_domains_are_refused(level, size):
    with pytest.raises(ConfigError, match="power of two"):
        Domain(size, level)
