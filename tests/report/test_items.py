"""Distinct items are counted once, whatever was dealt twice."""

import hypothesis.strategies as st
from hypothesis import given

from evenload.report.items import ItemSet

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 60), st.integers(0, 20)),
        st.tuples(st.just("fail"), st.integers(0, 60), st.just(1)),
    ),
    max_size=60,
)


@given(steps)
def test_counts_as_sets_would(rows):
    items, done, failed = ItemSet(), set(), set()
    for what, index, n in rows:
        if what == "add":
            items.add(index, n)
            done |= set(range(index, index + n))
        else:
            items.fail(index)
            failed.add(index)
    assert items.n_failed == len(failed)
    assert items.n_done == len(done - failed)


def test_an_absurd_index_takes_no_memory():
    items = ItemSet()
    items.add(10**14, 5)
    items.add(-3, 5)
    items.fail(10**14)
    assert (items.n_done, items.n_failed) == (5, 1)
