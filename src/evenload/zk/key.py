"""A proving key made ready for the CPU: points checked and converted, tables built, once."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenload.errors import FormatError
from evenload.gpu.field import FR
from evenload.gpu.llvm import programs, rows
from evenload.zk.cpu import msm, points
from evenload.zk.cpu.ntt import Domain
from evenload.zk.formats.zkey import ZKey, point_rows
from evenload.zk.verifier import Verifier

_SUBGROUP_ROUNDS, _WEIGHT_BITS = 2, 14
SECTIONS = {"A": 1, "B1": 1, "B2": 2, "C": 1, "H": 1}
ParallelMap = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
Stage = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class ProvingKey:
    """A proving key as a prover keeps it, on whatever device: shared by all workers, never changed.

    ``level`` names the kernels; ``header`` maps alpha1, ... delta2 to rows; ``seconds`` says how long loading
    took. A device's own key says how it transforms (``quotient``) and how it adds points (``multiply``).
    """

    name: str
    sha256: str
    level: str
    n_vars: int
    n_public: int
    domain: Any
    coefficients: np.ndarray
    bases: dict[str, Any]
    header: dict[str, np.ndarray]
    verifier: Verifier
    seconds: float

    def sums(
        self, values: np.ndarray, run: ParallelMap, buffers: threading.local, stage: Stage
    ) -> dict[str, np.ndarray]:
        """The five sums of multiples that a proof is made of, by section, as affine rows with R = 2^256.

        values   [n_vars, 4] uint64, the witness
        run      ``map`` or a pool's;  buffers  work space of the calling worker;  stage  times each step
        """
        with stage("sparse products"):
            a, b = (rows.zeros(self.domain.size, 32) for _ in range(2))
            kernels, at = programs.scalar(), rows.address
            kernels.sparse_products(at(self.coefficients), len(self.coefficients), at(values), at(a), at(b))
        with stage("transforms"):
            quotient = self.quotient(a, b, run)
        scalars = {"A": values, "B1": values, "B2": values, "C": values[self.n_public + 1 :], "H": quotient}
        sums = {}
        for section in self.bases:
            with stage(f"msm {section}"):
                sums[section] = self.multiply(section, scalars[section], run, buffers)
        return sums

    def quotient(self, a: np.ndarray, b: np.ndarray, run: ParallelMap) -> np.ndarray:
        """[domain, 4] plain rows of a*b - c on the odd coset, from A*w and B*w on the domain."""
        raise NotImplementedError

    def multiply(
        self, section: str, scalars: np.ndarray, run: ParallelMap, buffers: threading.local
    ) -> np.ndarray:
        """sum of scalars[i] * point i of a section."""
        raise NotImplementedError


class CpuKey(ProvingKey):  # pyrefly: ignore  # its own __slots__ are none
    """A key for the CPU's kernels of one instruction level."""

    __slots__ = ()

    @classmethod
    def load(cls, key: ZKey, level: str) -> "CpuKey":
        """Check every point of ``key`` and convert it. The sections of ``key`` are released one by one.

        Raises FormatError naming section and byte for a point off its curve, with a coordinate not below q,
        or outside the subgroup (B2; overlooked with probability below 2 * 10^-8, see
        ``find_outside_subgroup``).
        """
        started = time.perf_counter()
        bases = dict(checked_bases(key, level))
        domain = Domain(key.domain_size, level)
        return cls(
            level=level, domain=domain, bases=bases, seconds=time.perf_counter() - started, **facts_of(key)
        )

    def quotient(self, a: np.ndarray, b: np.ndarray, run: ParallelMap) -> np.ndarray:
        c = rows.empty(self.domain.size, 32)
        programs.scalar().multiply_rows(*map(rows.address, (a, b, c)), self.domain.size)
        return self.domain.quotient(a, b, c, run)

    def multiply(
        self, section: str, scalars: np.ndarray, run: ParallelMap, buffers: threading.local
    ) -> np.ndarray:
        return msm.multiply(self.bases[section], scalars, run, buffers=buffers)


def checked_bases(key: ZKey, level: str) -> Iterator[tuple[str, msm.Bases]]:
    """Each section's points, checked, in the form of ``level``; the section of ``key`` is released.

    Raises as ``CpuKey.load``.
    """
    for section, degree in SECTIONS.items():
        where = key.where(section)
        bases = msm.Bases.load(key.sections.pop(section), degree, level, where)
        if degree == 2:
            position = find_outside_subgroup(bases)
            if position is not None:
                raise FormatError(where(position, "is not in the subgroup of order r"))
        yield section, bases


def facts_of(key: ZKey) -> dict[str, Any]:
    """The fields of ``ProvingKey`` that do not depend on a device."""
    header = {name: point_rows([getattr(key, name)], 1) for name in ("alpha1", "beta1", "delta1")}
    header |= {name: point_rows([getattr(key, name)], 2) for name in ("beta2", "delta2")}
    return {
        "name": key.name,
        "sha256": key.sha256,
        "n_vars": key.n_vars,
        "n_public": key.n_public,
        "coefficients": key.coefficients,
        "header": header,
        "verifier": Verifier(key.verification_key, is_checked=True),
    }


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
