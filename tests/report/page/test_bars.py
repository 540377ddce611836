"""Bins that double their width hold what a table made in one go would."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evenload.report.page.bars import Bins

N = 8
moments = st.tuples(st.floats(0, 1e4), st.integers(0, 9))


@given(st.lists(moments, min_size=1, max_size=30))
def test_bins_are_those_of_their_last_width_from_the_beginning(given):
    """Oracle: each bin filled by a plain loop over all moments, at the width that was reached last."""
    bins = Bins(N, 1e-3)
    for t, amount in given:
        bins.add("row", t, amount)
        bins.peak("row", t, amount)
    of_bin = [[amount for t, amount in given if int(t / bins.width) == at] for at in range(N)]
    assert bins.end == max(t for t, _ in given) < N * bins.width
    assert bins.sums["row"] == [sum(amounts) for amounts in of_bin]
    assert bins.peaks["row"] == [max(amounts, default=None) for amounts in of_bin]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 30)), min_size=1, max_size=20))
def test_each_bin_has_the_seconds_that_lie_in_it(given):
    """Oracle: the overlap of every stretch with every bin, at the width that was reached last."""
    bins = Bins(N, 1e-3)
    for start, length in given:
        bins.spread("row", start, start + length)
    for at, seconds in enumerate(bins.sums["row"]):
        left, right = at * bins.width, (at + 1) * bins.width
        overlaps = [min(start + length, right) - max(start, left) for start, length in given]
        assert seconds == pytest.approx(sum(max(0.0, one) for one in overlaps), abs=1e-6)
