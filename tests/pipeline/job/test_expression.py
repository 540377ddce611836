"""Conditions and priorities mean what they say, never run anything, and say what is wrong with them."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline.written_jobs import write_job

from evenload.errors import ConfigError, SpecError
from evenload.pipeline import Pipeline
from evenload.pipeline.job.expression import parse_condition
from evenload.pipeline.job.names import priorities_of
from evenload.pipeline.stage import Item

ROWS = [{"rank": 2, "kind": "express"}, {"rank": 0.5}, {"rank": None, "kind": "slow"}, {"rank": True}]
STAGE = """
from pathlib import Path
class Note:
    def __call__(self, inputs, item):
        with (Path(__file__).parent / "order").open("a") as order:
            order.write(f"{item.id} ")
        return {"done": True}
"""


def of(text: str) -> list[float]:
    return priorities_of(text, [(Item(at, f"r{at}"), row) for at, row in enumerate(ROWS)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rank", [2.0, 0.5, -math.inf, 1.0]),
        ('kind == "express"', [1.0, 0.0, 0.0, 0.0]),
        ("rank > 1 or kind == 'slow'", [1.0, 0.0, 1.0, 0.0]),
        ("id in ['r3']", [0.0, 0.0, 0.0, 1.0]),
        ("absent", [-math.inf] * 4),
    ],
)
def test_a_column_or_a_condition(text: str, expected: list[float]) -> None:
    assert of(text) == expected


def test_what_is_no_number_is_told_with_the_item() -> None:
    with pytest.raises(ConfigError, match="item 'r0' has 'express' as its priority"):
        of("kind")


def job(folder: Path, priority: str, rows: list[dict]) -> Path:
    stage = f"  - {{name: note, target: 'stages.py:Note'}}\nschedule:\n  priority: {priority}\n"
    return write_job(folder, STAGE, stage, rows)


@pytest.mark.parametrize(
    ("priority", "urgent", "said"),
    [
        ("urgnt", 1, "'urgnt' is no column of the inputs; did you mean 'urgent'?"),
        ("urgent", "high", "item 'a' has 'high' as its priority"),
        ("urgent", 10**400, "urgent"),
        ("urgent", [1], "item 'a' has"),
        ("'urgent >'", 1, "a value is expected"),
    ],
)
def test_a_priority_that_nobody_knows_is_refused_with_its_line(
    tmp_path: Path, priority, urgent, said
) -> None:
    with pytest.raises(SpecError) as refused:
        Pipeline.from_yaml(job(tmp_path, priority, [{"id": "a", "urgent": urgent}]))
    ((place, fault),) = refused.value.faults
    assert place == "schedule.priority (line 7)"
    assert said in fault


def test_a_run_takes_the_highest_first_and_gives_the_rows_in_input_order(tmp_path: Path) -> None:
    rows = [*({"id": f"r{at}", "rank": at % 3} for at in range(6)), {"id": "none"}]
    result = Pipeline.from_yaml(job(tmp_path, "rank", rows)).run(backend="inline")
    assert (tmp_path / "order").read_text().split() == ["r2", "r5", "r1", "r4", "r0", "r3", "none"]
    assert [row.id for row in result] == [row["id"] for row in rows]


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
