"""Tests ``verify`` and the readers of JSON with what strangers hand in: an answer, never a crash."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload._bounded_json import MAX_JSON_BYTES
from evenload.errors import FormatError
from evenload.gpu.field import FQ, FR
from evenload.zk import Proof, VerificationKey, verify
from evenload.zk import verifier as verifier_module
from evenload.zk.groth16 import public_from_json, public_to_json
from evenload.zk.verifier import Verifier

Q, R = FQ.modulus, FR.modulus
DATA = Path(__file__).parents[1] / "data" / "zk" / "multiplier"


@pytest.fixture(params=["kernels", "oracle"])
def way(request, monkeypatch):
    """Both ways to verify: compiled, and without the extra."""
    if request.param == "oracle":
        monkeypatch.setattr(verifier_module, "is_installed", lambda _: False)
    else:
        pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    return request.param


@pytest.fixture(scope="module")
def valid():
    """A key, public inputs and a proof that go together; the public input is 33."""
    key = VerificationKey.from_json((DATA / "vkey.json").read_bytes())
    public = public_from_json((DATA / "public.json").read_bytes())
    assert public == [33]
    return key, public, Proof.from_json((DATA / "proof.json").read_bytes())


@pytest.fixture(scope="module")
def checker(valid):
    return Verifier(valid[0])


class Hostile:
    """An object that raises whatever is done with it."""

    def __getattribute__(self, name):
        raise RuntimeError("no")

    def __repr__(self):
        raise RuntimeError("no")

    def __len__(self):
        raise RuntimeError("no")

    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = object.__hash__


class HostileList(list):
    """A list of one element that raises when it is read."""

    def __iter__(self):
        raise RuntimeError("no")


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
    "space": [" 33"],
    "underscore": ["3_3"],
    "hexadecimal": ["0x21"],
    "exponent": ["33e0"],
    "other digits": ["\u0663\u0663"],
    "empty string": [""],
    "bytes": [b"33"],
    "float": [33.0],
    "nan": [float("nan")],
    "infinity": [float("inf")],
    "complex": [33 + 0j],
    "bool": [True],
    "none in a list": [None],
    "numpy integer": [np.int64(33)],
    "numpy string": [np.str_("33")],
    "numpy float": [np.float64(33)],
    "numpy array": np.array([33]),
    "numpy objects": np.array([33, None], object),
    "huge": [10**100_000],
    "huge and negative": [-(10**100_000)],
    "huge string": ["3" * 10**6],
    "alias": [33 + R],
    "alias as a string": [str(33 + R)],
    "nested list": [[33]],
    "dict": [{"33": 33}],
    "a dict": {0: 33},
    "a set": {33},
    "an iterator": iter([33]),
    "none": None,
    "a number": 33,
    "nothing": [],
    "too many": ["33"] * 10**6,
    "an object": object(),
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


def assert_refused(checker, public, proof):
    why_not = checker.why_not(public, proof)
    assert why_not
    assert len(why_not) <= 200
    assert why_not.isprintable()


def test_the_answer_is_false_and_the_reason_is_told_if_asked_for(way, valid):
    key, _, proof = valid
    for public in ([33.0], [np.int64(33)], [None], Hostile()):
        assert verify(key, public, proof) is False
    verdict = verify(key, ["033"], proof, explain=True)
    assert not verdict
    assert verdict.why_not == (
        "public input 0 is of type 'str', '033': write an int, or a decimal string as snarkjs does"
    )


@pytest.mark.parametrize("public", [["33"], ("33",), (33,)])
def test_integers_and_decimal_strings_are_accepted(way, valid, public):
    key, _, proof = valid
    assert verify(key, public, proof) is True
    verdict = verify(key, public, proof, explain=True)
    assert verdict
    assert verdict.why_not is None


def test_coordinates_may_be_decimal_strings_in_lists(way, valid):
    key, public, proof = valid
    a, b, c = ([str(x) for x in proof.a], [[str(x) for x in pair] for pair in proof.b], list(proof.c))
    assert verify(key, public, Proof(a, b, c))  # pyrefly: ignore
    assert verify(dataclasses.replace(key, alpha1=[str(x) for x in key.alpha1]), public, proof)


ODD_POINTS = {
    "none": None,
    "short": (1,),
    "long": (1, 2, 3),
    "empty": (),
    "flat": (1, 2),
    "short pairs": ((1,), (2,)),
    "long pairs": ((1, 2, 3), (1, 2, 3)),
    "floats": ((1.0, 2.0), (1.0, 2.0)),
    "nones": (None, None),
    "numpy": tuple(np.arange(4).reshape(2, 2)),
    "an array": np.arange(4).reshape(2, 2),
    "huge": ((10**100_000, 0), (0, 0)),
    "huge flat": (10**100_000, 0),
    "negative": (-1, 2),
    "q": (Q, Q),
    "text": "12",
    "a number": 7,
    "hostile": Hostile(),
    "hostile pair": (Hostile(), Hostile()),
    "a hostile list": HostileList([1, 2]),
}


@pytest.mark.parametrize("part", ["a", "b", "c"])
@pytest.mark.parametrize("name", ODD_POINTS)
def test_odd_points_are_refused_with_a_reason(checker, valid, part, name):
    _, public, proof = valid
    assert_refused(checker, public, dataclasses.replace(proof, **{part: ODD_POINTS[name]}))


def test_what_is_no_proof_is_refused_with_a_reason(checker, valid):
    for odd in (None, 1, "proof", {}, {"pi_a": []}, [1, 2, 3], object(), Proof, Hostile()):
        assert_refused(checker, valid[1], odd)


def test_odd_keys_are_format_errors(valid):
    key = valid[0]
    parts = [{"ic": ()}, {"ic": None}, {"ic": ((1,),)}, {"alpha1": (1.0, 2.0)}, {"beta2": 5}]
    for odd in (None, "key", Hostile(), *(dataclasses.replace(key, **part) for part in parts)):
        with pytest.raises(FormatError, match="verification key"):
            verify(odd, *valid[1:])


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


# --- texts and files ------------------------------------------------------------------------------
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


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol": LONG},
        {"protocol": "groth16", "curve": [LONG] * 10},
        {"protocol": "groth16", "curve": "bn128", "pi_a": [LONG, "1", "1"]},
        {"protocol": "groth16", "curve": "bn128", "nPublic": LONG, "IC": [1]},
        {"protocol": "groth16", "curve": "bn128", "nPublic": 10**4000, "IC": [1]},
    ],
)
def test_messages_quote_little_and_no_control_characters(fields):
    for read in READERS[:2]:
        with pytest.raises(FormatError) as caught:
            read(json.dumps(fields), "\x1b" + "s" * 1000)
        assert len(caught.value.message) <= 200 + 200
        assert caught.value.message.isprintable()


def test_messages_about_public_inputs_quote_little():
    for values in ([LONG], [[LONG]], [{LONG: LONG}], [10**4000]):
        with pytest.raises(FormatError) as caught:
            public_from_json(json.dumps(values), "p")
        assert len(caught.value.message) <= 200
        assert caught.value.message.isprintable()
