"""The run folder: what it takes away, and what it never touches."""

import json
from pathlib import Path

import pytest

from evenload.errors import ConfigError
from evenload.pipeline.store.run_folder import RunFolder


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a" / "b")
    assert folder.path == tmp_path / "a" / "b"
    assert folder.path.is_dir()
    assert RunFolder.create(tmp_path / "a" / "b").path == folder.path  # it is still empty


def test_an_earlier_run_is_taken_away_only_if_asked(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    folder.write_results([{"id": "a"}])
    (tmp_path / "outputs" / "one").mkdir(parents=True)
    (tmp_path / "outputs" / "one" / "a.png").write_bytes(b"")
    with pytest.raises(ConfigError, match="holds a run already"):
        RunFolder.create(tmp_path)
    RunFolder.create(tmp_path, fresh=True)
    assert list(tmp_path.iterdir()) == []


def test_what_was_half_written_is_swept_and_not_taken_for_a_strangers(tmp_path: Path) -> None:
    RunFolder.create(tmp_path)
    (tmp_path / "journal").mkdir()
    for name in ("config.yaml.2129.tmp", ".report.html.x7.tmp"):
        (tmp_path / name).write_text("half")
    folder = RunFolder.create(tmp_path)
    assert folder.is_resumed
    folder.sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


@pytest.mark.parametrize("fresh", [False, True])
def test_other_files_are_never_touched(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        RunFolder.create(tmp_path, fresh=fresh)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.json", "thesis.tex"]


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        RunFolder.create(tmp_path / "run")
    with pytest.raises(ConfigError, match="cannot write"):
        RunFolder.create(tmp_path / "run" / "below")


def test_rows_are_strict_json(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    folder.write_results([{"id": "grün", "path": Path("x")}, {"id": "b"}])
    lines = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["grün", "b"]
    odd = [{"id": "nan", "x": [float("nan"), {"y": float("inf")}]}, {"id": "\ud800"}, {"id": "last"}]
    folder.write_results(odd)
    text = (tmp_path / "results.jsonl").read_bytes().decode("utf-8")
    rows = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert rows == [{"id": "nan", "x": [None, {"y": None}]}, {"id": "\ud800"}, {"id": "last"}]


def test_inputs_are_copied_under_safe_names(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(b"pixels")
    folder = RunFolder.create(tmp_path / "run")
    relative = folder.keep_input("../a:b", tmp_path / "x.jpg")
    assert relative == "inputs/%2E2E/a%3Ab.jpg"
    assert (folder.path / relative).read_bytes() == b"pixels"


@pytest.mark.parametrize("fresh", [False, True])
def test_a_run_goes_on_beside_what_people_and_their_programs_put_there(tmp_path: Path, fresh: bool) -> None:
    """Oracle: the names that evenload's other commands, editors and file managers leave in a run's folder."""
    others = {
        "run.cert.json",
        "compare.html",
        "t.json",
        "log.txt",
        ".DS_Store",
        ".nfs0001",
        ".results.jsonl.swp",
    }
    RunFolder.create(tmp_path).begin(tmp_path, "a job")
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "journal.json").write_text("{}")
    for name in others:
        (tmp_path / name).write_text("kept")
    assert RunFolder.create(tmp_path, fresh=fresh).is_resumed is not fresh
    assert {path.name for path in tmp_path.iterdir()} == others | (
        set() if fresh else {"job.json", "journal"}
    )


def test_a_folder_with_hidden_files_alone_is_empty(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").write_text("kept")
    assert not RunFolder.create(tmp_path).is_resumed
