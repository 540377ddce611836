"""What must be equal in a batch: equal values give one text, others another, and nothing else passes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.pipeline.json_values import batch_key_text

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300)
KEYS = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


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
