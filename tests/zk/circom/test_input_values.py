"""Inputs of circuits: what is accepted, and what is refused in one sentence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.errors import FormatError
from evenload.gpu.field import FR
from evenload.zk.circom.input_values import MOST_DEPTH, parse_inputs, signal_hash

R = FR.modulus


def nested(depth):
    return "[" * depth + "1" + "]" * depth


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": "3", "b": 4}', {"a": [3], "b": [4]}),
        ('{"a": [1, ["2", ["0x0F"]], [], 4]}', {"a": [1, 2, 15, 4]}),
        (f'{{"a": ["-1", -2, "{R}", "{R + 5}"]}}', {"a": [R - 1, R - 2, 0, 5]}),
        ("{}", {}),
        ('{"p": {"x": 1, "q": {"y": [2, 3]}}}', {"p.x": [1], "p.q.y": [2, 3]}),
        ('{"s": [[{"x": 1}], [{"x": 2}]], "p.x": 3}', {"s[0][0].x": [1], "s[1][0].x": [2], "p.x": [3]}),
        (f'{{"a": {nested(MOST_DEPTH)}}}', {"a": [1]}),
    ],
)
def test_values_are_flat_and_reduced(text, values):
    assert parse_inputs(text) == values


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "must be a JSON object"),
        ("{", "not JSON"),
        ('{"a": 1.5}', "signal 'a': 1.5 is no integer"),
        ('{"a": null}', "signal 'a': None is no integer"),
        ('{"a": true}', "signal 'a': True is no integer"),
        ('{"a": {"b": 1.5}}', "signal 'a.b': 1.5 is no integer"),
        ('{"a": [{"b": 1}, 2]}', "signal 'a': numbers among objects"),
        ('{"a": {"b": 1}, "a.b": 2}', "signal 'a.b' is given twice"),
        ('{"a": ' + '{"b": ' * 80 + "1" + "}" * 81, "objects nested deeper than 64"),
        ('{"a": ""}', "signal 'a': '' is no integer"),
        ('{"a": " 1"}', "' 1' is no integer"),
        ('{"a": "1e3"}', "'1e3' is no integer"),
        ('{"a": "\\u0661"}', "is no integer"),
        ('{"a": 9007199254740993}', "too large for a number of JSON"),
        (f'{{"a": {nested(MOST_DEPTH + 1)}}}', "nested deeper"),
        (f'{{"a": "{"9" * 5000}"}}', "is no integer"),
    ],
)
def test_what_is_no_input_is_refused(text, why):
    with pytest.raises(FormatError, match=why) as caught:
        parse_inputs(text, "input.json")
    assert str(caught.value).startswith("input.json")


lists = st.recursive(st.integers(0, 1000), lambda inner: st.lists(inner, max_size=5), max_leaves=30)


@given(lists)
def test_lists_are_flattened_in_their_order(value):
    def plain(part):
        return [leaf for one in part for leaf in plain(one)] if isinstance(part, list) else [part]

    assert parse_inputs(json.dumps({"a": value})) == {"a": plain(value)}


def test_the_hash_of_a_signal_is_fnv_1a():
    """The published value for "foobar"."""
    assert signal_hash("foobar") == (0x85944171, 0xF73967E8)
