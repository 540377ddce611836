"""Our circuits compute what they say, and the builder's solver and constraints agree."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.plain_prover import first_unsatisfied

from evenload.errors import ConfigError
from evenload.gpu.field import FR
from evenload.zk.circuits import CircuitBuilder, poseidon_inclusion, sha256_preimage, squaring_chain
from evenload.zk.circuits.merkle import inclusion_inputs
from evenload.zk.circuits.sha256 import sha256_inputs

R = FR.modulus


@pytest.mark.parametrize("message", [b"", b"abc"])
def test_sha256_circuit(message):
    circuit = sha256_preimage(len(message))
    witness, r1cs = circuit.solve(sha256_inputs(message)), circuit.r1cs()
    assert first_unsatisfied(r1cs, witness) is None
    assert witness[1] << 128 | witness[2] == int(hashlib.sha256(message).hexdigest(), 16)
    assert r1cs.n_public == 2


@settings(max_examples=5, deadline=None)
@given(st.integers(0, R - 1), st.lists(st.integers(0, R - 1), min_size=1, max_size=3), st.integers(0, 7))
def test_poseidon_membership(leaf, siblings, position):
    circuit = poseidon_inclusion(len(siblings))
    inputs, root = inclusion_inputs(leaf, siblings, position)
    witness, r1cs = circuit.solve(inputs), circuit.r1cs()
    assert first_unsatisfied(r1cs, witness) is None
    assert witness[1] == root
    witness[1] = (root + 1) % R
    assert first_unsatisfied(r1cs, witness) is not None
    assert first_unsatisfied(r1cs, circuit.solve({**inputs, "side0": 2})) is not None


def test_squaring_chain():
    circuit, witness = squaring_chain(20, start=3)
    assert witness[1] == pow(3, 2**20, R)
    assert first_unsatisfied(circuit, witness) is None
    assert (circuit.n_wires, circuit.n_public, circuit.n_constraints) == (22, 1, 20)


@given(st.integers(0, R - 1), st.integers(0, R - 1))
def test_sums_and_products(x, y):
    circuit = CircuitBuilder()
    a, b = circuit.public_input("a"), circuit.private_input("b")
    circuit.output(circuit.product(3 * a - 1, b + a) - 5)
    witness = circuit.solve({"a": x, "b": y})
    assert witness[1] == ((3 * x - 1) * (y + x) - 5) % R
    assert witness[2:4] == [x, y]
    assert first_unsatisfied(circuit.r1cs(), witness) is None


def test_bits_that_do_not_fit_do_not_satisfy():
    circuit = CircuitBuilder()
    circuit.bits(circuit.private_input("x"), 4)
    r1cs = circuit.r1cs()
    assert first_unsatisfied(r1cs, circuit.solve({"x": 15})) is None
    assert first_unsatisfied(r1cs, circuit.solve({"x": 16})) is not None


def test_names_of_inputs_must_match():
    circuit = CircuitBuilder()
    circuit.private_input("x")
    with pytest.raises(ConfigError, match="exists already"):
        circuit.public_input("x")
    with pytest.raises(ConfigError, match=r"missing \['x'\], unknown \['y'\]"):
        circuit.solve({"y": 1})
