"""Which items go first, said of their columns, and checked before anything starts."""

import math
from pathlib import Path

import pytest

from evenload.errors import ConfigError, SpecError
from evenload.pipeline import Pipeline
from evenload.pipeline.job.names import priorities_of
from evenload.pipeline.stage import Item

ROWS = [{"rank": 2, "kind": "express"}, {"rank": 0.5}, {"rank": None, "kind": "slow"}, {"rank": True}]
JOB = """\
version: 1
job: {name: job, inputs: {jsonl: rows.jsonl}}
devices: cpu*1
stages: [{name: note, target: "stages.py:Note"}]
schedule:
  priority: PRIORITY
report: {html: false, trace: false}
"""
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


def job(folder: Path, priority: str, rows: str) -> Path:
    (folder / "rows.jsonl").write_text(rows)
    (folder / "stages.py").write_text(STAGE)
    (folder / "job.yaml").write_text(JOB.replace("PRIORITY", priority))
    return folder / "job.yaml"


@pytest.mark.parametrize(
    ("priority", "rows", "said"),
    [
        ("urgnt", '{"id": "a", "urgent": 1}', "'urgnt' is no column of the inputs; did you mean 'urgent'?"),
        ("urgent", '{"id": "a", "urgent": "high"}', "item 'a' has 'high' as its priority"),
        ("urgent", '{"id": "a", "urgent": 1' + "0" * 400 + "}", "urgent"),
        ("urgent", '{"id": "a", "urgent": [1]}', "item 'a' has"),
        ("'urgent >'", '{"id": "a", "urgent": 1}', "a value is expected"),
    ],
)
def test_a_priority_that_nobody_knows_is_refused_with_its_line(tmp_path: Path, priority, rows, said) -> None:
    with pytest.raises(SpecError) as refused:
        Pipeline.from_yaml(job(tmp_path, priority, rows + "\n"))
    ((place, fault),) = refused.value.faults
    assert place == "schedule.priority (line 6)"
    assert said in fault


def test_a_run_takes_the_highest_first_and_gives_the_rows_in_input_order(tmp_path: Path) -> None:
    rows = "".join(f'{{"id": "r{at}", "rank": {at % 3}}}\n' for at in range(6)) + '{"id": "none"}\n'
    result = Pipeline.from_yaml(job(tmp_path, "rank", rows)).run(backend="inline")
    assert (tmp_path / "order").read_text().split() == ["r2", "r5", "r1", "r4", "r0", "r3", "none"]
    assert [row.id for row in result] == [*(f"r{at}" for at in range(6)), "none"]
