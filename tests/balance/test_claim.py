"""``claim``: numbers as a reader of the file sees them, never better than the evidence."""

from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evenload.balance.claim import claim, exact, rounded_down, rounded_up
from evenload.errors import ConfigError

values = st.one_of(st.fractions(0, 10**12), st.integers(0, 10**17))


@given(values)
def test_roundings_are_on_their_side_and_near(value):
    up, down = exact(rounded_up(value)), exact(rounded_down(value))
    assert down <= value <= up
    assert up - down <= Fraction(3, 10**9) + value / 10**15


def test_what_its_evidence_does_not_prove_is_not_given_away():
    with pytest.raises(ConfigError, match="this placement cannot be certified"):
        claim("placement", "x", 2, 1, {"slot2gpu": [], "speeds": [], "layers": []})
