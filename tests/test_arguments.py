"""Numbers and arrays of anybody are taken as what they are, or refused with what was given."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload._arguments import MOST_COUNT, MOST_S, array_of, instance_of, number, seconds, whole
from evenload.errors import ConfigError

ANY_WHOLE = st.integers(-(2**70), 2**70)


@given(ANY_WHOLE, ANY_WHOLE, ANY_WHOLE)
def test_a_whole_number_in_its_limits(value: int, least: int, most: int) -> None:
    if least <= value <= most:
        assert whole("n", value, least=least, most=most) == value
    else:
        with pytest.raises(ConfigError, match=r"^n is "):
            whole("n", value, least=least, most=most)


@given(ANY_WHOLE, ANY_WHOLE)
def test_a_count_without_limit_is_cut(value: int, least: int) -> None:
    if value >= least:
        assert whole("n", value, least=least, most=None) == min(value, MOST_COUNT)
    else:
        with pytest.raises(ConfigError, match=r"^n is "):
            whole("n", value, least=least, most=None)


@given(st.floats() | ANY_WHOLE)
def test_seconds_are_above_zero_and_may_be_infinite(value: float) -> None:
    if value > 0:
        assert seconds("s", value) == min(float(value), MOST_S)
    else:
        with pytest.raises(ConfigError, match="leaves no time"):
            seconds("s", value)


@given(st.floats())
def test_a_finite_number_from_zero_up(value: float) -> None:
    if 0 <= value < float("inf"):
        assert number("x", np.float64(value)) == value
    else:
        with pytest.raises(ConfigError, match=r"^x is "):
            number("x", value)


def test_zero_may_be_refused() -> None:
    with pytest.raises(ConfigError, match="x is 0"):
        number("x", 0, is_zero_allowed=False)


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, np.ones(2, int)])
def test_what_is_no_whole_number(value: object) -> None:
    with pytest.raises(ConfigError, match="give a whole number"):
        whole("n", value)
    with pytest.raises(ConfigError, match="give a whole number of at least"):
        whole("n", value, most=None)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float16, np.float64])
def test_lists_and_arrays_are_the_same(dtype: type) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    assert array_of("a", array) is array
    np.testing.assert_array_equal(array_of("a", array.tolist()), array)


@pytest.mark.parametrize("value", [[[1], [2, 3]], ["a"], [None], 1j, object()])
def test_what_is_no_array(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^a "):
        array_of("a", value)


def test_an_instance() -> None:
    assert instance_of("n", 3, int, "an int") == 3
    with pytest.raises(ConfigError, match="n is '3'") as caught:
        instance_of("n", "3", int, "an int")
    assert caught.value.hint == "give an int"


DOORS = {
    "map": ("evenload", ("fn", "items")),
    "Executor": ("evenload", ()),
    "gang": ("evenload", ("fn",)),
    "run_partitioned": ("evenload", ("fn", "array")),
    "Recipe": ("evenload.clients", ()),
    "train": ("evenload.clients", ("model", "datasets")),
    "federate": ("evenload.clients", ()),
    "sweep": ("evenload.clients", ()),
    "EvenBatches": ("evenload.training", ()),
}


@pytest.mark.parametrize("name", DOORS)
def test_a_misspelt_argument_is_told_the_one_that_was_meant(name):
    """A letter too many in any argument of a public door. The oracle is the signature that Python sees."""
    door = getattr(pytest.importorskip(DOORS[name][0]), name)
    kinds = inspect.Parameter
    for one in inspect.signature(door).parameters.values():
        if one.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY):
            with pytest.raises(TypeError, match=rf"{name}\(\) has no argument .*; did you mean {one.name}\?"):
                door(**{one.name + "x": 1})
    with pytest.raises(TypeError, match=rf"{name}\(\) has no argument '(qqqq)+'$"):
        door(qqqqqqqqqqqqqqqqqqqqqqqq=1)
