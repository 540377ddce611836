"""Conditions mean what they say, never run anything, and say what is wrong with them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.pipeline.job.expression import parse_condition

VALUES = {"score": 7.5, "category": "physics", "n": 3, "none": None, "ok": True, "größe": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("score >= 7", True),
        ("score < 7", False),
        ("score>=7.5 and score<=7.5", True),
        ("score > 1e1 or n == 3", True),
        ("not score > 10", True),
        ("not (score > 10 or n == 3)", False),
        ("category == 'physics'", True),
        ('category != "physics"', False),
        ("category in ['physics', 'social']", True),
        ("category not in ['physics']", False),
        ("'phys' in category", True),
        ("ok", True),
        ("none", False),
        ("none > 3 or none < 3", False),
        ("none == null", True),
        ("ok == true and not false", True),
        ("n in [1, 2, -3, 3]", True),
        ("not n in []", True),
        ("größe == 1", True),
        ("n == -3 or n == .3e1", True),
        ("not not ok", True),
    ],
)
def test_what_conditions_mean(text: str, expected: bool) -> None:
    assert parse_condition(text).holds(VALUES) is expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a value is expected at letter 1, not the end"),
        ("score >=", "a value is expected at letter 9"),
        ("score >= 7 8", "'and', 'or' or the end is expected at letter 12, not '8'"),
        ("__import__('os')", "expected at letter 11, not '('"),
        ("score.real > 1", "not '.'"),
        ("score + 1 > 2", "not '+'"),
        ("(score > 1", "')' is expected"),
        ("n in [1, 2", "']' is expected"),
        ("n not 3", "'in' is expected"),
        ("lambda: 1", "not ':'"),
        ("(" * 40 + "n" + ")" * 40, "nested more than 30"),
        ("not " * 40 + "n", "nested more than 30"),
        ("n in " + "[" * 40, "nested more than 30"),
        ("n == 1 or " * 200 + "n", "letters"),
    ],
)
def test_what_is_no_condition(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_condition(text)
    assert said in caught.value.message
    assert caught.value.hint


def test_a_missing_value_and_an_odd_comparison_are_told() -> None:
    with pytest.raises(ConfigError, match="the item has no 'scor'") as caught:
        parse_condition("scor > 1").holds(VALUES)
    assert "score" in (caught.value.hint or "")
    with pytest.raises(ConfigError, match="compares str > int"):
        parse_condition("category > 1").holds(VALUES)


def test_the_names_that_it_looks_at() -> None:
    assert parse_condition("a > 1 and b in [c, 'd'] or not e").names == {"a", "b", "c", "e"}


@given(st.text(alphabet="abn ()[]<>=!'\",.0123456789andorint", max_size=30))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        condition = parse_condition(text)
    except ConfigError:
        return
    assert all(name in condition.text for name in condition.names)
