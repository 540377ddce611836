"""Groth16 in plain Python: prove small circuits, step by step as the protocol is written; verify is ours.

The quotient is evaluated on the odd coset, as the H points of a .zkey expect it.
"""

import secrets
from collections.abc import Sequence
from typing import Any

from evenload.gpu.field import FQ, FR
from evenload.zk.bn254.plain_curve import G1, G2
from evenload.zk.formats.r1cs import R1cs
from evenload.zk.formats.zkey import ZKey
from evenload.zk.groth16 import Proof
from evenload.zk.plain_groth16 import verify

__all__ = ["first_unsatisfied", "prove", "quotient", "to_odd_coset", "verify"]

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


def quotient(key: ZKey, witness: Sequence[int]) -> list[int]:
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


def points(key: ZKey, section: str) -> list[Any]:
    """The points of A, B1, B2, C or H as plain affine integers."""
    degree = 2 if section == "B2" else 1
    out: list[Any] = []
    for row in key.sections[section]:
        content = row.tobytes()
        plain = [FQ.plain(int.from_bytes(content[k : k + 32], "little")) for k in range(0, 64 * degree, 32)]
        point = (plain[0], plain[1]) if degree == 1 else ((plain[0], plain[1]), (plain[2], plain[3]))
        out.append(point if any(plain) else None)
    return out


def prove(key: ZKey, witness: Sequence[int], blinding: tuple[int, int] | None = None) -> Proof:
    """A proof, not verified. ``blinding`` is drawn from the operating system; giving it is for tests only."""
    r, s = blinding or (secrets.randbelow(R), secrets.randbelow(R))
    sums = {
        name: sum_of_multiples(G2 if name == "B2" else G1, points(key, name), scalars)
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


def sum_of_multiples(group: Any, points: Sequence[Any], scalars: Sequence[int]) -> Any:
    """Pippenger's method with windows of four bits."""
    total = None
    for shift in range(252, -1, -4):
        for _ in range(4):
            total = group.add(total, total)
        buckets: list[Any] = [None] * 16
        for point, scalar in zip(points, scalars, strict=True):
            digit = scalar >> shift & 15
            buckets[digit] = group.add(buckets[digit], point) if digit else None
        running = None
        for bucket in reversed(buckets[1:]):
            running = group.add(running, bucket)
            total = group.add(total, running)
    return total


def first_unsatisfied(circuit: R1cs, witness: Sequence[int]) -> int | None:
    """The first constraint that ``witness`` violates, or None. Plain Python: for circuits of moderate
    size."""
    sums = [[0] * circuit.n_constraints for _ in range(3)]
    for matrix, row, wire, value in zip(
        *(circuit.terms[name].tolist() for name in ("matrix", "row", "wire", "value")), strict=True
    ):
        coefficient = value[0] | value[1] << 64 | value[2] << 128 | value[3] << 192
        sums[matrix][row] += coefficient * witness[wire]
    for k, (a, b, c) in enumerate(zip(*sums, strict=True)):
        if (a * b - c) % FR.modulus:
            return k
    return None
