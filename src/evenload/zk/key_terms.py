"""The terms of a circuit as a proving key holds them: a key is made of them, and can be told by them."""

from collections.abc import Sequence

import numpy as np

from evenload.gpu.field import FR
from evenload.gpu.llvm import programs, rows
from evenload.zk.formats.r1cs import R1cs
from evenload.zk.formats.zkey import COEFFICIENT, ZKey

R = FR.modulus


def why_not_of(key: ZKey, circuit: R1cs) -> str | None:
    """Why ``key`` is no key of ``circuit``; None if sizes and matrices A and B are those of the circuit.

    The third matrix, C, stands in a key as points alone, and that the points are right is what a ceremony
    proves: both need the powers of tau (``snarkjs zkey verify``).
    """
    sizes = {
        "wires": (key.n_vars, circuit.n_wires),
        "public values": (key.n_public, circuit.n_public),
        "rows": (key.domain_size, domain_of(circuit)),
    }
    for name, (held, needed) in sizes.items():
        if held != needed:
            return f"the key has {held} {name}, the circuit {needed}"
    held, needed = in_order(key.coefficients), in_order(coefficients(with_public_rows(circuit)))
    if len(held) != len(needed):
        return f"the key has {len(held)} coefficients, the circuit {len(needed)}"
    other = np.flatnonzero(held != needed)
    if not len(other):
        return None
    first = needed[other[0]]
    return f"constraint {first['row']} differs at wire {first['wire']} of its {'AB'[first['matrix']]}"


def in_order(terms: np.ndarray) -> np.ndarray:
    """Terms that are not zero by matrix, row and wire, of which files promise no order."""
    kept = terms[terms["value"].any(axis=1)]
    return kept[np.lexsort((kept["wire"], kept["row"], kept["matrix"]))]


def domain_of(circuit: R1cs) -> int:
    """Rows that a key of ``circuit`` has: a power of two."""
    return max(2, 1 << (circuit.n_constraints + circuit.n_public).bit_length())


def with_public_rows(circuit: R1cs) -> np.ndarray:
    """The terms, and one row more for the constant and each public wire: it keeps their columns
    independent."""
    extra = np.zeros(circuit.n_public + 1, COEFFICIENT)
    extra["wire"] = np.arange(circuit.n_public + 1)
    extra["row"] = circuit.n_constraints + extra["wire"]
    extra["value"][:, 0] = 1
    return np.concatenate([circuit.terms, extra])


def coefficients(terms: np.ndarray) -> np.ndarray:
    """The terms of A and B, as section 4 of a key has them."""
    kept = terms[terms["matrix"] < 2].copy()
    values = kept["value"]
    kept["value"] = combine_rows(values, values, values, (pow(2, 512, R), 0, 0))
    return kept


def combine_rows(a: np.ndarray, b: np.ndarray, c: np.ndarray, factors: Sequence[int]) -> np.ndarray:
    """a*x + b*y + c*z, each [n, 4] uint64 below r."""
    a, b, c = (rows.aligned(array) for array in (a, b, c))
    out, scale = rows.empty(len(a), 32), montgomery_rows(*factors)
    programs.scalar().combine_rows(*map(rows.address, (a, b, c, scale, out)), len(a))
    return out


def montgomery_rows(*values: int) -> np.ndarray:
    """[n, 4] uint64: numbers in Montgomery form."""
    return rows.from_integers([FR.montgomery(value) for value in values])
