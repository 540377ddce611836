"""What a stage that expands may return, and jobs whose parts do not fit together."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from evenload.errors import ConfigError, SpecError
from evenload.pipeline import Pipeline
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageRule, StageTask
from evenload.pipeline.part_keys import MOST_PARTS, part_keys
from evenload.pipeline.stage import Item
from evenload.pipeline.stage_graph import StageGraph

STAGES = """
class Split:
    def __call__(self, inputs, item):
        pages = [{"text": item.id, "number": n} for n in range(inputs["n"])]
        return {"pages": pages, "title": item.id.upper()}

class Score:
    def __init__(self, context, *, bad=()): self.bad = bad
    def __call__(self, inputs, item):
        if item.id in self.bad: raise ValueError("unreadable")
        return {"score": 10 * inputs["pages"] + inputs["number"]}

class Total:
    def __call__(self, inputs, item):
        return {"total": sum(page["score"] for page in inputs["pages"]), "n_gathered": len(inputs["pages"])}

class Wild:
    def __init__(self, context, *, gives): self.gives = gives
    def __call__(self, inputs, item): return self.gives
"""
JOB = """\
version: 1
job: {name: parts, inputs: {jsonl: rows.jsonl}}
devices: cpu*2
stages:
  - {name: split, target: "stages.py:Split", expand: pages, outputs: {text: text, number: number}}
  - {name: score, target: "stages.py:Score", outputs: {score: number}%s}
  - {name: total, target: "stages.py:Total", gather: pages%s}
report: {html: false, trace: false}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stages.py").write_text(STAGES)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"id": "d{n}", "n": {n}}}\n' for n in range(4)))
    return tmp_path


def job(folder: Path, of_score: str = "", of_total: str = "") -> Pipeline:
    (folder / "job.yaml").write_text(JOB % (of_score, of_total))
    return Pipeline.from_yaml(folder / "job.yaml")


def refused(what: str, hint: str) -> ConfigError:
    return ConfigError(what, hint=hint)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"a": 1}, "that is dict, no list"),
        (["text"], "number 1 is str"),
        ([{}, {3: 4}], "number 2 is dict"),
        ([{}] * (MOST_PARTS + 1), f"returned {MOST_PARTS + 1} pages"),
        ([{"id": "../up"}], "has the id '../up'"),
        ([{"id": 7}], "has the id '7'"),
        ([{"id": "002"}, {}], "two have the id '002'"),
    ],
)
def test_what_are_no_parts(parts: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        part_keys(parts, refused, "pages")
    assert said in caught.value.message
    assert caught.value.hint


def test_parts_are_called_by_their_own_id_or_their_place() -> None:
    assert part_keys([{"a": 1}, {"id": "end"}], refused, "pages") == (["001", "end"], [{"a": 1}, {}])
    assert part_keys([{}] * 1000, refused, "pages")[0][0] == "0001"
    assert part_keys((), refused, "pages") == ([], [])


def test_a_part_that_failed_fails_its_item_and_is_done_again(folder: Path) -> None:
    of_score = ", params: {bad: [d3/pages/002]}"
    result = job(folder, of_score).run(out=folder / "run", backend="inline")
    assert [row.status for row in result] == ["done", "done", "done", "failed"]
    (error,) = [row.error for row in result if row.error is not None]
    assert error.stage == "total"
    assert "1 of 3 pages failed, such as 'd3/pages/002' in score: ValueError: unreadable" in error.message
    assert [part["status"] for part in result.items[3].parts] == ["done", "failed", "done"]
    assert result.counts["parts"] == {"total": 6, "done": 5, "not_chosen": 0, "filtered": 0, "failed": 1,
                                      "unfinished": 0}  # fmt: skip
    kept = {one["stage"]: one for one in job(folder).plan(out=folder / "run").kept}
    assert (kept["split"]["n_kept"], kept["score"]["n_to_do"]) == (4, 6)  # `bad` changed
    again = job(folder).run(out=folder / "run", backend="inline")
    assert [row.outputs["total"] for row in again] == [0, 10, 41, 93]


def test_parts_that_failed_may_be_left_out(folder: Path) -> None:
    of_score = ", params: {bad: [d3/pages/002, d1/pages/001]}, when: 'number < 2'"
    text = JOB % (of_score, "")
    (folder / "job.yaml").write_text(text.replace("gather: pages", "gather: {by: pages, allow_failed: true}"))
    result = Pipeline.from_yaml(folder / "job.yaml").run(out=folder / "run", backend="inline")
    assert [(row.status, row.outputs["n_gathered"]) for row in result] == [
        ("done", 0), ("done", 0), ("done", 2), ("done", 1),
    ]  # fmt: skip
    assert [part["status"] for part in result.items[3].parts] == ["done", "failed", "filtered"]
    assert result.status == "done"


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        ({"pags": []}, "did not return pages"),
        ({"pages": [{"text": 3}]}, "gave pages 001 no number"),
        ({"pages": [{"number": "x"}]}, "'number' that is str, not number"),
        ({"pages": [{"number": 1, "n": 2}]}, "returned n, which the item has already"),
        ({"pages": [{"number": 1, "pages": 2}]}, "returned pages, which the item has already"),
        ({"pages": [], "a.b": 1}, "returned 'a.b'"),
    ],
)
def test_a_stage_that_returns_no_parts_fails_its_item(folder: Path, gives: dict[str, Any], said: str) -> None:
    stage = {"name": "wild", "target": "stages.py:Wild", "expand": "pages", "params": {"gives": gives}}
    document = {
        "version": 1, "job": {"name": "wild", "inputs": {"jsonl": "rows.jsonl"}}, "devices": "cpu*1",
        "stages": [{**stage, "outputs": {"number": "number"}}], "report": {"html": False, "trace": False},
    }  # fmt: skip
    (folder / "job.yaml").write_text(json.dumps(document))
    result = Pipeline.from_yaml(folder / "job.yaml").run(out=folder / "run", backend="inline")
    assert {row.status for row in result} == {"failed"}
    assert said in str(result.items[0].error)


@pytest.mark.parametrize("keys", [None, "001", [1], ["../up"], ["1"] * (MOST_PARTS + 1), {"001": 1}])
def test_parts_of_a_worker_that_cannot_be_believed_fail_the_item(keys: Any) -> None:
    rules = [StageRule("split", expand="pages"), StageRule("score")]
    flow = ItemFlow(rules, [(Item(0, "r0"), {})], graph=StageGraph(((), (0,)), frozenset([0])))
    assert flow.begin() == [StageTask(0, 0)]
    assert flow.done(StageTask(0, 0), {} if keys is None else {"pages": keys}) == []
    assert (flow.n_open, flow.n_failed, len(flow.refused)) == (0, 1, 1)


def test_a_part_with_the_id_of_an_item_fails_its_item(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"id": "d2", "n": 2}\n{"id": "d2/pages/002", "n": 0}\n')
    result = job(folder).run(out=folder / "run", backend="inline")
    assert [row.status for row in result] == ["failed", "done"]
    assert "'d2/pages/002' would be a part and is an item" in str(result.items[0].error)


@pytest.mark.parametrize(
    ("change", "place", "said"),
    [
        ("total.gather=page", "stages[2].gather", "no earlier stage has expand: page; did you mean 'pages'?"),
        ("total.gather={bi: pages}", "stages[2].gather.by", "is required"),
        ("total.needs=[]", "stages[2].gather", "none of its needs goes through pages"),
        ("score.expand=pages", "stages[1].expand", "'pages' are parts of stage 'split'"),
        ("score.expand=lines", "stages[2].gather", "gather lines first"),
        ("score.expand=text", "stages[1].expand", "'text' is an output of stage 'split'"),
        ("score.samples=2", "stages[1].name", "samples are of whole items"),
        ("split.expand=pags total.gather=pags", "stages[0].outputs.pags", "the stage returns no 'pags'"),
        ("total.when=score > 3", "stages[2].when", "made by stage 'score' for each part"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(folder: Path, change: str, place: str, said: str) -> None:
    (folder / "job.yaml").write_text(JOB % ("", ""))
    with pytest.raises(SpecError) as caught:
        Pipeline.from_yaml(
            folder / "job.yaml", [f"stages.{one}" for one in re.split(r" (?=total\.)", change)]
        )
    found = {where.partition(" (")[0]: text for where, text in caught.value.faults}
    assert said in found.get(place, str(found))
    assert place in found


def test_parts_of_two_lists_are_not_joined(folder: Path) -> None:
    text = (JOB % ("", "")).replace("\nreport", """
  - {name: cut, target: "stages.py:Split", needs: [], expand: crops}
  - {name: both, target: "stages.py:Score", needs: [score, cut]}
report""")  # fmt: skip
    (folder / "job.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        Pipeline.from_yaml(folder / "job.yaml")
    ((place, said),) = caught.value.faults
    assert place == "stages[4].needs (line 9)"
    assert "gives 'crops', and it is joined with 'pages', of which there may be another number" in said
