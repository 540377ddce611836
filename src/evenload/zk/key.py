"""A proving key made ready for one instruction level: points checked and converted, tables built, once."""

import secrets
import time
from dataclasses import dataclass

import numpy as np

from evenload.errors import FormatError
from evenload.gpu.field import FR

from . import msm, points
from .formats.zkey import ZKey, point_rows
from .ntt import Domain
from .verifier import Verifier

__all__ = ["LoadedKey", "find_outside_subgroup"]

_SUBGROUP_ROUNDS, _WEIGHT_BITS = 2, 14
SECTIONS = {"A": 1, "B1": 1, "B2": 2, "C": 1, "H": 1}


@dataclass(frozen=True, slots=True)
class LoadedKey:
    """What a prover keeps: shared by all workers of a process, never changed.

    ``header`` maps alpha1, ... delta2 to rows; ``seconds`` says how long loading took.
    """

    name: str
    sha256: str
    level: str
    n_vars: int
    n_public: int
    domain: Domain
    coefficients: np.ndarray
    bases: dict[str, msm.Bases]
    header: dict[str, np.ndarray]
    verifier: Verifier
    seconds: float

    @classmethod
    def load(cls, key: ZKey, level: str) -> "LoadedKey":
        """Check every point of ``key`` and convert it. The sections of ``key`` are released one by one.

        Raises FormatError naming section and byte for a point off its curve, with a coordinate not below q,
        or outside the subgroup (B2; overlooked with probability below 2 * 10^-8, see
        ``find_outside_subgroup``).
        """
        started = time.perf_counter()
        bases = {}
        for section, degree in SECTIONS.items():
            where = key.where(section)
            bases[section] = msm.Bases.load(key.sections.pop(section), degree, level, where)
            if degree == 2:
                position = find_outside_subgroup(bases[section])
                if position is not None:
                    raise FormatError(where(position, "is not in the subgroup of order r"))
        header = {name: point_rows([getattr(key, name)], 1) for name in ("alpha1", "beta1", "delta1")}
        header |= {name: point_rows([getattr(key, name)], 2) for name in ("beta2", "delta2")}
        return cls(
            key.name,
            key.sha256,
            level,
            key.n_vars,
            key.n_public,
            Domain(key.domain_size, level),
            key.coefficients,
            bases,
            header,
            Verifier(key.verification_key, is_checked=True),
            time.perf_counter() - started,
        )

    @property
    def n_bytes(self) -> int:
        return self.domain.n_bytes + self.coefficients.nbytes + sum(b.n_bytes for b in self.bases.values())


def find_outside_subgroup(bases: msm.Bases) -> int | None:
    """The position of a point of G2's curve that is not of order r, or None.

    A random combination of all points is tested instead of each. The smallest prime factor of the cofactor is
    10069, and a weight of 14 bits hits one residue modulo it with probability at most 1/8192: two rounds
    overlook a bad point with probability below 2 * 10^-8.
    """
    for _ in range(_SUBGROUP_ROUNDS):
        weights = np.zeros((bases.n_given, 4), np.uint64)
        random = np.frombuffer(secrets.token_bytes(2 * bases.n_given), np.uint16)
        weights[:, 0] = random >> (16 - _WEIGHT_BITS)
        if _is_outside(bases, weights):
            return _locate(bases, weights)
    return None


def _is_outside(bases: msm.Bases, weights: np.ndarray) -> bool:
    width = 16 if len(bases.keep) > 1 << 15 else None  # a single window, where there are points to fill it
    total = msm.multiply(bases, weights, width=width)
    return bool(points.combine(2, total[None], [FR.modulus]).any())


def _locate(bases: msm.Bases, weights: np.ndarray) -> int:
    first, last = 0, len(weights)
    while last - first > 1:
        middle = (first + last) // 2
        half = np.zeros_like(weights)
        half[first:middle] = weights[first:middle]
        first, last = (first, middle) if _is_outside(bases, half) else (middle, last)
    return first
