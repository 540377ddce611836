"""Tests what stages hand on as JSON. The oracle is Python's own json: what it writes and reads again."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.pipeline.json_values import MOST_LETTERS, batch_key_text, is_json, json_value

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
VALUES = st.recursive(
    LEAVES | st.binary(max_size=2),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4),
    ),
    max_leaves=12,
)


def lists(value: Any) -> Any:
    """The value with lists for its tuples."""
    if isinstance(value, dict):
        return {key: lists(part) for key, part in value.items()}
    return [lists(part) for part in value] if isinstance(value, list | tuple) else value


def read_back(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return ...


@given(value=VALUES)
def test_what_is_taken_comes_back_from_json_and_nothing_else_is(value: Any) -> None:
    if read_back(value) == lists(value):
        assert is_json(json_value(value))
        assert repr(json_value(value)) == repr(read_back(value))
    else:
        with pytest.raises(ConfigError):
            json_value(value)


def test_arrays_and_numbers_of_numpy_and_torch_are_lists_and_numbers() -> None:
    given_ = {
        "boxes": np.array([[1.5, 2]]),
        "n": np.int64(3),
        "is_cat": np.bool_(True),
        "x": torch.tensor([1, 2]),
        "y": torch.tensor(0.5),
        "t": (np.float32(0.5), None),
    }
    made = json_value(given_)
    assert made == {
        "boxes": [[1.5, 2.0]], "n": 3, "is_cat": True, "x": [1, 2], "y": 0.5, "t": [0.5, None]
    }  # fmt: skip
    assert type(made["is_cat"]) is bool


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([float("nan")], "nan, of type float"),
        ({1: "a"}, "the key 1, which is no text"),
        ([b"x"], "of type bytes"),
        (np.array([object()]), "of type object"),
        ([0.5] * MOST_LETTERS, "letters in JSON"),
    ],
)
def test_what_json_does_not_give_back_is_refused(value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        json_value(value)


def test_depth_has_an_end() -> None:
    endless: list = []
    endless.append(endless)
    assert not is_json(endless)
    with pytest.raises(ConfigError, match="deep"):
        json_value(endless)


# --- keys of batches: equal values give one text, others another, and nothing else passes --------------

PARTS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300)
KEYS = st.recursive(PARTS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


@given(KEYS, KEYS)
def test_texts_are_equal_where_the_keys_are(one, other) -> None:
    assert (batch_key_text(one) == batch_key_text(other)) == (repr(one) == repr(other))
    assert len(batch_key_text(one)) <= 200


def test_shapes_and_scalars_of_arrays_are_numbers() -> None:
    array = np.zeros((3, 4), "float32")
    assert batch_key_text(array.shape) == batch_key_text([np.int64(3), 4]) == "[3,4]"
    assert batch_key_text(np.float32(0.5)) == "0.5"


@pytest.mark.parametrize("odd", [{"x": 1}, {1}, b"x", object(), math.nan, np.zeros(3), [[[[[[[[[[1]]]]]]]]]]])
def test_what_cannot_be_compared_is_refused(odd) -> None:
    with pytest.raises(ConfigError, match="of type") as caught:
        batch_key_text(odd)
    assert "give a shape" in str(caught.value)
