"""The .r1cs format: constraints (A w) * (B w) = C w over BN254's Fr, as circom writes it."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from evenload.gpu.field import FR
from evenload.gpu.llvm.rows import rows_not_below
from evenload.zk.formats.container import Container, Source, open_container, write_container
from evenload.zk.formats.zkey import COEFFICIENT

TITLES = {1: "header", 2: "constraints", 3: "labels", 4: "custom gates", 5: "custom gate uses"}
_HEADER_BYTES = 64


@dataclass(frozen=True, slots=True)
class R1cs:
    """A circuit. Wires: 0 the constant 1, then outputs, public inputs, private inputs, internal ones.

    terms  [n] COEFFICIENT records in order of constraints, A before B before C: matrix 0, 1, 2; row is the
           constraint; values plain (not Montgomery), below r
    """

    n_wires: int
    n_outputs: int
    n_public_inputs: int
    n_private_inputs: int
    n_constraints: int
    terms: np.ndarray

    @property
    def n_public(self) -> int:
        """Without the constant."""
        return self.n_outputs + self.n_public_inputs


def read_r1cs(source: Source, name: str | None = None) -> R1cs:
    """Read and check. Raises FormatError naming section and byte; custom gates (PlonK) are refused."""
    box = open_container(source, b"r1cs", 1, TITLES, name)
    try:
        sizes = _read_header(box)
        for gates in (4, 5):
            if gates in box.sections and box.length(gates) > 4:
                raise box.fault(gates, 0, "custom gates are not supported by Groth16")
        return R1cs(*sizes, terms=_read_terms(box, sizes[0], sizes[4]))
    finally:
        box.close()


def _read_header(box: Container) -> tuple[int, int, int, int, int]:
    if box.length(1) < 4 or struct.unpack("<I", box.read(1)[:4])[0] != 32 or box.length(1) != _HEADER_BYTES:
        raise box.fault(1, 0, "not a header over BN254", hint="circuits over other curves are not supported")
    header = box.read(1)
    if int.from_bytes(header[4:36], "little") != FR.modulus:
        raise box.fault(1, 4, "the prime is not that of BN254's Fr")
    n_wires, n_outputs, n_public, n_private, _, n_constraints = struct.unpack_from("<IIIIQI", header, 36)
    if 1 + n_outputs + n_public + n_private > n_wires:
        raise box.fault(1, 36, f"{n_wires} wires do not hold the constant, outputs and inputs")
    return n_wires, n_outputs, n_public, n_private, n_constraints


def _read_terms(box: Container, n_wires: int, n_constraints: int) -> np.ndarray:
    length = box.length(2)
    if length < 12 * n_constraints:
        raise box.fault(
            2, 0, f"holds {length} bytes, {n_constraints} constraints need at least {12 * n_constraints}"
        )
    content = box.read(2)
    counts, starts, at = [], [], 0
    for number in range(3 * n_constraints):
        if at + 4 > length:
            raise box.fault(2, at, f"ends before constraint {number // 3}")
        count = int.from_bytes(content[at : at + 4], "little")
        if count > (length - at - 4) // 36:
            raise box.fault(
                2, at, f"constraint {number // 3} claims {count} terms, more than there is room for"
            )
        counts.append(count)
        starts.append(at + 4)
        at += 4 + 36 * count
    if at != length:
        raise box.fault(2, at, f"{length - at} bytes after the last constraint")
    return _gather_terms(box, content, np.array(counts, np.int64), np.array(starts, np.int64), n_wires)


def _gather_terms(
    box: Container, content: bytes, counts: np.ndarray, starts: np.ndarray, n_wires: int
) -> np.ndarray:
    total = int(counts.sum())
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    offsets = np.repeat(starts, counts) + 36 * within
    words = np.frombuffer(content, np.uint32)
    gathered = words[(offsets // 4)[:, None] + np.arange(9)] if total else np.zeros((0, 9), np.uint32)
    terms = np.empty(total, COEFFICIENT)
    number = np.repeat(np.arange(len(counts)), counts)
    terms["matrix"], terms["row"] = number % 3, number // 3
    terms["wire"] = gathered[:, 0]
    terms["value"] = np.ascontiguousarray(gathered[:, 1:]).view(np.uint64)
    bad = np.flatnonzero(terms["wire"] >= n_wires)
    if len(bad):
        k = int(bad[0])
        raise box.fault(2, int(offsets[k]), f"wire {int(terms['wire'][k])} is not below {n_wires}")
    bad = rows_not_below(terms["value"], FR.modulus)
    if len(bad):
        raise box.fault(2, int(offsets[int(bad[0])]) + 4, "coefficient is not below r")
    return terms


def write_r1cs(target: str | Path | BinaryIO, circuit: R1cs) -> None:
    """Write ``circuit`` as .r1cs version 1; labels are the wires' own numbers."""
    header = struct.pack("<I", 32) + FR.modulus.to_bytes(32, "little")
    header += struct.pack(
        "<IIII", circuit.n_wires, circuit.n_outputs, circuit.n_public_inputs, circuit.n_private_inputs
    )
    header += struct.pack("<QI", circuit.n_wires, circuit.n_constraints)
    number = 3 * circuit.terms["row"].astype(np.int64) + circuit.terms["matrix"]
    order = np.argsort(number, kind="stable")
    counts = np.bincount(number, minlength=3 * circuit.n_constraints)
    words = np.empty(len(counts) + 9 * len(order), np.uint32)
    count_at = np.arange(len(counts)) + 9 * (np.cumsum(counts) - counts)
    words[count_at] = counts
    term_at = np.setdiff1d(np.arange(len(words)), count_at, assume_unique=True).reshape(-1, 9)
    terms = circuit.terms[order]
    words[term_at[:, 0]] = terms["wire"]
    words[term_at[:, 1:]] = np.ascontiguousarray(terms["value"]).view(np.uint32).reshape(-1, 8)
    labels = np.arange(circuit.n_wires, dtype="<u8")
    return write_container(target, b"r1cs", 1, [(2, [words.data]), (1, [header]), (3, [labels.data])])
