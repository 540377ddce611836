"""Verification: snarkjs's proofs are accepted; what strangers hand in gets an answer, never a crash.

Aliases of public inputs, points that do not belong and odd objects are refused with a reason.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload._bounded_json import MAX_JSON_BYTES
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


@pytest.fixture(scope="module")
def valid():
    """A key, public inputs and a proof that go together; the public input is 33."""
    return load(DATA / "multiplier")


@pytest.fixture(scope="module")
def checker(valid):
    return Verifier(valid[0])


def test_proofs_of_snarkjs_verify(path, circuit):
    key, public, proof = load(circuit)
    assert verify(key, public, proof)
    assert proof.to_json() == (circuit / "proof.json").read_text()
    assert public_to_json(public) == (circuit / "public.json").read_text()


def test_each_part_matters(path, valid):
    key, public, proof = valid
    checker = Verifier(key)  # with the kernels or without
    other = G1.multiply(G1.generator, 7)
    wrong = [
        (public, dataclasses.replace(proof, a=other)),
        (public, dataclasses.replace(proof, b=G2.multiply(G2.generator, 7))),
        (public, dataclasses.replace(proof, c=other)),
        ([34], proof),
    ]
    for values, candidate in wrong:
        assert checker.why_not(values, candidate) == "the pairing equation does not hold"


def test_malleable_as_documented(path, valid):
    key, public, proof = valid
    assert verify(key, public, Proof(G1.negate(proof.a), G2.negate(proof.b), proof.c))


def test_aliases_and_foreign_points_are_refused(path, valid, twist_point):
    key, public, proof = valid
    checker = Verifier(key)
    assert "alias" in checker.why_not([public[0] + R], proof)
    assert "alias" in checker.why_not([-1], proof)
    assert "2 public inputs" in checker.why_not([1, 2], proof)
    x, y = proof.a
    assert "pi_a" in checker.why_not(public, dataclasses.replace(proof, a=(x + Q, y)))
    assert "pi_a" in checker.why_not(public, dataclasses.replace(proof, a=(x, y + 1)))
    assert "pi_c is infinity" in checker.why_not(public, dataclasses.replace(proof, c=None))
    assert "subgroup" in checker.why_not(public, dataclasses.replace(proof, b=twist_point))


def refuse(*_):
    raise RuntimeError("no")


class Hostile:
    """An object that raises whatever is done with it."""

    __getattribute__ = __repr__ = __len__ = __eq__ = refuse
    __hash__ = object.__hash__


class HostileList(list):
    """A list of one element that raises when it is read."""

    __iter__ = refuse


class Endless(list):
    """A list that claims one element and yields ever more of them."""

    def __iter__(self):
        while True:
            yield 33


ODD_PUBLIC = {
    "a string": "33",
    "a string in a string": ['"33"'],
    "leading zero": ["033"],
    "sign": ["+33"],
    "underscore": ["3_3"],
    "other digits": ["\u0663\u0663"],
    "float": [33.0],
    "infinity": [float("inf")],
    "bool": [True],
    "numpy integer": [np.int64(33)],
    "numpy array": np.array([33]),
    "huge": [10**100_000],
    "huge string": ["3" * 10**6],
    "alias": [33 + R],
    "alias as a string": [str(33 + R)],
    "dict": [{"33": 33}],
    "a set": {33},
    "an iterator": iter([33]),
    "nothing": [],
    "too many": ["33"] * 10**6,
    "a hostile object": Hostile(),
    "a hostile object in a list": [Hostile()],
    "a hostile list": HostileList([33]),
    "an endless list": Endless([33]),
    "control characters": ["\x1b[2J\x00\n"],
    "half of a pair": ["\ud800"],
}


@pytest.mark.parametrize("name", ODD_PUBLIC)
def test_odd_public_inputs_are_refused_with_a_reason(checker, valid, name):
    assert_refused(checker, ODD_PUBLIC[name], valid[2])


def test_bad_keys_are_refused(path, valid, twist_point):
    key, public, proof = valid
    changes = [
        {"alpha1": None},
        {"alpha1": (1, 3)},
        {"alpha1": (1.0, 2.0)},
        {"beta2": twist_point},
        {"beta2": 5},
    ]
    changes += [{"ic": ic} for ic in ((key.ic[0], (1, 3)), (), None, ((1,),))]
    for bad in (None, "key", Hostile(), *(dataclasses.replace(key, **change) for change in changes)):
        with pytest.raises(FormatError, match="verification key"):
            verify(bad, public, proof)


def assert_refused(checker, public, proof):
    why_not = checker.why_not(public, proof)
    assert why_not
    assert len(why_not) <= 200
    assert why_not.isprintable()


def test_the_answer_is_false_and_the_reason_is_told_if_asked_for(path, valid):
    key, _, proof = valid
    for public in ([33.0], [np.int64(33)], [None], Hostile()):
        assert verify(key, public, proof) is False
    verdict = verify(key, ["033"], proof, explain=True)
    assert not verdict
    assert verdict.why_not == (
        "public input 0 is of type 'str', '033': write an int, or a decimal string as snarkjs does"
    )


@pytest.mark.parametrize("public", [["33"], ("33",), (33,)])
def test_integers_and_decimal_strings_are_accepted(path, valid, public):
    key, _, proof = valid
    assert verify(key, public, proof) is True
    verdict = verify(key, public, proof, explain=True)
    assert verdict
    assert verdict.why_not is None


def test_coordinates_may_be_decimal_strings_in_lists(path, valid):
    key, public, proof = valid
    a, b, c = ([str(x) for x in proof.a], [[str(x) for x in pair] for pair in proof.b], list(proof.c))
    assert verify(key, public, Proof(a, b, c))  # pyrefly: ignore
    assert verify(dataclasses.replace(key, alpha1=[str(x) for x in key.alpha1]), public, proof)


ODD_POINTS = {
    "none": None,
    "short": (1,),
    "flat": (1, 2),
    "long pairs": ((1, 2, 3), (1, 2, 3)),
    "floats": ((1.0, 2.0), (1.0, 2.0)),
    "nones": (None, None),
    "an array": np.arange(4).reshape(2, 2),
    "huge": ((10**100_000, 0), (0, 0)),
    "negative": (-1, 2),
    "q": (Q, Q),
    "a number": 7,
    "hostile": Hostile(),
    "a hostile list": HostileList([1, 2]),
}


@pytest.mark.parametrize("name", ODD_POINTS)
def test_odd_points_are_refused_with_a_reason(checker, valid, name):
    _, public, proof = valid
    for part in "abc":
        assert_refused(checker, public, dataclasses.replace(proof, **{part: ODD_POINTS[name]}))


def test_what_is_no_proof_is_refused_with_a_reason(checker, valid):
    for odd in (None, 1, "proof", {}, {"pi_a": []}, [1, 2, 3], object(), Proof, Hostile()):
        assert_refused(checker, valid[1], odd)


LEAF = (
    st.none() | st.booleans() | st.integers() | st.integers(0, 2**256) | st.floats() | st.text() | st.binary()
    | st.integers().map(str) | st.integers(0, 2**63 - 1).map(np.uint64) | st.just(33) | st.just("33")
)  # fmt: skip
ODD = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Proof, inner, inner, inner)
    ),
    max_leaves=12,
)


@given(public=ODD, proof=ODD, part=st.sampled_from(["a", "b", "c", None]))
def test_random_objects_never_raise(checker: Any, valid: Any, public: Any, proof: Any, part: str | None):
    good = valid[2]
    candidates = [(public, proof), ([33], proof), (public, good)]
    if part:
        candidates.append(([33], dataclasses.replace(good, **{part: proof})))
    for values, candidate in candidates:
        why_not = checker.why_not(values, candidate)
        is_right = isinstance(values, list | tuple) and list(values) in ([33], ["33"]) and candidate is good
        assert (why_not is None) == (is_right and type(values[0]) in (int, str))
        assert why_not is None or (len(why_not) <= 200 and why_not.isprintable())


# --- many at once
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


@settings(max_examples=examples(25), deadline=None, database=None)
@given(spoilt=st.lists(st.tuples(st.sampled_from(sorted(SPOIL)), st.integers(1, R - 1)), max_size=12))
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


def test_many_without_the_extra(path, valid):
    key, public, proof = valid
    assert verify_many(key, [(public, proof), ([34], proof)]) == [True, False]
    assert verify_many(key, []) == []


def test_proofs_that_err_the_opposite_way_do_not_make_up_for_each_other(valid):
    """Their equations' product is one without powers drawn at random."""
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    key, public, proof = valid
    shift = G1.multiply(G1.generator, 5)
    wrong = [dataclasses.replace(proof, c=G1.add(proof.c, by)) for by in (shift, G1.negate(shift))]
    assert verify_many(key, [(public, one) for one in wrong]) == [False, False]


# --- texts and files
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


def test_no_public_input_is_written_as_snarkjs_writes_it():
    assert public_to_json([]) == "[\n]"
    assert public_from_json("[\n]") == []
    assert public_to_json((1, 2)) == '[\n "1",\n "2"\n]'


READERS = [Proof.from_json, VerificationKey.from_json, public_from_json]


@pytest.mark.parametrize("read", READERS)
def test_a_text_over_the_limit_is_not_parsed(read, monkeypatch):
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    for text in (b" " * (MAX_JSON_BYTES + 1), " " * (MAX_JSON_BYTES + 1)):
        with pytest.raises(FormatError, match="at most 10,000,000 bytes"):
            read(text)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("text", [None, 5, b"\xff\xfe\xff", "1" * 5000, "\x1b", '{"protocol": NaN}'])
def test_what_is_no_json_is_a_format_error(read, text):
    with pytest.raises(FormatError):
        read(text)


LONG = "\x1b]0;" + "x" * 100_000


def test_messages_quote_little_and_no_control_characters():
    groth16 = {"protocol": "groth16", "curve": "bn128"}
    pages = [(READERS[:2], {"protocol": LONG}), (READERS[:2], {**groth16, "curve": [LONG] * 10})]
    pages += [(READERS[:1], {**groth16, "pi_a": [LONG, "1", "1"]})]
    pages += [(READERS[1:2], {**groth16, "nPublic": n, "IC": [1]}) for n in (LONG, 10**4000)]
    pages += [(READERS[2:], values) for values in ([LONG], [[LONG]], [{LONG: LONG}], [10**4000])]
    for readers, page in pages:
        for read in readers:
            with pytest.raises(FormatError) as caught:
                read(json.dumps(page), "\x1b" + "s" * 1000)
            assert len(caught.value.message) <= 200 + 200
            assert caught.value.message.isprintable()
