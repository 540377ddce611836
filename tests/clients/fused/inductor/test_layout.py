"""Buffers that are in use at the same time do not overlap, and others share places."""

from hypothesis import given
from hypothesis import strategies as st

from evenload.clients.fused.inductor.replay import ALIGNMENT, laid_out

BUFFERS = st.integers(0, 7)


@given(st.dictionaries(BUFFERS, st.integers(1, 400)), st.lists(st.lists(BUFFERS, max_size=4), max_size=12))
def test_buffers_in_use_together_lie_apart(sizes, uses):
    offsets, n_bytes = laid_out(sizes, uses)
    assert set(offsets) == {b for call in uses for b in call if b in sizes}
    lives = {b: [i for i, call in enumerate(uses) if b in call] for b in offsets}
    for a in offsets:
        assert offsets[a] % ALIGNMENT == 0
        assert 0 <= offsets[a] <= offsets[a] + sizes[a] <= n_bytes
        for b in offsets:
            meet = lives[a][0] <= lives[b][-1] and lives[b][0] <= lives[a][-1]
            apart = offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]
            assert a == b or apart or not meet


def test_buffers_that_never_meet_share_a_place():
    offsets, n_bytes = laid_out({1: 100, 2: 10, 3: 128}, [[1, 2], [2, 3]])
    assert (offsets, n_bytes) == ({1: 0, 2: 128, 3: 0}, 192)
    assert laid_out({1: 64, 2: 64, 3: 64}, [[1], [2], [3]])[1] == 64
    assert laid_out({}, [[1]]) == ({}, 0)
