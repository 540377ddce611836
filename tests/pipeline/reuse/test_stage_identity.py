"""What makes a stage's results: code that it uses, params, files, weights, versions."""

from pathlib import Path

import pytest

from evenload.pipeline.job.spec_stage import StageSpec
from evenload.pipeline.reuse.content_digests import ContentDigests
from evenload.pipeline.reuse.stage_identity import StageIdentity, identify_stage
from evenload.same_code import package_versions

FILES = {
    "stages.py": "import json\nfrom draw import pen\nfrom . import nothing\nclass Draw:\n    tool = pen\n",
    "draw.py": "from ink import colour\ndef pen(): return colour\ndef brush(): return 2\n",
    "ink.py": "colour = 1\nother = 2\n",
    "aside.py": "never = 1\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "weights.bin").write_bytes(b"1")
    return tmp_path


def identity(folder: Path, **given) -> StageIdentity:
    section = {"name": "draw", "target": "stages.py:Draw", **given}
    stage = StageSpec.model_validate(section, context={"folder": None})
    return identify_stage(stage, folder, ContentDigests())


def test_params_count_with_the_files_that_they_name(folder: Path) -> None:
    was = identity(folder, params={"k": 1, "weights": ["weights.bin"]})
    assert identity(folder, params={"weights": ["weights.bin"], "k": 1}).digest == was.digest
    assert identity(folder, params={"k": 2, "weights": ["weights.bin"]}).digest != was.digest
    (folder / "weights.bin").write_bytes(b"2")
    assert identity(folder, params={"k": 1, "weights": ["weights.bin"]}).digest != was.digest


@pytest.mark.parametrize(
    ("given", "is_same"),
    [
        ({"devices": "cpu"}, True),
        ({"batch": 4}, True),
        ({"batch": 4, "batch_changes_bits": "allow"}, False),
        ({"timeout_s": 3}, True),
        ({"when": "a > 1"}, True),
        ({"samples": 3}, True),
        ({"estimate": {"item_s": 3}}, True),
        ({"outputs": {"x": "txt"}}, False),
        ({"call": {"k": 1}}, False),
    ],
)
def test_who_enters_where_and_when_changes_no_result(folder: Path, given, is_same) -> None:
    assert (identity(folder, **given).digest == identity(folder).digest) == is_same


def test_weights_count_by_content_and_not_by_place(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "w").write_bytes(b"w")
    digests = [identity(folder, model={"path": name}).digest for name in ("one", "two")]
    assert digests[0] == digests[1]
    (folder / "two/w").write_bytes(b"v")
    assert identity(folder, model={"path": "two"}).digest != digests[0]
    assert identity(folder, model={"path": "one", "dtype": "float16"}).digest != digests[0]


def test_versions_of_what_may_use_models_are_those_of_all_model_packages(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(package_versions, "_version", lambda name: None if name == "jax" else f"{name} 1")
    found = {name for name in identity(folder).facts if name.startswith("version ")}
    assert found == {"version python", "version numpy", "version PIL"}
    (folder / "ink.py").write_text(FILES["ink.py"] + "import click\n")
    found = {name for name in identity(folder).facts if name.startswith("version ")}
    assert {"version torch", "version diffusers", "version click"} < found
    assert "version jax" not in found
