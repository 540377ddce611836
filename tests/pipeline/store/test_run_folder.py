"""The run folder: what it takes away, and what it never touches."""

import json
import random
import shutil
import threading
import time
from pathlib import Path

import pytest

from evenload.errors import ConfigError
from evenload.pipeline.store import run_folder
from evenload.pipeline.store.run_folder import RunFolder, is_in_use


def test_an_earlier_run_is_taken_away_only_if_asked(tmp_path: Path) -> None:
    with RunFolder.opened(tmp_path) as folder:
        folder.write_results([{"id": "a"}])
    shutil.rmtree(tmp_path / "journal")
    (tmp_path / "outputs" / "one").mkdir(parents=True)
    (tmp_path / "outputs" / "one" / "a.png").write_bytes(b"")
    with pytest.raises(ConfigError, match="holds a run already"), RunFolder.opened(tmp_path):
        pass
    with RunFolder.opened(tmp_path, fresh=True):
        assert [path.name for path in tmp_path.iterdir()] == ["journal"]


def test_what_was_half_written_is_swept_and_not_taken_for_a_strangers(tmp_path: Path) -> None:
    for name in ("journal", "outputs/rate"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("config.yaml.2129.tmp", ".report.html.x7.tmp", "outputs/rate/i1.png.77.tmp"):
        (tmp_path / name).write_text("half")
    with RunFolder.opened(tmp_path) as folder:
        assert folder.is_resumed
        assert sorted(path.name for path in tmp_path.rglob("*") if path.parent.name != "journal") == [
            "journal", "outputs", "rate"
        ]  # fmt: skip


@pytest.mark.parametrize("fresh", [False, True])
def test_other_files_are_never_touched(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        RunFolder.opened(tmp_path, fresh=fresh).__enter__()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.json", "thesis.tex"]


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="is a file"), RunFolder.opened(tmp_path / "run"):
        pass
    with pytest.raises(ConfigError, match="cannot write"), RunFolder.opened(tmp_path / "run" / "below"):
        pass


def test_one_process_has_a_run_folder_at_a_time_and_leaves_it_for_the_next(tmp_path: Path) -> None:
    """Oracle: the caller, who reads and writes files that lie in the folder."""
    with RunFolder.opened(tmp_path / "run") as folder:
        folder.write_results([{"id": "a"}])
        assert is_in_use(folder.path)
        for fresh in (False, True):
            with pytest.raises(ConfigError, match="under way") as caught:
                RunFolder.opened(tmp_path / "run", fresh=fresh).__enter__()
            assert "journal" not in str(caught.value)
        with pytest.raises(ConfigError, match="under way"):
            RunFolder.of_run(tmp_path / "run").__enter__()
    assert not is_in_use(folder.path)
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    with RunFolder.of_run(tmp_path / "run") as again:
        assert again.is_resumed
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(ConfigError, match="not the folder of a run"):
        RunFolder.of_run(tmp_path).__enter__()


@pytest.mark.parametrize("seed", range(2))
def test_of_runs_that_begin_anew_at_once_each_keeps_what_it_writes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: whoever has the folder reads its own files again: they went while another looked for a lock."""
    chance, faults, n_had = random.Random(seed), [], []

    def slowly(path: Path) -> bool:
        found = is_in_use(path)
        time.sleep(chance.random() / 100)
        return found

    monkeypatch.setattr(run_folder, "is_in_use", slowly)

    def begin_anew(me: str, pauses: list[float]) -> None:
        for pause_s in pauses:
            try:
                with RunFolder.opened(tmp_path / "run", fresh=True) as folder:
                    folder.write_text("config.yaml", me)
                    time.sleep(pause_s)
                    names = {path.name for path in folder.path.iterdir()}
                    is_mine = "config.yaml" in names and folder.file("config.yaml").read_text() == me
                    faults.extend([] if is_mine and is_in_use(folder.path) else [(me, names)])
                    n_had.append(me)
            except ConfigError:
                pass

    threads = [
        threading.Thread(target=begin_anew, args=(f"{n}", [chance.random() / 200 for _ in range(20)]))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(500)
    assert not faults
    assert n_had


@pytest.mark.parametrize("spoil", ["a link", "open to others", "a file", "no journal"])
def test_a_journal_that_is_no_good_is_taken_away_if_asked(tmp_path: Path, spoil: str) -> None:
    with RunFolder.opened(tmp_path / "run") as folder:
        folder.write_results([{"id": "a"}])
    journal, elsewhere = tmp_path / "run" / "journal", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("kept")
    if spoil == "open to others":
        journal.chmod(0o777)
    else:
        shutil.rmtree(journal)
        if spoil == "a link":
            journal.symlink_to(elsewhere)
        elif spoil == "a file":
            journal.write_text("")
        else:
            journal.mkdir()
            (journal / "notes").write_text("")
    with RunFolder.opened(tmp_path / "run", fresh=True) as folder:
        assert folder.ledger.is_empty
        assert [path.name for path in folder.path.iterdir()] == ["journal"]
    assert (elsewhere / "mine").read_text() == "kept"


@pytest.mark.parametrize("spoil", ["a link", "open to others"])
def test_a_journal_that_others_may_have_written_is_not_gone_on_with(tmp_path: Path, spoil: str) -> None:
    with RunFolder.opened(tmp_path / "run"):
        pass
    journal = tmp_path / "run" / "journal"
    if spoil == "a link":
        journal.rename(tmp_path / "elsewhere")
        journal.symlink_to(tmp_path / "elsewhere")
    else:
        journal.chmod(0o777)
    for open_it in (RunFolder.opened, RunFolder.of_run):
        with pytest.raises(ConfigError, match=spoil):
            open_it(tmp_path / "run").__enter__()


def test_rows_are_strict_json(tmp_path: Path) -> None:
    odd = [{"id": "nan", "x": [float("nan"), {"y": float("inf")}]}, {"id": "\ud800"}, {"id": "last"}]
    with RunFolder.opened(tmp_path) as folder:
        folder.write_results([{"id": "grün", "path": Path("x")}, {"id": "b"}])
        lines = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["id"] for line in lines] == ["grün", "b"]
        folder.write_results(odd)
    text = (tmp_path / "results.jsonl").read_bytes().decode("utf-8")
    rows = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert rows == [{"id": "nan", "x": [None, {"y": None}]}, {"id": "\ud800"}, {"id": "last"}]


def test_inputs_are_copied_under_safe_names(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(b"pixels")
    with RunFolder.opened(tmp_path / "run") as folder:
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
    with RunFolder.opened(tmp_path) as folder:
        folder.begin(tmp_path, "a job")
    for name in others:
        (tmp_path / name).write_text("kept")
    with RunFolder.opened(tmp_path, fresh=fresh) as folder:
        assert folder.is_resumed is not fresh
    assert {path.name for path in tmp_path.iterdir()} == others | (
        {"journal"} if fresh else {"job.json", "journal"}
    )


def test_a_folder_with_hidden_files_alone_is_empty(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").write_text("kept")
    with RunFolder.opened(tmp_path) as folder:
        assert not folder.is_resumed
