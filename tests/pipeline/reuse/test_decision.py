"""Whether a result is kept, and why not, in words."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.pipeline.reuse.decision import StageReuse, why_not_kept
from evenload.pipeline.reuse.stage_identity import change_of

small = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xyz"))


@given(small, small, small, small)
def test_kept_exactly_if_all_that_made_it_is_the_same(facts, was, reads, now) -> None:
    is_same = facts == was and all(now.get(name) == one for name, one in reads.items())
    assert (why_not_kept(facts, was, reads, now) == "") == is_same


@pytest.mark.parametrize(
    ("was", "reads", "now", "said"),
    [
        (None, {}, {}, "another version of evenload made it"),
        ({"params.size": "1"}, {}, {}, "`size` changed"),
        ({"params.size": "2"}, None, {}, "it read what cannot be compared with another run's"),
        ({"params.size": "2"}, {"value:a": "1"}, None, "what it read is being changed"),
        ({"params.size": "2"}, {"value:a": "1", "item:id": "2"}, {}, "`a`, the item's id changed"),
        ({"params.size": "2"}, {"job:seed": "1"}, {"job:seed": "2"}, "the job's seed changed"),
    ],
)
def test_the_reason_is_said(was, reads, now, said) -> None:
    assert why_not_kept({"params.size": "2"}, was, reads, now) == said


def test_many_changes_are_three_and_more() -> None:
    was = {f"params.p{at}": "1" for at in range(9)}
    assert change_of(was, {}) == "`p0`, `p1`, `p2` and more changed"
    assert change_of(
        {"code a.py": "1 ", "version torch": "1"}, {"code a.py": "2 ", "version torch": "2"}
    ) == ("`a.py` and the version of torch changed")


def test_a_stage_in_words_and_numbers() -> None:
    reuse = StageReuse("score", n_kept=3, n_cached=1, n_todo=2, n_after=4, why=Counter({"`q` changed": 2}))
    assert reuse.to_text() == (
        "score: 3 of 5 kept (1 from the cache), 2 to do, since `q` changed, "
        "up to 4 more after the stages before"
    )
    assert StageReuse("idle").to_text() == "idle: nothing to do"
    assert reuse.to_json()["why"] == {"`q` changed": 2}


@given(st.lists(st.sampled_from([0.0, 0.5, 2.0, -1.0])))
def test_the_mean_seconds_are_of_results_that_say_theirs(seconds: list[float]) -> None:
    reuse = StageReuse("score")
    for one in seconds:
        reuse.timed(one)
    told = [one for one in seconds if one > 0]
    assert reuse.item_s == (pytest.approx(sum(told) / len(told)) if told else None)
