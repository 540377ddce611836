"""Verification: snarkjs's proofs are accepted, aliases and points that do not belong are not."""

import dataclasses
import json
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
from examples_count import examples

from evenload.errors import FormatError
from evenload.gpu.field import FQ, FR
from evenload.zk import Proof, VerificationKey, verify, verify_many
from evenload.zk import verifier as verifier_module
from evenload.zk.bn254.plain_curve import G1, G2
from evenload.zk.groth16 import public_from_json, public_to_json
from evenload.zk.verifier import Verifier

DATA = Path(__file__).parents[1] / "data/zk"
Q, R = FQ.modulus, FR.modulus


@pytest.fixture(params=["kernels", "oracle"])
def path(request, monkeypatch):
    """Both ways to verify: compiled, and without the extra."""
    if request.param == "oracle":
        monkeypatch.setattr(verifier_module, "is_installed", lambda _: False)
    else:
        pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    return request.param


def load(folder):
    key = VerificationKey.from_json((folder / "vkey.json").read_bytes())
    proof = Proof.from_json((folder / "proof.json").read_bytes())
    return key, public_from_json((folder / "public.json").read_bytes()), proof


def test_proofs_of_snarkjs_verify(path, circuit):
    key, public, proof = load(circuit)
    assert verify(key, public, proof)
    assert proof.to_json() == (circuit / "proof.json").read_text()
    assert public_to_json(public) == (circuit / "public.json").read_text()


def test_each_part_matters(path, multiplier):
    key, public, proof = load(multiplier)
    checker = Verifier(key)
    other = G1.multiply(G1.generator, 7)
    wrong = [
        (public, dataclasses.replace(proof, a=other)),
        (public, dataclasses.replace(proof, b=G2.multiply(G2.generator, 7))),
        (public, dataclasses.replace(proof, c=other)),
        ([34], proof),
    ]
    for values, candidate in wrong:
        assert checker.why_not(values, candidate) == "the pairing equation does not hold"


def test_malleable_as_documented(path, multiplier):
    key, public, proof = load(multiplier)
    assert verify(key, public, Proof(G1.negate(proof.a), G2.negate(proof.b), proof.c))


def test_aliases_and_foreign_points_are_refused(path, multiplier, twist_point):
    key, public, proof = load(multiplier)
    checker = Verifier(key)
    assert "alias" in checker.why_not([public[0] + R], proof)
    assert "alias" in checker.why_not([-1], proof)
    assert "2 public inputs" in checker.why_not([1, 2], proof)
    x, y = proof.a
    assert "pi_a" in checker.why_not(public, dataclasses.replace(proof, a=(x + Q, y)))
    assert "pi_a" in checker.why_not(public, dataclasses.replace(proof, a=(x, y + 1)))
    assert "pi_c is infinity" in checker.why_not(public, dataclasses.replace(proof, c=None))
    assert "subgroup" in checker.why_not(public, dataclasses.replace(proof, b=twist_point))


def test_bad_keys_are_refused(path, multiplier, twist_point):
    key, _, _ = load(multiplier)
    for change in (
        {"alpha1": None},
        {"alpha1": (1, 3)},
        {"beta2": twist_point},
        {"ic": (key.ic[0], (1, 3))},
    ):
        with pytest.raises(FormatError, match="verification key"):
            Verifier(dataclasses.replace(key, **change))


def edited(folder, name, edit):
    fields = json.loads((folder / name).read_text())
    return json.dumps(edit(fields))


BAD_PROOFS = {
    "non-canonical": lambda f: {**f, "pi_a": [str(int(f["pi_a"][0]) + Q), *f["pi_a"][1:]]},
    "leading zero": lambda f: {**f, "pi_a": ["0" + f["pi_a"][0], *f["pi_a"][1:]]},
    "negative": lambda f: {**f, "pi_a": ["-1", *f["pi_a"][1:]]},
    "a number, not a string": lambda f: {**f, "pi_a": [1, *f["pi_a"][1:]]},
    "other digits": lambda f: {**f, "pi_a": ["\u0661", *f["pi_a"][1:]]},
    "a million digits": lambda f: {**f, "pi_a": ["1" * 10**6, *f["pi_a"][1:]]},
    "two coordinates": lambda f: {**f, "pi_a": f["pi_a"][:2]},
    "z of 2": lambda f: {**f, "pi_a": [*f["pi_a"][:2], "2"]},
    "z of (1, 1)": lambda f: {**f, "pi_b": [*f["pi_b"][:2], ["1", "1"]]},
    "no pi_c": lambda f: {k: v for k, v in f.items() if k != "pi_c"},
    "plonk": lambda f: {**f, "protocol": "plonk"},
    "another curve": lambda f: {**f, "curve": "bls12381"},
    "a list": lambda f: [f],
}


@pytest.mark.parametrize("name", BAD_PROOFS)
def test_bad_proof_files_are_refused(multiplier, name):
    with pytest.raises(FormatError) as caught:
        Proof.from_json(edited(multiplier, "proof.json", BAD_PROOFS[name]), source="p.json")
    assert str(caught.value).startswith("p.json")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '"x"', "{}", '[["1"]]', "[1]", f'["{R}"]', '["01"]', '["1e3"]']
)
def test_bad_public_files_are_refused(text):
    with pytest.raises(FormatError):
        public_from_json(text)


def test_rapidsnark_leaves_the_curve_out(multiplier):
    text = edited(multiplier, "proof.json", lambda f: {k: v for k, v in f.items() if k != "curve"})
    assert Proof.from_json(text) == load(multiplier)[2]


def test_bad_key_files_are_refused(multiplier):
    for edit in (
        lambda f: {**f, "IC": []},
        lambda f: {**f, "IC": f["IC"] * 2},
        lambda f: {**f, "nPublic": 7},
        lambda f: {k: v for k, v in f.items() if k != "curve"},
        lambda f: {**f, "vk_beta_2": f["vk_alpha_1"]},
    ):
        with pytest.raises(FormatError):
            VerificationKey.from_json(edited(multiplier, "vkey.json", edit))


def test_infinity_has_a_form():
    point = Proof(None, None, None)
    assert Proof.from_json(point.to_json()) == point


SPOIL = {
    "": lambda public, proof, _: (public, proof),
    "pairing equation": lambda public, proof, _: ([public[0] + 1, *public[1:]], proof),
    "the pairing equation": lambda public, proof, _: (public, dataclasses.replace(proof, c=proof.a)),
    "alias": lambda public, proof, _: ([public[0] + R, *public[1:]], proof),
    "subgroup": lambda public, proof, outside: (public, dataclasses.replace(proof, b=outside)),
    "infinity": lambda public, proof, _: (public, dataclasses.replace(proof, a=None)),
    "not a Proof": lambda public, proof, _: (public, "proof"),
    "where a pair belongs": lambda public, proof, _: (public, proof, 1),
}


@hypothesis.settings(max_examples=examples(25), deadline=None, database=None)
@hypothesis.given(
    spoilt=st.lists(st.tuples(st.sampled_from(sorted(SPOIL)), st.integers(1, R - 1)), max_size=12)
)
def test_many_are_answered_as_each_is(spoilt, twist_point):
    """Each statement with another proof of the same: (k a, b / k, c)."""
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    key, public, proof = load(DATA / "public8")
    statements = []
    for why, k in spoilt:
        a, b = G1.multiply(proof.a, k), G2.multiply(proof.b, pow(k, -1, R))
        statements.append(SPOIL[why](public, Proof(a, b, proof.c), twist_point))
    answers = verify_many(key, statements, explain=True)
    assert [bool(answer) for answer in answers] == [not why for why, _ in spoilt]
    assert all(why in answer.why_not for answer, (why, _) in zip(answers, spoilt, strict=True) if why)
    checker = Verifier(key)
    pairs = [one for one in statements if len(one) == 2]
    assert checker.why_not_each(pairs) == [checker.why_not(*one) for one in pairs]


def test_many_without_the_extra(path, multiplier):
    key, public, proof = load(multiplier)
    assert verify_many(key, [(public, proof), ([34], proof)]) == [True, False]
    assert verify_many(key, []) == []


def test_proofs_that_err_the_opposite_way_do_not_make_up_for_each_other(multiplier):
    """Their equations' product is one without powers drawn at random."""
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    key, public, proof = load(multiplier)
    shift = G1.multiply(G1.generator, 5)
    wrong = [dataclasses.replace(proof, c=G1.add(proof.c, by)) for by in (shift, G1.negate(shift))]
    assert verify_many(key, [(public, one) for one in wrong]) == [False, False]
