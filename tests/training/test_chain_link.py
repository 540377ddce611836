"""Links: what may follow what, and whatever a log holds is a link or refused in one sentence."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError, FormatError
from evenload.training.chain_link import NO_ORDER, ChainLink, links_of

RUN = {"model": "4 tensors, ab", "seed": 7, "micro_batch": 2, "exact": True}
FIRST = ChainLink(
    0, 0, (0, 0), NO_ORDER, "a" * 64, "b" * 64, (0,), RUN, {"torch": "2.13", "torch threads": 1}
)


def chained(links: list[ChainLink]) -> list[ChainLink]:
    """The links, each with hashlib's digest of the JSON of the one before it."""
    digest, found = NO_ORDER, []
    for link in links:
        found.append(replace(link, before=digest))
        digest = hashlib.sha256(found[-1].leaf()).hexdigest()
    return found


CHAIN = chained([FIRST, *(replace(FIRST, start=k, stop=k + 10, shares=(5, 7)) for k in (0, 10, 20))])
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def test_a_chain_is_read_as_it_was_written() -> None:
    assert list(links_of(link.leaf() for link in CHAIN)) == CHAIN


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ([0, 2, 1, 3], "link 1 has steps 10 to 20, and the one before ends at step 0"),
        ([0, 1, 3], "link 2 has steps 20 to 30, and the one before ends at step 10"),
        ([0, 1, 1], "link 2 has steps 0 to 10, and the one before ends at step 10"),
        ([0, 0], "link 1 has steps 0 to 0"),
    ],
)
def test_links_that_cannot_follow_are_named(changed: list[int], says: str) -> None:
    with pytest.raises(FormatError, match=says):
        list(links_of(CHAIN[k].leaf() for k in changed))


def test_links_of_two_runs_make_no_chain() -> None:
    """A run with the same settings and other weights from its second link on, as if it were the first's."""
    other = chained([*CHAIN[:1], *(replace(link, weights="c" * 64) for link in CHAIN[1:])])
    for k in (2, 3):
        with pytest.raises(FormatError, match=f"link {k} is behind another link"):
            list(links_of(link.leaf() for link in (*CHAIN[:k], *other[k:])))
    with pytest.raises(FormatError, match="link 0 is not the first of a chain"):
        list(links_of(link.leaf() for link in CHAIN[1:]))
    edited = replace(CHAIN[1], weights="00" + "a" * 62)
    with pytest.raises(FormatError, match="link 2 is behind another link"):
        list(links_of(link.leaf() for link in (CHAIN[0], edited, *CHAIN[2:])))


def test_a_link_of_another_model_is_named() -> None:
    other = replace(CHAIN[2], run={**RUN, "model": "6 tensors, cd"})
    with pytest.raises(
        FormatError, match=r"link 2 is of another run .* model there '4 tensors, ab', here '6"
    ):
        list(links_of(link.leaf() for link in (*CHAIN[:2], other)))


@settings(deadline=None, max_examples=examples(150))
@given(st.sampled_from([*json.loads(FIRST.leaf())]), JSON, st.binary(max_size=40), st.booleans())
def test_any_leaf_is_a_link_or_is_refused(name: str, value: Any, noise: bytes, is_first: bool) -> None:
    """Oracle: JSON's own reader. A link that is read is written again as the same JSON."""
    link = replace(CHAIN[1], before=NO_ORDER) if is_first else CHAIN[1]
    page = {**json.loads(link.leaf()), name: value}
    for leaf in (json.dumps(page).encode(), noise, json.dumps(value).encode(), link.leaf()[:-1] + noise):
        before = [] if is_first else [FIRST.leaf()]
        try:
            found = list(links_of([*before, leaf]))[-1]
        except ConfigError:
            assert is_first  # a log of something else
        except FormatError:
            assert not is_first or name == "before"
        else:
            assert json.loads(found.leaf()) == json.loads(leaf)


def test_a_leaf_of_nested_lists_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaf 0 of the log"):
        list(links_of([b"[" * 60_000]))
