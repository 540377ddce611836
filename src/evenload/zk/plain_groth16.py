"""Groth16's verification in plain Python, step by step as the protocol is written.

Source: Groth, "On the size of pairing-based non-interactive arguments" (2016).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evenload.gpu.field import FR
from evenload.zk.bn254.plain_curve import G1, G2
from evenload.zk.bn254.plain_pairing import has_order_r, is_one_product

if TYPE_CHECKING:
    from evenload.zk.groth16 import Proof, VerificationKey

R = FR.modulus


def verify(key: "VerificationKey", public: Sequence[int], proof: "Proof") -> bool:
    """e(a, b) = e(alpha, beta) * e(ic, gamma) * e(c, delta), with every range and subgroup checked."""
    if len(public) != key.n_public or not all(0 <= value < R for value in public):
        return False
    if not (G1.contains(proof.a) and G1.contains(proof.c) and G2.contains(proof.b) and has_order_r(proof.b)):
        return False
    ic = key.ic[0]
    for point, value in zip(key.ic[1:], public, strict=True):
        ic = G1.add(ic, G1.multiply(point, value))
    negative = G1.negate(proof.a)
    pairs = [(negative, proof.b), (key.alpha1, key.beta2), (ic, key.gamma2), (proof.c, key.delta2)]
    return is_one_product(pairs)
