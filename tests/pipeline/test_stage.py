"""Tests the runner of a stage: it builds the stage, calls it, checks and encodes what it returns."""

import dataclasses
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pipeline.written_jobs import write_job

from evenload.errors import ConfigError, UnknownName
from evenload.pipeline import Pipeline
from evenload.pipeline.stage import Item, StageSetup
from evenload.pipeline.stage_runner import StageRunner, save
from evenload.pipeline.target import CodeTarget, load_target, locate_target

STAGES = """
import sibling

class Scale:
    def __init__(self, context, *, by):
        self.context, self.by, self.is_closed = context, by, False
    def __call__(self, inputs, item, *, plus=0):
        return {"value": inputs["n"] * self.by + plus, "noise": item.rng().integers(1 << 30)}
    def close(self):
        self.is_closed = True

class Bare:
    def __call__(self, inputs, item):
        return sibling.OUTPUTS

class Flaky:
    def __init__(self, context):
        self.n = 0
    def __call__(self, inputs, item):
        self.n += 1
        if self.n <= inputs["n"]:
            raise OSError(f"attempt {self.n}")
        return {"attempts": self.n}
"""
DEVICE = SimpleNamespace(id="cpu:0", torch="cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stages.py").write_text(STAGES)
    (tmp_path / "sibling.py").write_text("OUTPUTS = {}\n")
    return tmp_path


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("sibling", None)


def worker(folder: Path, name: str, **fields) -> StageSetup:
    return StageSetup("one", locate_target(f"stages.py:{name}", folder), folder, folder / "run", **fields)


def run(folder: Path, name: str, inputs: dict, item: Item | None = None, **fields):
    item = item or Item(3, "a")
    return item.index, saved(StageRunner(worker(folder, name, **fields), DEVICE), inputs, item)


def saved(runner: StageRunner, inputs: dict, item: Item) -> dict:
    """The outputs of a call, whose files are written."""
    made = runner.call(inputs, item)
    save(made)
    return made.outputs


def returns(folder: Path, outputs: object, declared: dict[str, str], inputs: dict):
    runner = StageRunner(worker(folder, "Bare", outputs=declared), DEVICE)
    sys.modules["sibling"].OUTPUTS = outputs
    return saved(runner, inputs, Item(0, "a"))


def test_params_go_to_the_constructor_and_call_to_each_call(folder: Path) -> None:
    index, outputs = run(folder, "Scale", {"n": 5}, params={"by": 2}, call={"plus": 1})
    assert index == 3
    assert outputs["value"] == 11


def test_a_stage_with_its_own_interpreter(folder: Path) -> None:
    from evenload.pipeline.plan import Fit
    from evenload.pipeline.worker.foreign_python import ForeignStageRunner

    (folder / "apart.py").write_text(
        "import os, sys\n"
        "class Apart:\n"
        "    def __init__(self, context, *, by): self.by, self.torch = by, context.device.torch\n"
        "    def __call__(self, inputs, item):\n"
        "        print('talk, not an answer')\n"
        "        if inputs.get('x') == 'die': os._exit(3)\n"
        "        if inputs.get('x') is None: raise LookupError('no x')\n"
        "        return {'pid': os.getpid(), 'y': inputs['x'] * self.by, 'text': 'words', 'on': self.torch}\n"
    )
    apart = StageSetup(
        "apart", CodeTarget("apart", "Apart", folder / "apart.py"), folder, folder / "run", {"by": 3},
        outputs={"text": "txt"}, python=sys.executable,
    )  # fmt: skip
    runner = ForeignStageRunner(apart, DEVICE, Fit(), 1)
    try:
        outputs, files, to_save, _ = runner.call({"x": 4}, Item(0, "a\ud800", 5))
        assert not to_save  # it is on disk already
        assert (outputs["y"], outputs["on"]) == (12, DEVICE.torch)
        assert outputs["pid"] != os.getpid()
        assert (folder / "run" / outputs["text"]).is_file()
        assert files["text"][0] == (folder / "run" / outputs["text"]).stat().st_size
        with pytest.raises(RuntimeError, match="no x") as caught:
            runner.call({}, Item(0, "a"))
        assert type(caught.value).__name__ == "LookupError"
        with pytest.raises(ConfigError, match="exit code 3"):
            runner.call({"x": "die"}, Item(0, "a"))
        assert runner.call({"x": 1}, Item(1, "b")).outputs["y"] == 3  # a new one was started
    finally:
        runner.close()
    with pytest.raises(ConfigError, match="cannot be started"):
        ForeignStageRunner(dataclasses.replace(apart, python="no/python"), DEVICE, Fit(), 1)


def test_the_context_says_device_folder_and_seed(folder: Path) -> None:
    runner = StageRunner(worker(folder, "Scale", params={"by": 2}, seed=9), DEVICE)
    context = runner._stage.context
    assert (context.stage, context.device, context.folder, context.seed) == ("one", DEVICE, folder, 9)
    assert context.path("w.bin") == folder / "w.bin"
    runner.close()
    assert runner._stage.is_closed


def test_randomness_comes_from_the_items_seed_alone(folder: Path) -> None:
    noise = [
        run(folder, "Scale", {"n": n}, Item(index, name, seed), params={"by": 1})[1]["noise"]
        for n, index, name, seed in [(1, 0, "a", 7), (2, 5, "b", 7), (1, 0, "a", 8)]
    ]
    assert noise[0] == noise[1] != noise[2]
    assert Item(0, "a", 7).generator().initial_seed() == 7


def test_files_are_written_and_stand_as_relative_paths(folder: Path) -> None:
    picture = np.zeros((2, 2), dtype=np.uint8)
    made = returns(folder, {"out": picture, "n": 1}, {"out": "png"}, {})
    assert made == {"out": "outputs/one/a.png", "n": 1}
    both = {"out": "png", "note": "txt"}
    assert returns(folder, {"out": picture, "note": "x"}, both, {})["note"] == "outputs/one/a.note.txt"
    assert (folder / "run/outputs/one/a.note.txt").read_text() == "x"
    there = {path.name for path in (folder / "run/outputs/one").iterdir()}
    assert there == {"a.note.txt", "a.out.png", "a.png"}


def test_plain_values_are_kept_and_numpy_scalars_unpacked(folder: Path) -> None:
    values = {"f": np.float32(0.5), "i": np.int64(3), "t": "x", "b": True, "none": None, "inf": float("inf")}
    kept = returns(folder, values, {}, {})
    assert kept == {"f": 0.5, "i": 3, "t": "x", "b": True, "none": None, "inf": float("inf")}
    assert type(kept["f"]) is float
    assert type(kept["i"]) is int


@pytest.mark.parametrize(
    ("outputs", "declared", "said"),
    [
        (None, {}, "returned NoneType"),
        ([1], {}, "returned list"),
        ({}, {"out": "png"}, "did not return out"),
        ({1: 2}, {}, "an output called 1, of type int"),
        ({"n": 1}, {}, "which the item has already"),
        ({"x": np.zeros(3)}, {}, "that is of type ndarray"),
        ({"x": [1]}, {}, "that is of type list"),
        ({"x": "1"}, {"x": "number"}, "that is str, not number"),
        ({"x": True}, {"x": "number"}, "that is bool, not number"),
        ({"x": 1}, {"x": "text"}, "that is int, not text"),
        ({"x": 1}, {"x": "boolean"}, "that is int, not boolean"),
        ({"x": "no picture"}, {"x": "png"}, "no picture"),
        ({"x": 10**5000}, {}, "more than 4299 digits"),
        ({"x": -(10**5000)}, {"x": "number"}, "more than 4299 digits"),
    ],
)
def test_outputs_that_cannot_be_kept(folder: Path, outputs: object, declared: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        returns(folder, outputs, declared, {"n": 0})


def test_retries(folder: Path) -> None:
    assert run(folder, "Flaky", {"n": 2}, retries=2)[1] == {"attempts": 3}
    with pytest.raises(OSError, match="attempt 2"):
        run(folder, "Flaky", {"n": 2}, retries=1)


def test_a_module_that_fails_is_tried_again(folder: Path) -> None:
    (folder / "late.py").write_text("raise OSError('not yet')\nclass Late: ...\n")
    target = locate_target("late.py:Late", folder)
    with pytest.raises(OSError, match="not yet"):
        load_target(target)
    (folder / "late.py").write_text("from decimal import *\n")
    with pytest.raises(UnknownName):
        load_target(target)
    assert load_target(locate_target("late.py:Decimal", folder)).__name__ == "Decimal"


def test_a_stage_that_fails_to_close_does_not_cost_the_next_one(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    code = """
class First:
    def __call__(self, inputs, item): return {"one": 1}
    def close(self): raise OSError("the server is gone")
class Second:
    def __call__(self, inputs, item): return {"two": inputs["one"] + 1}
"""
    stages = "  - {name: first, target: 'stages.py:First'}\n  - {name: second, target: 'stages.py:Second'}\n"
    job = write_job(tmp_path, code, stages, 2, more="schedule: {mode: swap}\n")
    result = Pipeline.from_yaml(job, ["report.html=false"]).run(backend="inline")
    assert [row.outputs.get("two") for row in result] == [2, 2]
    assert "first: close() raised OSError: the server is gone" in capsys.readouterr().err
