"""Is a key one of a circuit? Keys and circuits of snarkjs and circom, whose pairs are known beforehand."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")

from pathlib import Path

from evenload.zk.formats.r1cs import read_r1cs
from evenload.zk.formats.zkey import read_zkey
from evenload.zk.key_terms import why_not_of

DATA = Path(__file__).parents[1] / "data" / "zk"
PAIRS = {path.parent.name: path for path in DATA.glob("*/*.r1cs") if (path.parent / "circuit.zkey").exists()}


def test_each_key_is_one_of_its_own_circuit_and_of_no_other():
    assert len(PAIRS) >= 2
    keys = {name: read_zkey(path.parent / "circuit.zkey") for name, path in PAIRS.items()}
    for name, path in PAIRS.items():
        circuit = read_r1cs(path)
        assert [other for other, key in keys.items() if why_not_of(key, circuit) is None] == [name]


def test_one_changed_term_is_found_and_named():
    path = PAIRS["multiplier"]
    key, circuit = read_zkey(path.parent / "circuit.zkey"), read_r1cs(path)
    in_key = np.flatnonzero(circuit.terms["matrix"] < 2)
    for place in in_key:
        terms = circuit.terms.copy()
        terms["value"][place, 0] += 2
        why_not = why_not_of(key, replace(circuit, terms=terms))
        row, wire = terms[place]["row"], terms[place]["wire"]
        assert why_not == f"constraint {row} differs at wire {wire} of its {'AB'[terms[place]['matrix']]}"
