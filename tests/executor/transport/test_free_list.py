"""Free ranges: against a slow twin that knows every unit."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from evenload.executor.transport.free_list import FreeList

SIZE = 40


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=40))
def test_ranges_are_taken_lowest_first_and_merge_when_given_back(steps: list[tuple[bool, int]]) -> None:
    extents = FreeList(5, SIZE)
    free = set(range(5, 5 + SIZE))
    taken: list[tuple[int, int]] = []
    for is_give, n in steps:
        if is_give and taken:
            start, length = taken.pop(n % len(taken))
            extents.give(start, length)
            free |= set(range(start, start + length))
        else:
            start = extents.take(n)
            fitting = [at for at in sorted(free) if set(range(at, at + n)) <= free]
            assert start == (fitting[0] if fitting else None)
            if start is not None:
                taken.append((start, n))
                free -= set(range(start, start + n))
        ranges = list(extents)
        assert {unit for a, b in ranges for unit in range(a, b)} == free
        assert extents.n_bytes == len(free)
        assert all(b < c for (_, b), (c, _) in itertools.pairwise(ranges))
