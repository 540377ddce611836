"""The states of items. The oracle is a plain dict, moved one by one as the page on faults says."""

from pathlib import Path

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.executor.decide import item_states
from evenload.executor.decide.item_states import STATES, TRANSITIONS, ItemStates, next_state

PAGE = Path(__file__).parents[3] / "docs/explanation/faults.md"


def table_of_the_page() -> dict[tuple[str, str], str]:
    """(event, before): after"""
    lines = PAGE.read_text(encoding="utf-8").partition("## The states of an item")[2].splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    (_, *before), _, *events = ([cell.strip() for cell in row] for row in rows[: 2 + len(TRANSITIONS)])
    moves = {(event, at): after for event, *cells in events for at, after in zip(before, cells, strict=True)}
    return {move: after for move, after in moves.items() if after}


ALLOWED = table_of_the_page()
OVER = {"done", "failed", "skipped"}


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", *TRANSITIONS]), st.integers(0, 30), st.integers(1, 9), st.booleans()
        ),
        max_size=60,
    ),
    shortest_cut=st.integers(0, 20),
)
@settings(max_examples=examples(200), deadline=None)
def test_items_move_as_the_table_says_and_in_no_other_way(steps, shortest_cut) -> None:
    """Also where the first items are over and their bytes are gone, by which nothing may change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_states, "_SHORTEST_CUT", shortest_cut)
        states, plain = ItemStates(), {}
        for event, at, n, is_range in steps:
            if event == "add":
                states.add(n)
                plain |= dict.fromkeys(range(len(plain), len(plain) + n), "waiting")
                continue
            stop = min(at + n, len(plain))
            items = range(at, stop) if is_range else tuple(range(at, stop))[::-2]
            bad = [item for item in items if (event, plain[item]) not in ALLOWED]
            if bad:
                with pytest.raises(AssertionError, match=rf"item ({'|'.join(map(str, bad))}) is .*{event}"):
                    states.move(items, event)
            else:
                states.move(items, event)
                plain |= {item: ALLOWED[event, plain[item]] for item in items}
            open_ = [item for item, state in plain.items() if state not in OVER]
            suspects = [item for item in open_ if plain[item] in ("suspect", "on trial")]
            assert states.open(plain) == open_
            assert states.suspects(plain) == suspects
            assert (states.n, states.n_over, states.n_suspects) == (
                len(plain), len(plain) - len(open_), len(suspects),
            )  # fmt: skip
            assert [states[item] for item in open_] == [plain[item] for item in open_]


def test_the_page_on_faults_shows_the_table_and_ends_are_final() -> None:
    found = {(event, before): moves[before] for event, moves in TRANSITIONS.items() for before in moves}
    assert found == ALLOWED
    assert {before for _, before in found} == set(STATES) - OVER
    with pytest.raises(AssertionError, match="item i7 is done: 'dealt' cannot happen to it"):
        next_state("i7", "done", "dealt")


def test_items_that_are_over_take_no_room() -> None:
    states = ItemStates()
    for start in range(0, 10**6, 10**4):
        states.add(10**4)
        states.move(range(start, start + 10**4), "dealt")
        states.move(range(start, start + 10**4), "answered")
    assert len(states._states) <= 2 * 65_536 + 10**4
    assert states.n == states.n_over == 10**6
