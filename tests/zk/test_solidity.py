"""The contract, compiled by solc and run by an EVM, says of each proof what ``verify`` says."""

import dataclasses
from pathlib import Path

import pytest
from node_calls import has

from evenload.errors import ConfigError
from evenload.gpu.field import FQ, FR
from evenload.zk import Proof, VerificationKey, verify
from evenload.zk.bn254.plain_curve import G1, G2
from evenload.zk.groth16 import public_from_json
from evenload.zk.solidity import verifier_contract

DATA = Path(__file__).parents[1] / "data" / "zk"


@pytest.fixture(scope="module")
def run(node):
    if not has("solc", "@ethereumjs/evm"):
        pytest.skip("no solc or EVM of npm (python scripts/setup.py dev)")

    def run(source, calls, name="Groth16Verifier"):
        page = node("contract", source, name, calls)
        assert page["faults"] == []
        return page

    return run


def load(name):
    folder = DATA / name
    key = VerificationKey.from_json((folder / "vkey.json").read_bytes())
    public = public_from_json((folder / "public.json").read_bytes())
    return key, public, Proof.from_json((folder / "proof.json").read_bytes())


def words(proof, public):
    """The calldata, as snarkjs's export has it, in decimal."""
    g2 = proof.b or ((0, 0), (0, 0))
    b = [g2[0][1], g2[0][0], g2[1][1], g2[1][0]]
    return [str(word) for word in (*(proof.a or (0, 0)), *b, *(proof.c or (0, 0)), *public)]


def test_the_contract_agrees_with_verify(run, twist_point):
    key, public, proof = load("public8")
    a, b, c = proof.a, proof.b, proof.c
    spoilt = [
        (proof, public),
        (Proof(G1.negate(a), G2.negate(b), c), public),
        (Proof(G1.multiply(a, 7), G2.multiply(b, pow(7, -1, FR.modulus)), c), public),
        (proof, [(public[0] + 1) % FR.modulus, *public[1:]]),
        (proof, [public[0] + FR.modulus, *public[1:]]),
        (proof, [*public[:-1], 2**256 - 1]),
        (Proof(c, b, a), public),
        (Proof((a[0], a[1] ^ 1), b, c), public),
        (Proof((a[0] + FQ.modulus, a[1]), b, c), public),
        (Proof(a, b, (c[0], c[1] + FQ.modulus)), public),
        (Proof(a, twist_point, c), public),
        (Proof(None, b, c), public),
        (Proof(a, None, c), public),
        (Proof(a, b, None), public),
        (Proof(None, None, None), [0] * len(public)),
    ]
    page = run(verifier_contract(key), [words(*one) for one in spoilt])
    assert page["methods"] == [f"verifyProof(uint256[2],uint256[2][2],uint256[2],uint256[{len(public)}])"]
    expected = [verify(key, values, candidate) for candidate, values in spoilt]
    assert expected[:3] == [True] * 3
    assert [answer for answer, _ in page["answers"]] == expected


def test_a_key_without_public_inputs_and_bad_names_are_refused():
    key = load("multiplier")[0]
    for name in ("", "1x", "a b", "a;b", "x" * 101, "é"):
        with pytest.raises(ConfigError, match="cannot be called"):
            verifier_contract(key, name)
    with pytest.raises(ConfigError, match="no public input"):
        verifier_contract(dataclasses.replace(key, ic=key.ic[:1]))
