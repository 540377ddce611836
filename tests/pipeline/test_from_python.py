"""Pipelines that a program puts together. The oracle is the user's own loop over the same functions."""

import asyncio
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples_count import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError, SpecError
from evenload.pipeline import Pipeline, PipelineResult, Stage

LOUDNESS = 3


class Scale:
    """A stage that uses a global, its constructor's argument and what each call is given."""

    def __init__(self, context: Any, *, by: int = 2):
        self.by = by

    def __call__(self, inputs: Any, item: Any, *, plus: int = 0) -> dict[str, Any]:
        return {"scaled": inputs["n"] * self.by * LOUDNESS + plus}


async def soon(value: Any) -> Any:
    return value


async def ask(row: Any) -> str:
    return await soon(f"answer {row['scaled']}")


def loop(rows: list[dict[str, Any]], *steps: Callable[[dict[str, Any]], dict[str, Any]]) -> list[dict]:
    """What a person would write: every step on every row, and what each row has got."""
    results = []
    for row in rows:
        known, made = dict(row), {}
        for step in steps:
            made |= step(known | made)
        results.append(made)
    return results


def outputs(result: PipelineResult) -> list[dict[str, Any]]:
    assert result.status == "done", [str(row.error) for row in result.failures]
    return [dict(row.outputs) for row in result]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), min_size=1, max_size=5))
def test_values_come_back_as_they_were_from_items_of_any_kind(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    """The oracle is the loop; ``repr`` tells 1 from True and 1.0, and -0.0 from 0.0."""
    folder = tmp_path_factory.mktemp("any")

    def all_of(inputs: Any) -> dict[str, Any]:
        return {"all": {**inputs}}

    more: dict[str, Any] = {"folder": folder, "report": {"html": False, "trace": False}}
    pipeline = Pipeline([Stage(all_of, outputs={"all": "json"})], **more)
    result = pipeline.run(iter(rows), backend="inline")
    assert repr(outputs(result)) == repr(loop(rows, lambda row: {"all": row}))
    assert repr([dict(row.inputs) for row in result]) == repr(rows)
    # A second program finds them in the run folder.
    again = Pipeline([Stage(all_of, outputs={"all": "json"})], **more).run(rows, backend="inline")
    assert (repr(outputs(again)), again.n_restored) == (repr(outputs(result)), len(rows))


def test_numbers_that_are_not_finite_stay_numbers(tmp_path: Path) -> None:
    """The oracle is the loop, here and after a resume; ``results.jsonl`` alone has null, as JSON must."""
    rows = [{"a": 1e308, "b": 10.0}, {"a": -1e308, "b": 10.0}, {"a": 1e308, "b": 0.0}, {"a": 1.0, "b": 10.0}]
    stages: list[Any] = [
        Stage(lambda row: row["a"] * row["b"], name="product"),
        Stage(lambda row: row["product"] - row["product"], name="rest"),
        Stage(lambda row: repr([row["product"] > 1e300, row["product"], row["rest"]]), name="seen"),
    ]

    def expected(row: dict[str, Any]) -> dict[str, Any]:
        product, rest = row["a"] * row["b"], row["a"] * row["b"] - row["a"] * row["b"]
        return {"product": product, "rest": rest, "seen": repr([product > 1e300, product, rest])}

    for backend in ("process", "inline"):  # the second takes the first's results from the journal
        result = Pipeline(stages, folder=tmp_path, devices="cpu*1", name="odd").run(rows, backend=backend)
        assert repr(outputs(result)) == repr([expected(row) for row in rows])
        lines = (result.folder / "results.jsonl").read_text().splitlines()
        assert [json.loads(line)["outputs"]["product"] for line in lines] == [None, None, 0.0, 10.0]
    assert result.n_restored == 12
    # What another stage gets of them comes from the journal.
    more = [*stages[:2], Stage(lambda row: f"{row['rest']} {row['product']}", name="last")]
    again = Pipeline(more, folder=tmp_path, devices="cpu*1", name="odd").run(rows, backend="inline")
    wanted = [f"{one['rest']} {one['product']}" for one in map(expected, rows)]
    assert [row["last"] for row in outputs(again)] == wanted


def test_a_stage_gets_the_id_that_its_item_has(tmp_path: Path) -> None:
    """The oracle is the loop, from workers and from a run folder; conditions take the id for a text."""
    rows: list[dict[str, Any]] = [{"id": 7, "n": 1}, {"id": "x", "n": 2}, {"n": 3}, {"id": None, "n": 4}]

    def tell(row: Any) -> str:
        return repr(row.get("id", "none")) + str(row["n"])

    only = Stage(lambda row: row["id"], name="only", when="id == '7'")
    pipeline = Pipeline([tell, only], folder=tmp_path, devices="cpu*1")
    for backend in ("process", "inline"):  # the second takes the first's results from the run folder
        result = pipeline.run(rows, backend=backend)
        assert [row.outputs["tell"] for row in result] == [tell(row) for row in rows]
        assert [(row.id, row.status) for row in result][:2] == [("7", "done"), ("x", "filtered")]
        assert result[0].outputs["only"] == 7


def test_classes_closures_lambdas_and_coroutines_travel_to_workers(tmp_path: Path) -> None:
    lock = 7

    class Nested(Scale):
        def __call__(self, inputs: Any, item: Any, *, plus: int = 0) -> dict[str, Any]:
            return {"nested": super().__call__(inputs, item, plus=plus)["scaled"] + lock}

    stages = [
        Stage(Scale, params={"by": 5}, call={"plus": 1}),
        Stage(Nested, params={"by": 4}),
        ask,
        Stage(lambda row: row["n"] ** 2 + lock, name="square", outputs={"squared": "number"}),
        Stage(functools.partial(lambda row, item, at: {"at": at, "who": item.id}, at=9), in_flight=1),
    ]
    rows = [{"n": n} for n in range(6)]
    result = Pipeline(stages, folder=tmp_path, devices="cpu*2").run(rows)
    assert outputs(result) == loop(
        rows,
        lambda row: Scale(None, by=5)(row, None, plus=1),
        lambda row: {"nested": Scale(None, by=4)(row, None)["scaled"] + lock},
        lambda row: {"ask": asyncio.run(ask(row))},
        lambda row: {"squared": row["n"] ** 2 + lock},
        lambda row: {"at": 9, "who": str(row["n"])},
    )
    assert result[2].id == "2"
    assert "6 done of 6 items" in repr(result)


SHOUT = {"run": ["echo", '{{"shouted": "{words}"}}'], "reads_json": True}


def test_the_same_job_in_yaml_gives_the_same_rows_from_the_command_line(
    tmp_path: Path, own: Any, evenload: list[str]
) -> None:
    stages = [
        Stage(own.Grow, params={"by": 3}, call={"plus": 1}, batch=2, outputs={"grown": "number"}),
        Stage(own.greet, outputs={"words": "text"}, when="grown > 4"),
        Stage(kind="command", name="shout", params=SHOUT),
    ]
    keys: dict[str, Any] = {"devices": "cpu*1", "seed": 5, "inputs": {"group_by": "kind"}}
    pipeline = Pipeline(stages, folder=tmp_path, name="twin", **keys)
    rows = [{"id": f"r{n}", "n": n, "kind": "even" if n % 2 == 0 else "odd"} for n in range(5)]
    text = pipeline.to_yaml(rows, "twin.yaml")
    assert text == (tmp_path / "twin.yaml").read_text()
    assert "own.steps:Grow" in text
    assert str(tmp_path) not in text
    here = pipeline.run(rows, out=tmp_path / "here")
    there = subprocess.run(
        [*evenload, "run", "twin.yaml", "-o", "there", "-q", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert there.returncode == 0, there.stderr
    lines = (tmp_path / "here/results.jsonl").read_text()  # with the key id, which a table has for itself
    lines = re.sub(r'("inputs": \{)"id": "r\d", ', r"\1", lines)
    assert (tmp_path / "there/results.jsonl").read_text() == lines
    done = [row for row in here if row.status == "done"]
    assert [dict(row.outputs) for row in done] == loop(
        [row for row in rows if row["n"] * 3 + 1 > 4],
        lambda row: {"grown": row["n"] * 3 + 1},
        lambda row: {"words": f"hello {row['id']} {row['grown']}"},
        lambda row: {"shouted": row["words"]},
    )
    # The run folder holds a whole job: it is gone on with from the command line, and all is there.
    again = Pipeline.from_run(tmp_path / "here").run(out=tmp_path / "here", backend="inline")
    assert (again.n_restored, [row.id for row in again]) == (here.n_done * 3 + 2, [row["id"] for row in rows])
    assert Pipeline.from_yaml(tmp_path / "twin.yaml").spec.stages == pipeline.spec.stages
    # Stages of a file go on with other items, also of those that a job names.
    other = Pipeline.from_yaml(tmp_path / "twin.yaml").run([{"n": 9, "kind": "x"}], backend="inline")
    assert other[0].outputs["grown"] == 28
    assert Pipeline.from_yaml(tmp_path / "twin.yaml").plan({"jsonl": "twin.jsonl"}).n_items == 5


def test_code_that_no_file_holds_cannot_be_written_and_is_named(tmp_path: Path, own: Any) -> None:
    pipeline = Pipeline(
        [own.greet, Stage(own.hidden, name="hidden"), Stage(lambda row: 1, name="one")],
        folder=tmp_path, devices="cpu*1",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"cannot name the code of hidden, one: .*\n?.*move it to a file"):
        pipeline.to_yaml([1])
    with pytest.raises(ConfigError, match="do not belong to the folder"):
        Pipeline([own.greet], folder=tmp_path).to_yaml([1], tmp_path / "own" / "job.yaml")
    pipeline = Pipeline([Stage(lambda row: 1, name="one")], folder=tmp_path)
    assert pipeline.run([1], backend="inline").status == "done"
    with pytest.raises(SpecError, match=r"'<lambda>' was given in Python.*run the program again"):
        Pipeline.from_run(tmp_path / "runs" / "pipeline")
    with pytest.raises(SpecError, match="another interpreter imports its code"):
        Pipeline([Stage(lambda row: 1, name="one", python=sys.executable)])


def test_all_faults_are_told_at_once_by_name(tmp_path: Path) -> None:
    stages = [
        Stage(Scale, parms={}, params={"bye": 1}),
        Stage(lambda row: 1, batch=0, call={"model": object()}, params={"by": 2}),
        Stage(Scale, name="eight", batch=8),
        Stage("stages.py:Gone", name="gone"),
        Stage(kind="openay", name="ask"),
    ]
    with pytest.raises(SpecError) as caught:
        Pipeline(stages, folder=tmp_path, nam="x", schedul=3, errors={"retry": 1})
    for words in (
        "job.nam: unknown key; did you mean 'name'?",
        "schedul: unknown key; did you mean 'schedule'?",
        "errors.retry: unknown key; did you mean 'retries'?",
        "stages[0].parms: unknown key; did you mean 'params'?",
        "stages[0].params: unknown 'bye'; did you mean 'by'?",
        "stages[1].batch: input should be greater than or equal to 1, not 0",
        "stages[1].params: a function takes none",
        "stages[1].call: a value with <object object",
        "stages[3].target: there is no file",
        "stages[4].kind: unknown kind 'openay'; did you mean 'openai'?",
    ):
        assert words in str(caught.value)
    for wrong in (lambda: Stage(Scale, kind="openai"), lambda: Stage(5), lambda: Pipeline(Scale)):
        with pytest.raises(ConfigError):
            wrong()
    with pytest.raises(ConfigError, match=r"is no stage\n.*arguments as params="):
        Stage(functools.partial(Scale, by=2))
    with pytest.raises(SpecError, match=r"stages\[0\].batch: Scale has no method batch"):
        Pipeline([Stage(Scale, batch=8)], folder=tmp_path).run([{"n": 1}])


def test_items_are_dicts_values_paths_frames_or_what_a_job_file_says(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "in" / name).write_text(name)
    stage = Stage(lambda row: {"all": {**row}}, name="see", outputs={"all": "json"})
    see = Pipeline([stage], folder=tmp_path, report={"html": False, "trace": False})

    def seen(items: Any) -> list[tuple[str, dict[str, Any]]]:
        return [(row.id, row.outputs["all"]) for row in see.run(items, backend="inline", fresh=True)]

    files = sorted((tmp_path / "in").iterdir())
    by_path = [(file.stem, {"path": str(file)}) for file in files]
    assert seen(files) == by_path == seen({"folder": "in"}) == seen({"glob": "in/*.txt"})
    assert seen([Path("in/a.txt")]) == by_path[:1]
    assert seen([{"id": "x", "path": "in/a.txt"}]) == [("x", {"id": "x", **by_path[0][1]})]
    assert seen(n * 0.5 for n in range(2)) == [("0", {"value": 0.0}), ("1", {"value": 0.5})]
    numbers = [{"v": one} for one in (np.int64(3), np.float64(0.1), np.bool_(True), np.str_("x"))]
    assert repr([one["v"] for _, one in seen(numbers)]) == "[3, 0.1, True, 'x']"
    assert seen(["in/a.txt"]) == [("0", {"value": "in/a.txt"})]
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"id": ["p", "q"], "n": [1, 2], "x": [0.5, None]})
    assert repr(seen(frame)) == repr([("p", {"id": "p", "n": 1, "x": 0.5}), ("q", {"id": "q", "n": 2})])
    polars = pytest.importorskip("polars", reason="polars is not installed")
    assert repr(seen(polars.from_pandas(frame))) == repr(seen(frame))
    for wrong, words in (
        ([], "there is none"),
        (b"ab", "are no items"),
        ({"n": 1}, "are no items"),
        ([{"n": (1, 2)}], r"items\[0\]: column 'n' holds \(1, 2\), of type tuple"),
        ([{"n": float("nan")}, {"m": {3}}], r"items\[0\].*(.|\n)*items\[1\]: column 'm' holds \{3\}"),
        ([{"v": np.float32(0.1)}], r"items\[0\]: column 'v' holds .*, of type float32, .* give float"),
        ([{"v": 1}, {"v": np.uint8(200)}], r"items\[1\]: column 'v' holds .*, of type uint8"),
        ([{"id": "a"}, {"id": "a"}], "the id 'a' is given twice"),
        ({"glob": "*.none"}, "there is no file that matches"),
        ({"glob": "in/*", "grp": 1}, "grp: unknown key"),
        (None, "there are no items"),
    ):
        with pytest.raises(ConfigError, match=words):
            see.run(wrong, backend="inline")


def test_devices_in_the_place_of_items_still_work_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "n": 2}\n')
    pipeline = Pipeline([Scale], folder=tmp_path, inputs={"jsonl": "rows.jsonl"})
    with pytest.warns(DeprecationWarning, match="write devices='cpu"):
        result = pipeline.run("cpu*1", backend="inline")
    assert outputs(result) == [{"scaled": 12}]


def test_what_cannot_be_sent_is_refused_before_there_is_a_run_folder(tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(row: Any) -> int:
        with lock:
            return row["value"] + 1

    pipeline = Pipeline([locked], folder=tmp_path, devices="cpu*1")
    with pytest.raises(SpecError, match=r"stages\[0\]\.params\.function: .*locked cannot be sent.*'lock'"):
        pipeline.run([1])
    assert not (tmp_path / "runs").exists()
    assert outputs(pipeline.run([1], backend="inline")) == [{"locked": 2}]


PROGRAM = """
import os, sys, time
from evenload.pipeline import Pipeline, Stage

FACTOR = 3

def note(word):
    with open("calls", "a") as file: file.write(word + "\\n")

class Slow:
    def __call__(self, inputs, item):
        note(f"slow {item.id}")
        time.sleep(0.02)
        return {"slow": inputs["n"] * FACTOR}

def quick(row, item):
    note(f"quick {item.id}")
    return row["slow"] + 1

if __name__ == "__main__":
    result = Pipeline([Slow, quick], devices="cpu*2", report={"html": False, "trace": False}).run(
        [{"n": n} for n in range(40)])
    assert result.status == "done"
    print([row.outputs["quick"] for row in result])
"""


def test_a_killed_program_goes_on_and_what_was_edited_is_done_anew(
    tmp_path: Path, popen: Callable[..., subprocess.Popen], until: Callable[..., None], evenload: list[str]
) -> None:
    """The oracle is the program's own count of its calls, and plain arithmetic."""
    calls = tmp_path / "calls"

    def program(text: str, *python: str) -> subprocess.Popen:
        (tmp_path / "program.py").write_text(text)
        return popen(
            [*python, "program.py"],
            cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def counted(text: str) -> tuple[list[int], list[str]]:
        calls.write_text("")
        said, _ = program(text, *evenload[:-2]).communicate(timeout=500)
        return json.loads(said.splitlines()[-1]), calls.read_text().splitlines()

    calls.write_text("")
    first = program(PROGRAM, sys.executable)
    until(lambda: calls.read_text().count("slow") >= 20, "twenty calls")
    os.killpg(first.pid, signal.SIGKILL)
    first.wait(timeout=500)
    before = calls.read_text().splitlines()
    # A comment, and a function that nobody calls, are no other code.
    results, after = counted(PROGRAM.replace("def quick", "# quick\ndef other(): pass\n\ndef quick"))
    assert results == [n * 3 + 1 for n in range(40)]
    twice = set(before) & set(after)
    assert len(twice) <= 2 * 8  # what was in a worker's hand
    assert len(after) <= 80 - len(before) + len(twice)
    results, after = counted(PROGRAM.replace("+ 1\n", "+ 2\n"))
    assert results == [n * 3 + 2 for n in range(40)]
    assert sorted(set(after)) == sorted({f"quick {n}" for n in range(40)})


CELLS = (
    "import asyncio\nfrom evenload.pipeline import Pipeline, Stage\nfactor = 3\n"
    "def times(n):\n    return n * factor",
    "class Grow:\n    def __init__(self, context, *, by): self.by = by\n"
    "    def __call__(self, inputs, item): return {'grown': times(inputs['n']) + self.by}\n"
    "async def wait(row):\n    await asyncio.sleep(0)\n    return row['grown'] * 2",
    "pipeline = Pipeline([Stage(Grow, params={'by': 1}), wait], devices='cpu*1')\n"
    "rows = [{'n': n} for n in range(4)]\nresult = pipeline.run(rows)\n"
    "assert [row.outputs['wait'] for row in result] == [(times(n) + 1) * 2 for n in range(4)]",
    "assert pipeline.run(rows).n_restored == 8",
    "def times(n):\n    return n * factor - 1",
    "again = pipeline.run(rows)\nassert again.n_restored == 0, again\n"
    "assert [row.outputs['wait'] for row in again] == [(n * 3 - 1 + 1) * 2 for n in range(4)]\nagain",
    "def broken(row):\n    x = 1\n    return row['pth']",
    "bad = Pipeline([broken], name='bad', devices='cpu*1').run(rows)\nprint(bad.failures[0].error)",
    "try:\n    Pipeline([Stage(Grow, params={'bye': 1})])\nexcept Exception as error:\n    print(error)",
)


def test_classes_and_functions_of_a_notebook_are_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells run in a real kernel; each compares with its own loop over the same functions."""
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    client = nbclient.NotebookClient(
        notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    said = [
        str(out.get("text") or out.get("data", {}).get("text/plain", ""))
        for cell in notebook.cells
        for out in cell["outputs"]
        if out.get("name") != "stderr"
    ]
    assert "<4 done of 4 items" in said[0]
    assert said[1].startswith("broken: KeyError: 'pth' (")
    assert said[1].rstrip().endswith("line 3)")
    assert "unknown 'bye'; did you mean 'by'?" in said[2]
