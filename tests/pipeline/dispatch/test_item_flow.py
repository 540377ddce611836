"""What items go through: samples, the best of them, and what failures leave."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.pipeline.dispatch.item_flow import ItemFlow, StageRule, StageTask
from evenload.pipeline.dispatch.results import row_of
from evenload.pipeline.dispatch.strand import ItemFailure
from evenload.pipeline.stage import Item

WHY = ItemFailure("edit", "ValueError", "no")


def flow(rules: list[StageRule], n: int = 2, **inputs: Any) -> ItemFlow:
    return ItemFlow(rules, [(Item(at, f"i{at}", 100 + at), dict(inputs)) for at in range(n)], seed=5)


def fates(flow: ItemFlow) -> list[str]:
    return [strand.fate for strand in flow.strands]


@pytest.mark.parametrize("n_best", [1, 2])
def test_an_item_whose_chosen_samples_fail_later_has_failed(n_best: int) -> None:
    """Those that were passed over are no success, and nobody would look at it again."""
    one = flow([StageRule("edit", samples=3, best_by="score", n_best=n_best), StageRule("last")], 1)
    chosen = [task for at, sample in enumerate(one.begin()) for task in one.done(sample, {"score": at})]
    assert len(chosen) == n_best
    for task in chosen:
        assert one.n_failed == 0
        one.failed(task, WHY)
    assert (one.n_open, one.n_failed) == (0, 1)
    row = row_of(one.items[0], {}, one.strands)
    assert (row.status, row.error) == ("failed", WHY)


@given(st.lists(st.one_of(st.integers(-5, 5), st.none(), st.just(float("nan"))), min_size=1, max_size=6),
       st.booleans(), st.integers(1, 3), st.permutations(range(6)))  # fmt: skip
def test_the_choice_does_not_depend_on_who_is_first(scores, is_lowest, n_best, order) -> None:
    rules = [StageRule("a", samples=len(scores), best_by="s", is_lowest=is_lowest, n_best=n_best)]
    chosen = set()
    for arrival in (range(6), order):
        one = flow(rules, 1)
        one.begin()
        for strand in arrival:
            if strand < len(scores):
                one.done(StageTask(0, strand), {"s": scores[strand]})
        assert one.n_open == 0
        chosen.add(tuple(fates(one)))
        n_numbers = sum(score is not None and score == score for score in scores)
        assert fates(one).count("done") == min(n_best, n_numbers)
        if not n_numbers:  # nobody is the best
            assert set(fates(one)) == {"failed"}
            assert (one.n_failed, len(one.refused)) == (1, len(scores))
    assert len(chosen) == 1


@pytest.mark.parametrize("value", [{}, {"scor": 3}, {"score": "high"}, {"score": True}])
def test_a_sample_without_a_number_to_choose_by_has_failed(value: dict) -> None:
    """The first sample never stands for an item because nothing could be compared."""
    rules = [StageRule("edit", samples=3), StageRule("score", best_by="score"), StageRule("last")]
    one = flow(rules, 1)
    for task in one.begin():
        one.done(task, {})
    assert one.done(StageTask(1, 0), value) == []
    assert one.done(StageTask(1, 1), {"score": 2}) == []
    assert one.done(StageTask(1, 2), {"score": 1}) == [StageTask(2, 1)]
    assert fates(one) == ["failed", "open", "not chosen"]
    (refused,) = one.refused
    assert refused.error is not None
    assert "'score'" in refused.error.message
    assert one.n_failed == 0
