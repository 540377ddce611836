"""What a stage that expands may return, and jobs whose parts do not fit together."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.cli import cli
from evenload.errors import ConfigError, SpecError
from evenload.events import Counted
from evenload.pipeline import Pipeline
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageRule
from evenload.pipeline.dispatch.results import count_ends
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
    assert result.counts["parts"] == {"total": 6, "done": 5, "skipped": 0, "filtered": 0, "failed": 1,
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


def part_ends(result: Any) -> dict[str, str]:
    return {part["id"]: part["status"] for item in result for part in item.parts}


def test_parts_are_counted_apart_while_they_are_made_and_after(folder: Path) -> None:
    seen: list[Counted] = []
    pipeline = job(folder, ", when: number < 2, params: {bad: [d3/pages/001]}")
    result = pipeline.run(
        backend="inline", sinks=[lambda one: seen.append(one) if type(one) is Counted else None]
    )
    ends = {"done": 4, "filtered": 1, "failed": 1, "unfinished": 0, "skipped": 0}
    assert result.counts["parts"] == {"total": 6, **ends}
    written = json.loads((result.folder / "summary.json").read_text())
    assert written["counts"] == result.counts
    assert seen[0].parts["total"] == 0 < seen[-1].parts["total"] == 6
    text = "3 done, 1 failed of 4 items (6 parts, 1 failed)"
    assert result.summary.headline().startswith(text)
    assert text in CliRunner().invoke(cli, ["status", str(result.folder)]).output


def test_a_part_may_be_left_out_and_is_done_by_the_next_run(folder: Path) -> None:
    pipeline = job(folder)
    plain = pipeline.run(backend="inline", out=folder / "plain")
    result = pipeline.run(backend="inline", out=folder / "run", skip=["d3/pages/002", "d1/pages/077"])
    assert (result.status, part_ends(result)["d3/pages/002"]) == ("done", "skipped")
    assert result.items[3].outputs == {"pages": 3, "title": "D3", "total": 62, "n_gathered": 2}
    assert result.counts["parts"]["skipped"] == 1
    again = pipeline.run(backend="inline", out=folder / "run")
    assert (again.folder / "results.jsonl").read_bytes() == (plain.folder / "results.jsonl").read_bytes()
    for wrong in ("d9/pages/001", "d3/lines/001", "d3/pages", "d3/pages/a b", "/pages/001"):
        with pytest.raises(ConfigError, match="no item is called"):
            pipeline.run(backend="inline", skip=[wrong])


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=examples(100))
def test_parts_that_are_stopped_or_left_out_never_hold_up_the_others(seed: int) -> None:
    """In random orders, with parts in parts: all ends, and what was left out is not begun."""
    rng = random.Random(seed)
    rules = [
        StageRule("split", expand="pages"), StageRule("lines", expand="lines"), StageRule("read"),
        StageRule("page", gather="lines"), StageRule("book", gather="pages", is_partial=rng.random() < 0.5),
    ]  # fmt: skip
    graph = StageGraph(((), (0,), (1,), (2,), (3,)), frozenset({0, 1}), {3: 1, 4: 0})
    names = [f"r{n}/pages/00{page}{tail}" for n in (0, 1) for page in (1, 2) for tail in ("", "/lines/001")]
    skipped, stopped = rng.sample(names, 2), rng.sample([*names, "r1"], 2)
    flow = ItemFlow(rules, [(Item(n, f"r{n}"), {}) for n in (0, 1)], graph=graph, skipped=skipped)
    tasks = flow.begin()
    while tasks:
        if stopped and rng.random() < 0.2:
            name = stopped.pop()
            assert all(flow.strands[n].item.id.startswith(name) for n in flow.stop(name))
        task = tasks.pop(rng.randrange(len(tasks)))
        name = rules[task.stage].expand
        keys = [f"00{n}" for n in range(1, rng.choice([2, 3]))]
        tasks += flow.done(task, {name: keys} if name else {rules[task.stage].name: 1})
    assert flow.n_open == 0
    for strand in flow.strands:
        is_skipped = strand.item.id in skipped
        assert (strand.fate == "skipped") == is_skipped
        whole = any(one.item.id in skipped for one in strand.line[:-1])
        assert not whole, "a part of what was left out was made"
    counts = count_ends(flow)[2]
    assert counts["total"] == sum(strand.parent is not None for strand in flow.strands)
    assert counts["unfinished"] == 0
