"""INSECURE set-up of a Groth16 key by one party, for tests and benchmarks.

Whoever runs this knows the trapdoor and can forge proofs. A key for real use comes from a ceremony (snarkjs).

Multiples of a generator are sums of points from a table of its multiples, so the bucket kernel that adds the
points of an MSM makes them: every scalar is a bucket.
"""

import hashlib
import secrets
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from evenload.errors import ConfigError
from evenload.gpu.field import FR
from evenload.gpu.llvm import programs, rows
from evenload.zk.bn254.plain_curve import G1, G2, point_of
from evenload.zk.cpu import msm
from evenload.zk.cpu.ntt import powers
from evenload.zk.formats.r1cs import R1cs
from evenload.zk.formats.zkey import MAX_DOMAIN, ZKey, point_rows
from evenload.zk.key_terms import (
    coefficients,
    combine_rows,
    domain_of,
    montgomery_rows,
    with_public_rows,
)

WARNING = "INSECURE dev set-up: one party knew the trapdoor and can forge proofs"
R = FR.modulus
_BLOCK = 1 << 15  # scalars whose multiples are made at once


def dev_setup(circuit: R1cs, seed: str | None = None, progress: Callable[[str], None] | None = None) -> ZKey:
    """A proving key for ``circuit``. INSECURE.

    seed  derives the trapdoor, so that the key is the same each time; default: from the operating system
    Raises ConfigError for a circuit that needs a domain above 2^27.
    """
    say = progress or (lambda _: None)
    size = domain_of(circuit)
    if size > MAX_DOMAIN:
        raise ConfigError(f"{circuit.n_constraints} constraints need a domain of {size}, more than 2^27")
    tau, alpha, beta, delta = (_trapdoor(seed, name) for name in ("tau", "alpha", "beta", "delta"))
    say("scalars")
    terms = with_public_rows(circuit)
    scalars = _section_scalars(circuit, terms, size, (tau, alpha, beta, delta))
    say("points of G1")
    g1 = _Multiples(1, sum(map(len, scalars.values())))
    sections = {name: g1.of(scalars[name]) for name in ("A", "B1", "C", "H")}
    ic = g1.of(scalars["IC"])
    say("points of G2")
    sections["B2"] = _Multiples(2, circuit.n_wires).of(scalars["B1"])
    delta1 = G1.multiply(G1.generator, delta)
    return ZKey(
        name="<dev set-up>",
        sha256="",
        n_vars=circuit.n_wires,
        n_public=circuit.n_public,
        domain_size=size,
        alpha1=G1.multiply(G1.generator, alpha),
        beta1=G1.multiply(G1.generator, beta),
        beta2=G2.multiply(G2.generator, beta),
        gamma2=G2.generator,
        delta1=delta1,
        delta2=G2.multiply(G2.generator, delta),
        ic=tuple(map(point_of, ic)),
        coefficients=coefficients(terms),
        sections=sections,
        offsets=dict.fromkeys(sections, 0),
        contributions=_contribution(delta1),
    )


def _section_scalars(
    circuit: R1cs, terms: np.ndarray, size: int, trapdoor: tuple[int, int, int, int]
) -> dict[str, np.ndarray]:
    """By section, [n, 4] uint64: what the generator is multiplied with. B2 takes the scalars of B1."""
    tau, alpha, beta, delta = trapdoor
    a, b, c = _columns(circuit, terms, _lagrange_at(tau, size))
    first = circuit.n_public + 1  # of the private wires
    unit, over_delta = (beta, alpha, 1), tuple(v * pow(delta, -1, R) % R for v in (beta, alpha, 1))
    k_public = combine_rows(a[:first], b[:first], c[:first], unit)
    k_private = combine_rows(a[first:], b[first:], c[first:], over_delta)
    h = _lagrange_at(tau, 2 * size)[1::2]
    h = combine_rows(h, h, h, (pow(delta, -1, R) * pow(2, -256, R) % R, 0, 0))
    return {"A": a, "B1": b, "C": k_private, "H": h, "IC": k_public}


def _trapdoor(seed: str | None, name: str) -> int:
    if seed is None:
        return 1 + secrets.randbelow(R - 1)
    return 1 + int.from_bytes(hashlib.sha512(f"{seed}:{name}".encode()).digest(), "little") % (R - 1)


def _lagrange_at(tau: int, size: int) -> np.ndarray:
    """[size, 4]: every Lagrange polynomial of the domain at tau, Montgomery."""
    root = FR.root_of_unity(size)
    nodes, out = powers(root, size, FR.montgomery(1)), rows.empty(size, 32)
    factor = (pow(tau, size, R) - 1) * pow(size, -1, R) % R
    point, scale = montgomery_rows(tau), montgomery_rows(factor)
    programs.scalar().lagrange(rows.address(nodes), size, *map(rows.address, (point, scale, out)))
    return out


def _columns(circuit: R1cs, terms: np.ndarray, lagrange: np.ndarray) -> list[np.ndarray]:
    """A, B and C of every wire at tau: [n_wires, 4] plain."""
    swapped = terms.copy()
    swapped["row"], swapped["wire"] = terms["wire"], terms["row"]
    swapped["matrix"] = terms["matrix"] % 2  # A and C go to the first array, in calls of their own
    columns, unused = [rows.zeros(circuit.n_wires, 32) for _ in range(3)], rows.zeros(1, 64)
    for matrix, column in enumerate(columns):
        chosen = np.ascontiguousarray(swapped[terms["matrix"] == matrix])
        targets = (unused, column) if matrix == 1 else (column, unused)
        at = map(rows.address, (lagrange, *targets))
        programs.scalar().sparse_products(rows.address(chosen), len(chosen), *at)
    return columns


def _contribution(delta1: Any) -> bytes:
    """Section 10 with one contribution whose name is the warning."""
    name = WARNING.encode()
    parameters = struct.pack("<BB", 1, len(name)) + name
    points = point_rows([delta1], 1).tobytes() + bytes(64 + 64 + 128 + 64)
    return bytes(64) + struct.pack("<I", 1) + points + struct.pack("<II", 0, len(parameters)) + parameters


def _table_width(n: int) -> int:
    """The width with fewest additions, for the table and for ``n`` multiples."""
    return min(range(4, 13), key=lambda width: msm.window_count(None, width) * (n + (1 << width - 1)))


class _Multiples:
    """Multiples of the generator of G1 (degree 1) or G2 (2), from a table of d * 2^(width * w) * generator.

    n   how many multiples are wanted, about: few take a small table
    """

    def __init__(self, degree: int, n: int = 1 << 20):
        self.degree, self.width = degree, _table_width(n)
        self.n_windows, self.half = msm.window_count(None, self.width), 1 << self.width - 1
        group = G1 if degree == 1 else G2
        firsts, point = [], group.generator
        for _ in range(self.n_windows):
            firsts.append(point)
            for _ in range(self.width):
                point = group.add(point, point)
        self._table = self._grow(point_rows(firsts, degree))

    def _grow(self, firsts: np.ndarray) -> np.ndarray:
        """Row w * half + d - 1 holds d times the first point of window w, in snarkjs's form."""
        table = np.zeros((self.n_windows, self.half, 8 * self.degree), np.uint64)
        table[:, 0] = firsts
        known = 1
        while known < self.half:  # (known + d) * P = known * P + d * P
            window = np.arange(self.n_windows)[:, None] * known
            left, right = np.broadcast_arrays(window + known - 1, window + np.arange(known)[None, :])
            index = np.stack([left, right], axis=2).reshape(-1).astype(np.int32)
            start = np.arange(0, len(index) + 1, 2)
            sums = msm.sum_groups(self._bases(table[:, :known]), index, start)
            table[:, known : 2 * known] = sums.reshape(self.n_windows, known, -1)
            known *= 2
        return table.reshape(-1, 8 * self.degree)

    def _bases(self, points: np.ndarray) -> msm.Bases:
        flat = np.ascontiguousarray(points).reshape(-1, 8 * self.degree)
        return msm.Bases.load(flat, self.degree, programs.best_level())

    def of(self, scalars: np.ndarray) -> np.ndarray:
        """[n, 8 * degree] rows of scalars[i] * generator, as .zkey has them. scalars: [n, 4] uint64 plain."""
        bases = self._bases(self._table)
        out = np.empty((len(scalars), 8 * self.degree), np.uint64)
        for first in range(0, len(scalars), _BLOCK):
            block = rows.aligned(scalars[first : first + _BLOCK])
            out[first : first + len(block)] = msm.sum_groups(bases, *self._positions(block))
        return out

    def _positions(self, scalars: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which rows of the table to add for each scalar: index and start as ``sum_groups`` takes them."""
        n = len(scalars)
        digit, every = np.empty((self.n_windows, n), np.int16), np.arange(n, dtype=np.int32)
        programs.scalar().digits(
            *map(rows.address, (scalars, every)), n, self.width, self.n_windows, rows.address(digit)
        )
        by_scalar = digit.T.astype(np.int32)
        position = np.arange(self.n_windows, dtype=np.int32) * self.half + np.abs(by_scalar) - 1
        signed = position | np.where(by_scalar < 0, np.int32(-(1 << 31)), np.int32(0))
        is_used = by_scalar != 0
        start = np.concatenate([[0], np.cumsum(is_used.sum(axis=1))])
        return signed[is_used], start
