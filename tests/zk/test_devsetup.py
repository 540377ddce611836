"""The INSECURE set-up: keys that prove, made from circuits of ours and of circom, and that say what they
are."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reference import plain_prover as oracle

from evenload.gpu.field import FR
from evenload.gpu.llvm import rows
from evenload.zk import Prover, devsetup, read_witness, read_zkey, write_zkey
from evenload.zk.bn254.plain_curve import G1, point_of
from evenload.zk.circuits import squaring_chain
from evenload.zk.formats.r1cs import read_r1cs
from evenload.zk.key_terms import why_not_of

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")


def test_same_shape_as_the_key_that_snarkjs_made(circuit):
    """Sizes, coefficients and the places of infinity depend on the circuit alone."""
    official = read_zkey(circuit / "circuit.zkey")
    ours = devsetup.dev_setup(read_r1cs(circuit / f"{circuit.name}.r1cs"), seed="test")
    assert (ours.n_vars, ours.n_public, ours.domain_size) == (
        official.n_vars,
        official.n_public,
        official.domain_size,
    )
    sort = lambda records: sorted(record.tobytes() for record in records)  # noqa: E731
    assert sort(ours.coefficients) == sort(official.coefficients)
    for name, points in official.sections.items():
        assert (ours.sections[name].any(axis=1) == points.any(axis=1)).all()


def test_proofs_of_circom_circuits_verify_by_the_oracle(circuit):
    key = devsetup.dev_setup(read_r1cs(circuit / f"{circuit.name}.r1cs"))
    with Prover(key) as prover:
        done = prover.prove(circuit / "witness.wtns")
    assert oracle.verify(key.verification_key, done.public, done.proof)
    witness = rows.to_integers(read_witness(circuit / "witness.wtns"))
    if len(witness) < 70:
        assert oracle.verify(key.verification_key, done.public, oracle.prove(key, witness))


def test_the_key_says_that_it_is_insecure_and_reads_back():
    circuit, witness = squaring_chain(3)
    target = io.BytesIO()
    write_zkey(target, devsetup.dev_setup(circuit))
    assert devsetup.WARNING.encode() in target.getvalue()
    with Prover(target.getvalue()) as prover:
        assert prover.prove(witness).public == (witness[1],)


def test_a_seed_gives_the_same_key_and_none_another():
    circuit, _ = squaring_chain(3)
    keys = [devsetup.dev_setup(circuit, seed) for seed in ("a", "a", "b", None, None)]
    assert keys[0].delta1 == keys[1].delta1
    assert len({key.delta1 for key in keys}) == 4


@pytest.mark.parametrize("n", [1, 300, 1 << 20])  # tables of three widths
def test_multiples_of_the_generator(n):
    scalars = [0, 1, 2, FR.modulus - 1, 1 << 253, 12345678901234567890]
    made = devsetup._Multiples(1, n).of(rows.from_integers(scalars))
    assert list(map(point_of, made)) == [G1.multiply(G1.generator, k) for k in scalars]


# --- is a key one of a circuit? Keys and circuits of snarkjs and circom, whose pairs are known beforehand
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
