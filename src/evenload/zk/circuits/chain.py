"""A chain of squarings: the densest witness, of any size, made without a builder so that a million takes
seconds."""

import numpy as np

from evenload.gpu.field import FR
from evenload.zk.formats.r1cs import R1cs
from evenload.zk.formats.zkey import COEFFICIENT


def squaring_chain(n: int, start: int = 123456789123456789) -> tuple[R1cs, list[int]]:
    """A circuit of ``n`` constraints whose output is start^(2^n), and its witness. ``start`` is a private
    input."""
    wire = np.concatenate([[2], np.arange(3, n + 2), [1]]).astype(np.uint32)  # input, internal ones, output
    terms = np.zeros(3 * n, COEFFICIENT)
    terms["matrix"] = np.tile([0, 1, 2], n)
    terms["row"] = np.repeat(np.arange(n), 3)
    terms["wire"] = np.stack([wire[:-1], wire[:-1], wire[1:]], axis=1).reshape(-1)
    terms["value"][:, 0] = 1
    witness = [1, 0, start % FR.modulus] + [0] * (n - 1)
    value = start % FR.modulus
    for k in wire[1:].tolist():
        value = value * value % FR.modulus
        witness[k] = value
    return R1cs(n + 2, 1, 0, 1, n, terms), witness
