"""The compiled pairing against the oracle, and the oracle against snarkjs."""

import numpy as np
import pytest

from evenload.gpu.field import FQ, FR
from evenload.zk.bn254 import plain_pairing as oracle
from evenload.zk.bn254.plain_curve import G1, G2
from evenload.zk.groth16 import VerificationKey

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")

from evenload.gpu.llvm import rows
from evenload.zk.cpu import compiled_pairing


def points(k, m):
    return G1.multiply(G1.generator, k), G2.multiply(G2.generator, m)


def is_one(*pairs):
    """Whether the product of the pairings is one; points of G2 by their multiple of the generator."""
    given = compiled_pairing.rows_of([p for p, _ in pairs], 1)
    lines = compiled_pairing.lines_of([G2.multiply(G2.generator, m) for _, m in pairs])
    return compiled_pairing.is_one_product(given, lines)


def test_every_step_agrees_with_the_oracle():
    p, q = points(123456789, 987654321)
    slow = oracle.miller_loop(p, q)
    fast = compiled_pairing.miller_loop(compiled_pairing.rows_of([p], 1), compiled_pairing.lines_of([q]))
    assert compiled_pairing.to_integers(fast) == slow
    assert compiled_pairing.to_integers(
        compiled_pairing.final_exponentiation(fast)
    ) == oracle.final_exponentiation(slow)


def test_bilinear_and_not_degenerate():
    p, _ = points(3, 5)
    p15, _ = points(15, 1)
    assert is_one((p, 5), (G1.negate(p15), 1))
    assert not is_one((p, 5), (p15, 1))
    assert not is_one((p, 1))
    assert is_one((None, 1), (None, 7))
    assert compiled_pairing.is_one_product(np.zeros((0, 8), np.uint64), [])


def test_lines_of_many_points_are_those_of_each():
    many = [G2.multiply(G2.generator, m) for m in (1, 2, FR.modulus - 1, 12345, 3**150 % FR.modulus)]
    together = compiled_pairing.lines_of(many)
    for point, lines in zip(many, together, strict=True):
        (alone,) = compiled_pairing.lines_of([point])
        assert residues(alone) == residues(lines)


def residues(table):
    return [value % FQ.modulus for value in rows.to_integers(table)]


COFACTOR = 2 * FQ.modulus - FR.modulus
SMALL = 10069  # the smallest factor of the cofactor


@pytest.mark.parametrize(
    "factor", [1, FR.modulus, FR.modulus * COFACTOR // SMALL, COFACTOR, COFACTOR // SMALL]
)
def test_the_order_of_a_point_of_the_twist(factor, twist_point):
    """Also of points whose order has a small factor, and of sums of one in G2 and one outside."""
    point = G2.multiply(twist_point, factor)
    for candidate in (point, G2.add(point, G2.generator)):
        if candidate is not None:
            has_order_r = G2.multiply(candidate, FR.modulus) is None
            assert compiled_pairing.has_order_r(candidate) is has_order_r
            assert oracle.has_order_r(candidate) is has_order_r


def test_the_key_that_snarkjs_exported_comes_out_byte_for_byte(multiplier):
    """vkey.json holds e(alpha, beta) as snarkjs computed it."""
    text = (multiplier / "vkey.json").read_text()
    assert VerificationKey.from_json(text).to_json() == text
