"""Groth16 in plain Python: prove and verify small circuits, step by step as the protocol is written.

Source: Groth, "On the size of pairing-based non-interactive arguments" (2016), with the quotient evaluated on
the odd coset as the H points of a .zkey expect it.
"""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evenload.gpu.field import FQ, FR
from evenload.zk.bn254.plain_curve import G1, G2
from evenload.zk.bn254.plain_pairing import has_order_r, is_one_product

if TYPE_CHECKING:
    from evenload.zk.formats.zkey import ZKey
    from evenload.zk.groth16 import Proof, VerificationKey

__all__ = ["prove", "verify"]

R = FR.modulus


def transform(values: Sequence[int], root: int) -> list[int]:
    """sum over j of values[j] * root^(i*j), for every i."""
    n = len(values)
    if n == 1:
        return list(values)
    even, odd = transform(values[0::2], root * root % R), transform(values[1::2], root * root % R)
    out, power = [0] * n, 1
    for i in range(n // 2):
        term = power * odd[i] % R
        out[i], out[i + n // 2] = (even[i] + term) % R, (even[i] - term) % R
        power = power * root % R
    return out


def to_odd_coset(values: Sequence[int]) -> list[int]:
    """Values of a polynomial on a domain of n -> its values at the odd powers of the root of order 2n."""
    n = len(values)
    root, shift = FR.root_of_unity(n), FR.root_of_unity(2 * n)
    coefficients = transform(values, pow(root, -1, R))
    factor = pow(n, -1, R)
    for i in range(n):
        coefficients[i] = coefficients[i] * factor % R
        factor = factor * shift % R
    return transform(coefficients, root)


def quotient(key: "ZKey", witness: Sequence[int]) -> list[int]:
    """a*b - c on the odd coset."""
    a, b = [0] * key.domain_size, [0] * key.domain_size
    scale = pow(2, -512, R)
    for record in key.coefficients:
        value = int.from_bytes(record["value"].tobytes(), "little") * scale
        target, row = (b if record["matrix"] else a), int(record["row"])
        target[row] = (target[row] + value * witness[int(record["wire"])]) % R
    c = [x * y % R for x, y in zip(a, b, strict=True)]
    a, b, c = map(to_odd_coset, (a, b, c))
    return [(x * y - z) % R for x, y, z in zip(a, b, c, strict=True)]


def points(key: "ZKey", section: str) -> list[Any]:
    """The points of A, B1, B2, C or H as plain affine integers."""
    degree = 2 if section == "B2" else 1
    out: list[Any] = []
    for row in key.sections[section]:
        content = row.tobytes()
        plain = [FQ.plain(int.from_bytes(content[k : k + 32], "little")) for k in range(0, 64 * degree, 32)]
        point = (plain[0], plain[1]) if degree == 1 else ((plain[0], plain[1]), (plain[2], plain[3]))
        out.append(point if any(plain) else None)
    return out


def prove(key: "ZKey", witness: Sequence[int], blinding: tuple[int, int] | None = None) -> "Proof":
    """A proof, not verified. ``blinding`` is drawn from the operating system; giving it is for tests only."""
    from evenload.zk.groth16 import Proof

    r, s = blinding or (secrets.randbelow(R), secrets.randbelow(R))
    sums = {
        name: (G2 if name == "B2" else G1).sum_of_multiples(points(key, name), scalars)
        for name, scalars in {
            "A": witness,
            "B1": witness,
            "B2": witness,
            "C": witness[key.n_public + 1 :],
            "H": quotient(key, witness),
        }.items()
    }
    a = G1.add(G1.add(sums["A"], key.alpha1), G1.multiply(key.delta1, r))
    b = G2.add(G2.add(sums["B2"], key.beta2), G2.multiply(key.delta2, s))
    b1 = G1.add(G1.add(sums["B1"], key.beta1), G1.multiply(key.delta1, s))
    c = G1.add(sums["C"], sums["H"])
    for point, scalar in ((a, s), (b1, r), (key.delta1, -r * s % R)):
        c = G1.add(c, G1.multiply(point, scalar))
    return Proof(a, b, c)


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
