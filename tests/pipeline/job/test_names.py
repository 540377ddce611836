"""A name in a job that nothing gives is refused before any work, or fails the first item that lacks it."""

import inspect
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from examples_count import examples

from evenload.errors import ConfigError, SpecError
from evenload.pipeline import Pipeline
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES
from evenload.pipeline.job.job_file import load_job
from evenload.pipeline.target import load_target, locate_target

STAGES = '''
class Draw:
    def __init__(self, context, *, strength=1.0): ...
    def __call__(self, inputs, item, *, steps=1):
        return {"sketch": inputs["title"] * steps, "effort": float(item.rng().random())}

class Rate:
    def __call__(self, inputs, item):
        rating = item.rng().random()
        return {"rating": rating, "verdict": "good"}

class Loose:
    """Gives what nobody can read off its source."""
    def __call__(self, inputs, item):
        return dict(zip(["loose" + "ness"], [item.rng().random()]))

class Polish:
    def __call__(self, inputs, item):
        found = {"poem": inputs["title"]}
        found["length"] = 3
        return found

def headline(rows):
    return {"n": len(rows)}

def count(inputs, item):
    return {"letters": len(inputs["title"])}
'''
ROWS = [{"id": f"r{n}", "title": "abc"[:n], "kind": "xy"[n % 2], "weight": n} for n in range(1, 4)]
DRAW = """\
version: 1
job: {name: names, inputs: {jsonl: rows.jsonl, group_by: kind}}
devices: cpu*1
stages:
  - {name: draw, target: "stages.py:Draw", samples: 3, outputs: {sketch: text}}
  - {name: rate, target: "stages.py:Rate", outputs: {rating: number, verdict: text}%s}
  - {name: polish, target: "stages.py:Polish", outputs: {poem: text}%s}
report: {html: false, trace: false%s}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stages.py").write_text(STAGES)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def faults_of(folder: Path, text: str, *changes: str) -> dict[str, str]:
    (folder / "job.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        load_job(folder / "job.yaml", changes)
    assert not (folder / "runs").exists()
    return dict(caught.value.faults)


@pytest.mark.parametrize(
    ("of_rate", "of_polish", "of_report", "place", "said"),
    [
        (", best: {by: ratng}", "", "", "stages[1].best.by (line 6)", "did you mean 'rating'?"),
        (", best: {by: weight}", "", "", "stages[1].best.by (line 6)", "the same for all of them"),
        (", best: {by: verdict}", "", "", "stages[1].best.by (line 6)", "is declared as text"),
        (", best: {by: poem}", "", "", "stages[1].best.by (line 6)", "made only later, by stage 'polish'"),
        ("", ', when: "ratting >= 170"', "", "stages[2].when (line 7)", "did you mean 'rating'?"),
        (', when: "rating > 3"', "", "", "stages[1].when (line 6)", "made only later, by this stage itself"),
        (', when: "poem == null"', "", "", "stages[1].when (line 6)", "made only later, by stage 'polish'"),
        (', when: "kind in [x]"', "", "", "stages[1].when (line 6)", 'a text is written "x"'),
        (', when: "knd == 3 or id == 4"', "", "", "stages[1].when (line 6)", "did you mean 'kind'?"),
        ("", "", ", sort: ratng", "report.sort (line 8)", "did you mean 'rating'?"),
        ("", "", ", sort: sketch", "report.sort (line 8)", "is declared as text"),
    ],
)
def test_wrong_names_are_refused_with_line_and_suggestion(
    folder: Path, of_rate: str, of_polish: str, of_report: str, place: str, said: str
) -> None:
    found = faults_of(folder, DRAW % (of_rate, of_polish, of_report))
    assert said in found[place]
    assert len(found) == 1


def test_the_option_is_named_that_set_a_wrong_name(folder: Path) -> None:
    text = DRAW % (", best: {by: rating}", "", "")
    found = faults_of(folder, text, "stages.rate.best.by=ratng", "job.sed=7", "polish.wight=1")
    assert list(found) == ["job.sed (--set job.sed=7)", "stages[2].params (--set polish.wight=1)"]
    found = faults_of(folder, text, "stages.rate.best.by=ratng", "report.sort=ratng")
    assert "stages[1].best.by (--set stages.rate.best.by=ratng)" in found
    assert "report.sort (--set report.sort=ratng)" in found
    found = faults_of(folder, text, "job.inputs.group_by=knd", "devices.reserv=1GiB")
    assert list(found) == ["devices.reserv (--set devices.reserv=1GiB)"]
    found = faults_of(folder, text, "job.inputs.group_by=knd")
    assert "did you mean 'kind'?" in found["job.inputs.group_by (--set job.inputs.group_by=knd)"]


@pytest.mark.parametrize(
    ("stage", "place", "said"),
    [
        ("kind: command, params: {run: [echo, '{titel}']}", "stages[0].params.run[1] (line 5)", "'title'"),
        ("kind: command, params: {run: [cp, '{out.pict}'], files: {pic: png}}",
         "stages[0].params.run[1] (line 5)", "known: {out.pic}"),
        ("kind: command, params: {run: [echo, '{']}", "stages[0].params.run[1] (line 5)", "is no template"),
        ("kind: function, params: {function: 'stages.py:coumt'}",
         "stages[0].params.function (line 5)", "'count'"),
        ("kind: function, params: {function: 'stages.py:count'}, outputs: {leters: number}",
         "stages[0].outputs.leters (line 5)", "did you mean 'letters'?"),
        ("kind: command, params: {run: [cp, '{out.pic}'], files: {pic: png}}, outputs: {pick: png}",
         "stages[0].outputs.pick (line 5)", "did you mean 'pic'?"),
        ("kind: torch_module, params: {module: 'stages.py:Draw', input: tittle}",
         "stages[0].params.input (line 5)", "did you mean 'title'?"),
        ("target: 'stages.py:Rate', outputs: {ratng: number}", "stages[0].outputs.ratng (line 5)",
         "did you mean 'rating'?"),
    ],
)  # fmt: skip
def test_params_of_shipped_stages_and_outputs(folder: Path, stage: str, place: str, said: str) -> None:
    text = f"""\
version: 1
job: {{name: names, inputs: {{jsonl: rows.jsonl}}}}
devices: cpu*1
stages:
  - {{name: one, {stage}}}
"""
    assert said in faults_of(folder, text)[place]


def test_the_table_of_shipped_stages_is_right() -> None:
    """Each ``columns`` and ``templates`` of the table is a parameter of the class, with that default."""
    for name, kind in BUILTIN_STAGES.items():
        pytest.importorskip("torch")
        parameters = inspect.signature(load_target(locate_target(kind.target, Path()))).parameters
        for parameter, default in kind.columns.items():
            given = parameters[parameter].default
            assert given == default or (given is None and name == "vlm_score"), (name, parameter)
        for parameter, names in kind.templates.items():
            default = parameters[parameter].default
            assert all(f"{{{one}}}" in default for one in names), (name, parameter)
        assert set(kind.code) <= set(parameters)


# --- random jobs with one name misspelt ------------------------------------------------------------


def random_job(rng: random.Random) -> dict[str, Any]:
    """A valid job in which stages, columns and outputs are referred to by name in many places."""
    has_samples, has_loose = rng.random() < 0.6, rng.random() < 0.3
    draw: dict[str, Any] = {"name": "draw", "target": "stages.py:Draw"}
    rate: dict[str, Any] = {"name": "rate", "target": "stages.py:Rate"}
    polish: dict[str, Any] = {"name": "polish", "target": "stages.py:Polish"}
    if rng.random() < 0.7:
        draw["outputs"] = {"sketch": "text"}
    if rng.random() < 0.5:
        rate["outputs"] = {"rating": "number"}
    if rng.random() < 0.5:
        draw |= {"params": {"strength": 2.0}, "call": {"steps": 2}}
    if has_samples:
        draw["samples"] = rng.choice([2, 3])
        rate["best"] = {"by": rng.choice(["rating", "effort"])}
    if rng.random() < 0.5:
        rate["when"] = rng.choice(
            ["weight >= 1", "kind != id and effort < 3", "not sketch == null", "sketch != group"]
        )
    if rng.random() < 0.7:
        polish["when"] = rng.choice(["rating <= 1", 'kind in ["x", "y"]', "sketch == title or rating >= 0"])
    stages = [draw, rate, polish]
    if has_loose:
        stages.insert(rng.randrange(3), {"name": "loose", "target": "stages.py:Loose"})
        if stages[-1]["name"] == "polish" and rng.random() < 0.7:
            polish["when"] = "looseness < 2"
    if rng.random() < 0.5:
        stages.append({"name": "count", "kind": "function", "params": {"function": "stages.py:count"}})
    if rng.random() < 0.4:
        words = ["echo", "{sketch}", "{id}", "{kind}", "{seed}"]
        stages.append({"name": "say", "kind": "command", "params": {"run": words}})
    inputs = {"jsonl": "rows.jsonl"} | ({"group_by": "kind"} if rng.random() < 0.5 else {})
    report: dict[str, Any] = {"html": False, "trace": False}
    if rng.random() < 0.5:
        report |= {"sort": rng.choice(["rating", "effort", "length"]), "headline": "stages.py:headline"}
    job = {"name": "names", "inputs": inputs}
    return {"version": 1, "job": job, "devices": {"use": "cpu*1"}, "stages": stages, "report": report}


NAMES = (
    "rating", "effort", "sketch", "weight", "title", "kind", "looseness", "letters", "headline", "Draw",
    "Rate", "Polish", "Loose", "steps", "strength", "count", "jsonl", "group_by", "outputs", "samples",
    "best", "when", "target", "function", "command", "params", "call", "stages", "report", "sort", "inputs",
    "devices", "use", "rows", "run", "by", "number", "text",
)  # fmt: skip


def misspell(rng: random.Random, text: str) -> tuple[str, str, str] | None:
    """``text`` with one occurrence of one name misspelt; the name and how it is written now."""
    places = [
        match
        for name in NAMES
        for match in re.finditer(rf"(?<![A-Za-z_]){name}(?![A-Za-z_])", text)
        # names of the job's own, which may be anything
        if not re.search(r"name: $", text[: match.start()])
    ]
    if not places:
        return None
    match = rng.choice(places)
    name = match[0]
    at = rng.randrange(1, len(name))
    wrong = rng.choice([name[:at] + name[at + 1 :], name[:at] + "q" + name[at:], name[:at] + name[at - 1 :]])
    if wrong in NAMES or wrong == name:
        return None
    return text[: match.start()] + wrong + text[match.end() :], name, wrong


@pytest.mark.parametrize("seed", range(examples(100)))
def test_a_misspelt_name_is_never_accepted(folder: Path, seed: int, recwarn: Any) -> None:
    rng = random.Random(seed)
    job = yaml.safe_dump(random_job(rng), sort_keys=False, width=1000)
    (folder / "job.yaml").write_text(job)
    pipeline = Pipeline.from_yaml(folder / "job.yaml")
    if seed % 20 == 0:
        result = pipeline.run(backend="inline", out=folder / "right")
        assert not result.failures, result.failures[0].error
    found = misspell(rng, job)
    if found is None:
        return
    text, name, wrong = found
    (folder / "job.yaml").write_text(text)
    try:
        pipeline = Pipeline.from_yaml(folder / "job.yaml")
        result = pipeline.run(backend="inline", out=folder / "wrong")
    except ConfigError as error:
        assert wrong in str(error), (name, text)  # noqa: PT017
        return
    told = [item.error.message for item in result.failures if item.error]
    notes = " ".join(pipeline.spec.notes)
    assert wrong in notes or (told and all(wrong in one for one in told)), (name, wrong, text)


GRAPH = DRAW.replace("samples: 3, ", "") % ("%s", ", needs: %s%s", "")


@pytest.mark.parametrize(
    ("of_rate", "needs", "more", "place", "said"),
    [
        ("", "[drw]", "", "stages[2].needs[0] (line 7)", "no stage 'drw'; did you mean 'draw'?"),
        ("", "[polish]", "", "stages[2].needs[0] (line 7)", "'polish' cannot need itself"),
        ("", "[rate, rate]", "", "stages[2].needs[1] (line 7)", "'rate' is given twice"),
        (", needs: [polish]", "[]", "", "stages[1].needs[0] (line 6)", "comes later in the file"),
        (", needs: [polish]", "[draw, rate]", "", "stages[1].needs[0] (line 6)",
         "nothing could begin: rate needs polish needs rate"),
        ("", "[draw]", ", when: 'rating > 3'", "stages[2].when (line 7)",
         "made by stage 'rate', which this one does not need; write needs: [draw, rate]"),
        ("", "[draw]", ", samples: 3", "stages[2].samples (line 7)",
         "stage 'rate' runs beside this one, and samples are of a whole item"),
        (", best: {by: rating}, samples: 2", "[draw]", "", "stages[1].samples (line 6)",
         "put 'polish' before it"),
    ],
)  # fmt: skip
def test_wrong_needs_are_refused_with_line_and_suggestion(
    folder: Path, of_rate: str, needs: str, more: str, place: str, said: str
) -> None:
    found = faults_of(folder, GRAPH % (of_rate, needs, more))
    assert said in found[place]
    assert len(found) == 1


@pytest.mark.parametrize("needs", ["draw", "[draw]", "[rate, draw]", "[]"])
def test_right_needs_are_not(folder: Path, needs: str) -> None:
    (folder / "job.yaml").write_text(GRAPH % ("", needs, ""))
    spec, _ = load_job(folder / "job.yaml")
    assert spec.graph.needs[2] == {"draw": (0,), "[draw]": (0,), "[]": ()}.get(needs, (0, 1))
