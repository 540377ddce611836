"""An outside check: snarkjs accepts our proofs, our set-up's keys prove there, and we accept what it proves.

Needs node and snarkjs in ./node_modules, where scripts/setup.py puts it.
"""

import importlib.util
import json
import subprocess
import sys

import pytest
from node_calls import ROOT, has

from evenload.zk import Proof, Prover, verify, write_witness, write_zkey
from evenload.zk.circuits import poseidon_inclusion
from evenload.zk.circuits.builder import CircuitBuilder
from evenload.zk.circuits.merkle import inclusion_inputs
from evenload.zk.devsetup import dev_setup
from evenload.zk.formats.r1cs import write_r1cs
from evenload.zk.formats.witness import witness_from_integers
from evenload.zk.groth16 import public_from_json, public_to_json
from evenload.zk.solidity import calldata_text


def sentence():
    """What the set-up script says where it could not install snarkjs."""
    spec = importlib.util.spec_from_file_location("evenload_setup", ROOT / "scripts" / "setup.py")
    setup = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = setup  # dataclasses look their module up
    spec.loader.exec_module(setup)
    return setup.SNARKJS.without


pytestmark = pytest.mark.skipif(not has("snarkjs"), reason=sentence())


def snarkjs(*arguments):
    """Its command, as a user types it."""
    command = ["node", str(ROOT / "node_modules" / "snarkjs" / "build" / "cli.cjs"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_verifies_our_proofs(circuit, node):
    """Of both back ends: each makes the oracle's proof bit for bit, where their tests are."""
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    with Prover(circuit / "circuit.zkey") as prover:
        done = prover.prove(circuit / "witness.wtns")
        assert prover.stats.n_redone == 0
    texts = (circuit / "vkey.json").read_text(), public_to_json(done.public), done.proof.to_json()
    assert node("snarkjs", "groth16.verify", *map(json.loads, texts)) is True


def test_it_proves_with_keys_and_circuits_of_ours(tmp_path, node):
    circuit = poseidon_inclusion(2)
    inputs, root = inclusion_inputs(5, [6, 7], 2)
    r1cs = circuit.r1cs()
    key = dev_setup(r1cs, seed="snarkjs")
    constraints, witness, zkey = [str(tmp_path / name) for name in ("c.r1cs", "w.wtns", "k.zkey")]
    write_r1cs(constraints, r1cs)
    write_witness(witness, witness_from_integers(circuit.solve(inputs)))
    write_zkey(zkey, key)
    assert node("snarkjs", "wtns.check", constraints, witness) is True
    made = node("snarkjs", "groth16.prove", zkey, witness)
    public = public_from_json(json.dumps(made["publicSignals"]))
    assert public == [root]
    assert verify(key.verification_key, public, Proof.from_json(json.dumps(made["proof"])))
    exported = node("snarkjs", "zKey.exportVerificationKey", zkey)
    assert exported == json.loads(key.verification_key.to_json())


def test_it_writes_no_public_input_as_we_do(tmp_path, node):
    builder = CircuitBuilder()
    square = builder.product(x := builder.private_input("x"), x)
    builder.enforce(square, x, square * 3)
    r1cs = builder.r1cs()
    key, witness = tmp_path / "k.zkey", tmp_path / "w.wtns"
    write_zkey(key, dev_setup(r1cs, seed="no public input"))
    write_witness(witness, witness_from_integers(builder.solve({"x": 3})))
    proof, public = tmp_path / "proof.json", tmp_path / "public.json"
    snarkjs("groth16", "prove", key, witness, proof, public)
    assert public.read_text() == public_to_json([])
    with Prover(key) as prover:
        assert verify(prover.verification_key, [], Proof.from_json(proof.read_text()))
        done = prover.prove(witness)
    texts = prover.verification_key.to_json(), public_to_json(done.public), done.proof.to_json()
    assert node("snarkjs", "groth16.verify", *map(json.loads, texts)) is True


def test_calldata_is_its_text(circuit, node):
    """The oracle is the text that snarkjs exports."""
    public, proof = ((circuit / name).read_text() for name in ("public.json", "proof.json"))
    ours = calldata_text(public_from_json(public), Proof.from_json(proof))
    assert ours == node("snarkjs", "groth16.exportSolidityCallData", json.loads(proof), json.loads(public))
