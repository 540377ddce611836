"""One worker: a witness and a loaded key to a proof that was verified.

Time depends on the witness (bucket methods branch on its digits; the blinding does not): prove where nobody
untrusted can measure. Blinding comes from the operating system for every proof, also when a proof is made a
second time.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenload.errors import ConfigError, EvenloadError
from evenload.gpu.field import FR
from evenload.gpu.llvm import rows
from evenload.zk.bn254.plain_curve import point_of
from evenload.zk.cpu import points
from evenload.zk.formats.witness import check_witness, read_witness, witness_from_integers
from evenload.zk.groth16 import Proof
from evenload.zk.key import CpuKey, ParallelMap, ProvingKey

R = FR.modulus
Witness = Any  # a path or bytes of .wtns, [n, 4] uint64, or integers


class InvalidProof(EvenloadError):
    """A proof did not verify, also when made once more on the reference path; it was not given out."""


@dataclass(frozen=True, slots=True)
class ProveRequest:
    """One statement to prove.

    witness   a path, the bytes of a .wtns file, [n, 4] uint64 words, or a sequence of integers
    public    public inputs that the caller expects; compared with those in the witness
    priority  higher ones first; equal ones in the order given
    timeout_s  for the time from submission on; checked between the stages of a proof
    """

    witness: Witness
    public: Sequence[int] | None = None
    priority: int = 0
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProvedStatement:
    """A verified proof, its public inputs, and the seconds (wall) that each stage took."""

    proof: Proof
    public: tuple[int, ...]
    stages: dict[str, float]


@dataclass(slots=True)
class ProverStats:
    """Counts of one worker."""

    n_proved: int = 0
    n_failed: int = 0
    n_redone: int = 0
    prove_s: float = 0.0
    stages_s: dict[str, float] = field(default_factory=dict)

    def count(self, stages_s: Mapping[str, float], took_s: float) -> None:
        """One more proof."""
        self.n_proved += 1
        self.prove_s += took_s
        for name, seconds in stages_s.items():
            self.stages_s[name] = self.stages_s.get(name, 0.0) + seconds

    def count_result(self, result: ProvedStatement | Exception) -> None:
        """One more proof, or failure, of another process."""
        if isinstance(result, Exception):
            self.n_failed += 1
            return
        self.count(result.stages, sum(result.stages.values()))
        self.n_redone += "reference" in result.stages


class StageTimer:
    """A timer of a proof's stages; ``check`` is called before each and may raise to stop."""

    def __init__(self, check: Callable[[], None] | None = None):
        self.seconds: dict[str, float] = {}
        self._check = check

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self._check:
            self._check()
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


class ProofWorker:
    """A worker that proves with one loaded key, on the calling thread or a pool's, with its own buffers. Not
    for two threads at once.

    reference  loads the key anew, for the plain kernels; ``distrust`` is called if only these made a proof
    """

    def __init__(
        self,
        key: ProvingKey,
        reference: Callable[[], CpuKey],
        run: ParallelMap = map,
        distrust: Callable[[], None] | None = None,
    ):
        self.key, self.stats = key, ProverStats()
        self._distrust = distrust
        self._reference, self._run = reference, run
        self._buffers = threading.local()

    def prove(
        self,
        witness: Witness,
        public: Sequence[int] | None = None,
        check: Callable[[], None] | None = None,
    ) -> ProvedStatement:
        """Prove and verify.

        Raises FormatError for a damaged witness, ConfigError if it does not fit the key or the expected
        public inputs, InvalidProof if the proof does not verify (most often: the witness does not satisfy the
        circuit). ``check`` is called between stages and may raise to give up.
        """
        started, stages = time.perf_counter(), StageTimer(check)
        try:
            with stages("witness"):
                values = load_witness(witness, self.key.n_vars, self.key.name)
                statement = self._public(values, public)
            proof = self._prove_verified(values, statement, stages)
        except BaseException:
            self.stats.n_failed += 1
            raise
        self.stats.count(stages.seconds, time.perf_counter() - started)
        return ProvedStatement(proof, statement, stages.seconds)

    def _public(self, values: np.ndarray, expected: Sequence[int] | None) -> tuple[int, ...]:
        public = tuple(rows.to_integers(values[1 : self.key.n_public + 1]))
        if expected is not None and tuple(expected) != public:
            first = next(
                (k for k, pair in enumerate(zip(expected, public, strict=False)) if pair[0] != pair[1]), None
            )
            what = (
                f"number {first} differs"
                if first is not None
                else f"{len(expected)} instead of {len(public)}"
            )
            raise ConfigError(f"the expected public inputs are not those of the witness: {what}")
        return public

    def _prove_verified(self, values: np.ndarray, public: tuple[int, ...], stages: StageTimer) -> Proof:
        proof = prove_unverified(self.key, values, self._run, self._buffers, stages)
        with stages("verify"):
            why = self.key.verifier.why_not(public, proof)
        if why is None:
            return proof
        self.stats.n_redone += 1
        with stages("reference"):
            proof = prove_unverified(self._reference(), values, map, threading.local(), StageTimer())
            still = self.key.verifier.why_not(public, proof)
        if still is None:
            if self._distrust:
                self._distrust()
            return proof
        raise InvalidProof(
            f"the proof does not verify under {self.key.name}: {still}",
            hint="check that the witness satisfies the circuit that the key was made for",
        )


def load_witness(witness: Witness, n_vars: int, key_name: str) -> np.ndarray:
    """[n_vars, 4] uint64 on a cache line, canonical. Raises FormatError or ConfigError."""

    def accept(n: int) -> None:
        check_length(n, n_vars, key_name)

    if isinstance(witness, np.ndarray):
        if witness.ndim != 2 or witness.shape[1] != 4 or witness.dtype != np.uint64 or not len(witness):
            raise ConfigError(f"a witness array must be [n, 4] uint64, not {witness.shape} {witness.dtype}")
        values = witness
        check_witness(values)
    elif isinstance(witness, (list, tuple)):
        values = witness_from_integers(witness)
    else:
        values = read_witness(witness, accept=accept)
    accept(len(values))
    return rows.aligned(values)


def check_length(n: int, n_vars: int, key_name: str) -> None:
    """Raise ConfigError unless a witness of ``n`` values fits a key of ``n_vars`` wires."""
    if n != n_vars:
        raise ConfigError(
            f"the witness has {n} values, {key_name} needs {n_vars}",
            hint="the witness and the key must come from the same circuit",
        )


def prove_unverified(
    key: ProvingKey, values: np.ndarray, run: ParallelMap, buffers: threading.local, stages: StageTimer
) -> Proof:
    """The proving steps: what the key's device does, and blinding, which is always done here."""
    sums = key.sums(values, run, buffers, stages)
    with stages("blinding"):
        return _blind(key, sums)


def _blind(key: ProvingKey, sums: dict[str, np.ndarray]) -> Proof:
    r, s = secrets.randbelow(R), secrets.randbelow(R)
    head = key.header

    def combine(degree: int, *terms: tuple[np.ndarray, int]) -> np.ndarray:
        stacked = np.stack([point.reshape(-1) for point, _ in terms])
        return points.combine(degree, stacked, [scalar for _, scalar in terms])

    a = combine(1, (sums["A"], 1), (head["alpha1"], 1), (head["delta1"], r))
    b = combine(2, (sums["B2"], 1), (head["beta2"], 1), (head["delta2"], s))
    b1 = combine(1, (sums["B1"], 1), (head["beta1"], 1), (head["delta1"], s))
    c = combine(1, (sums["C"], 1), (sums["H"], 1), (a, s), (b1, r), (head["delta1"], -r * s % R))
    return Proof(point_of(a), point_of(b), point_of(c))
