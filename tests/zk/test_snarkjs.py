"""An outside check: snarkjs accepts our proofs, our set-up's keys prove there, and we accept what it proves.

Needs node and snarkjs: EVENLOAD_SNARKJS=cli.cjs, in ./node_modules (where scripts/setup.py puts it), or on
the path.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evenload.zk import Proof, Prover, verify, write_witness, write_zkey
from evenload.zk.circuits import poseidon_inclusion
from evenload.zk.circuits.builder import CircuitBuilder
from evenload.zk.circuits.merkle import inclusion_inputs
from evenload.zk.devsetup import dev_setup
from evenload.zk.formats.r1cs import write_r1cs
from evenload.zk.formats.witness import witness_from_integers
from evenload.zk.groth16 import public_from_json, public_to_json

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / "node_modules" / "snarkjs" / "build" / "cli.cjs"


def command():
    if chosen := os.environ.get("EVENLOAD_SNARKJS"):
        return ["node", chosen]
    if INSTALLED.exists() and shutil.which("node"):
        return ["node", str(INSTALLED)]
    found = shutil.which("snarkjs")
    return [found] if found else None


def sentence():
    """What the set-up script says where it could not install snarkjs."""
    spec = importlib.util.spec_from_file_location("evenload_setup", ROOT / "scripts" / "setup.py")
    setup = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = setup  # dataclasses look their module up
    spec.loader.exec_module(setup)
    return setup.SNARKJS.without


pytestmark = pytest.mark.skipif(command() is None, reason=sentence())


def snarkjs(*arguments):
    done = subprocess.run([*command(), *map(str, arguments)], capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(params=["cpu", "wgsl"])
def backend(request):
    pytest.importorskip("llvmlite", reason="the kernels extra is not installed")
    return request.getfixturevalue("gpu") if request.param == "wgsl" else "cpu"  # skips without an adapter


def test_it_verifies_our_proofs_from_both_back_ends(circuit, backend, tmp_path):
    with Prover(circuit / "circuit.zkey", backend) as prover:
        done = prover.prove(circuit / "witness.wtns")
        assert prover.stats.n_redone == 0
    (tmp_path / "proof.json").write_text(done.proof.to_json())
    (tmp_path / "public.json").write_text(public_to_json(done.public))
    said = snarkjs(
        "groth16", "verify", circuit / "vkey.json", tmp_path / "public.json", tmp_path / "proof.json"
    )
    assert "OK!" in said


def test_it_proves_with_keys_and_circuits_of_ours(tmp_path):
    circuit = poseidon_inclusion(2)
    inputs, root = inclusion_inputs(5, [6, 7], 2)
    r1cs = circuit.r1cs()
    key = dev_setup(r1cs, seed="snarkjs")
    paths = {name: tmp_path / name for name in ("c.r1cs", "w.wtns", "k.zkey", "v.json", "p.json", "pub.json")}
    write_r1cs(paths["c.r1cs"], r1cs)
    write_witness(paths["w.wtns"], witness_from_integers(circuit.solve(inputs)))
    write_zkey(paths["k.zkey"], key)
    snarkjs("wtns", "check", paths["c.r1cs"], paths["w.wtns"])
    snarkjs("groth16", "prove", paths["k.zkey"], paths["w.wtns"], paths["p.json"], paths["pub.json"])
    public = public_from_json(paths["pub.json"].read_text())
    assert public == [root]
    assert verify(key.verification_key, public, Proof.from_json(paths["p.json"].read_text()))
    snarkjs("zkey", "export", "verificationkey", paths["k.zkey"], paths["v.json"])
    assert json.loads(paths["v.json"].read_text()) == json.loads(key.verification_key.to_json())


def test_it_writes_no_public_input_as_we_do(tmp_path):
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
    proof.write_text(done.proof.to_json())
    public.write_text(public_to_json(done.public))
    vkey = tmp_path / "v.json"
    vkey.write_text(prover.verification_key.to_json())
    assert "OK!" in snarkjs("groth16", "verify", vkey, public, proof)
