"""The compiled pairing against the oracle, and the oracle against the laws of a pairing and against
snarkjs."""

import pytest

from evenload.gpu.field import FR
from evenload.zk.bn254 import plain_pairing as oracle
from evenload.zk.bn254.plain_curve import G1, G2
from evenload.zk.groth16 import VerificationKey

pytest.importorskip("llvmlite", reason="the kernels extra is not installed")


def points(k, m):
    return G1.multiply(G1.generator, k), G2.multiply(G2.generator, m)


def test_every_step_agrees_with_the_oracle():
    from evenload.zk.cpu import compiled_pairing

    p, q = points(123456789, 987654321)
    slow = oracle.miller_loop(p, q)
    fast = compiled_pairing.miller_loop([(p, compiled_pairing.Lines(q))])
    assert compiled_pairing.to_integers(fast) == slow
    assert compiled_pairing.to_integers(
        compiled_pairing.final_exponentiation(fast)
    ) == oracle.final_exponentiation(slow)


def test_bilinear_and_not_degenerate():
    from evenload.zk.cpu import compiled_pairing

    p, q = points(3, 5)
    p15, _ = points(15, 1)
    negative, lines = G1.negate(p15), compiled_pairing.Lines(G2.generator)
    assert compiled_pairing.is_one_product([(p, compiled_pairing.Lines(q)), (negative, lines)])
    assert not compiled_pairing.is_one_product([(p, compiled_pairing.Lines(q)), (p15, lines)])
    assert not compiled_pairing.is_one_product([(p, lines)])
    assert compiled_pairing.is_one_product([])
    assert compiled_pairing.is_one_product([(None, lines), (p, None)])


def test_oracle_has_order_r_and_is_bilinear():
    e = oracle.pairing(G1.generator, G2.generator)
    assert e != oracle.ONE
    assert oracle.power(e, FR.modulus) == oracle.ONE
    assert oracle.pairing(*points(2, 3)) == oracle.power(e, 6)


def test_the_key_that_snarkjs_exported_comes_out_byte_for_byte(multiplier):
    """vkey.json holds e(alpha, beta) as snarkjs computed it."""
    text = (multiplier / "vkey.json").read_text()
    assert VerificationKey.from_json(text).to_json() == text
