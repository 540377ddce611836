"""Verification of Groth16 proofs: with the compiled pairing where the extra is installed, else in Python."""

from collections.abc import Sequence

import numpy as np

from evenload._optional import is_installed
from evenload.errors import FormatError
from evenload.gpu.field import FR
from evenload.zk import plain_groth16
from evenload.zk.bn254.plain_curve import G1, G2
from evenload.zk.groth16 import Proof, VerificationKey

__all__ = ["Verifier", "verify"]


def verify(key: VerificationKey, public: Sequence[int], proof: Proof) -> bool:
    """Whether ``proof`` shows the statement with these public inputs. Never raises for a bad proof or input.

    For many proofs under one key, keep a ``Verifier``.
    """
    return Verifier(key).why_not(public, proof) is None


class Verifier:
    """A verification key, checked, with what each verification needs of it computed once.

    ``is_checked``: the key comes from ``read_zkey``, which has checked its points. Raises FormatError if a
    point of the key is off its curve, outside the subgroup, or (alpha, beta, gamma, delta) infinity.
    """

    def __init__(self, key: VerificationKey, is_checked: bool = False):
        if not is_checked:
            _check_key(key)
        self.key = key
        self._is_fast = is_installed("llvmlite")
        if self._is_fast:
            from evenload.zk.cpu.compiled_pairing import Lines

            self._lines = {name: Lines(getattr(key, name)) for name in ("beta2", "gamma2", "delta2")}

    def why_not(self, public: Sequence[int], proof: Proof) -> str | None:
        """None if the proof is valid, else the reason it is not."""
        if len(public) != self.key.n_public:
            return f"{len(public)} public inputs were given, the key takes {self.key.n_public}"
        for k, value in enumerate(public):
            if not 0 <= value < FR.modulus:
                return f"public input {k} is not in [0, r): it would be an alias of another statement"
        for name, group, point in (("a", G1, proof.a), ("b", G2, proof.b), ("c", G1, proof.c)):
            if point is None:
                return f"pi_{name} is infinity"
            if not group.contains(point):
                return f"pi_{name} is not on its curve, or a coordinate is not below q"
        if not self._has_order_r(proof.b):
            return "pi_b is not in the subgroup of order r"
        return None if self._equation_holds(public, proof) else "the pairing equation does not hold"

    def _has_order_r(self, point) -> bool:
        if not self._is_fast:
            return G2.has_order_r(point)
        from evenload.zk.cpu import compiled_pairing, points

        return not points.combine(2, compiled_pairing.g2_row(point), [FR.modulus]).any()

    def _equation_holds(self, public: Sequence[int], proof: Proof) -> bool:
        if not self._is_fast:
            return plain_groth16.verify(self.key, public, proof)
        from evenload.zk.cpu import compiled_pairing, points

        ic = np.concatenate([compiled_pairing.g1_row(point) for point in self.key.ic])
        total = points.to_integers(points.combine(1, ic, [1, *public]))
        pairs = [
            (G1.negate(proof.a), compiled_pairing.Lines(proof.b)),
            (self.key.alpha1, self._lines["beta2"]),
            (total, self._lines["gamma2"]),
            (proof.c, self._lines["delta2"]),
        ]
        return compiled_pairing.is_one_product(pairs)


def _check_key(key: VerificationKey) -> None:
    for name, group in (("alpha1", G1), ("beta2", G2), ("gamma2", G2), ("delta2", G2)):
        point = getattr(key, name)
        if point is None or not group.contains(point):
            raise FormatError(f"verification key: {name} is infinity or not on its curve")
        if group is G2 and not group.has_order_r(point):
            raise FormatError(f"verification key: {name} is not in the subgroup of order r")
    for k, point in enumerate(key.ic):
        if not G1.contains(point):
            raise FormatError(f"verification key: IC[{k}] is not on its curve")
