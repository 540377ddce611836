"""What a worker's machine has of a job, and copies of what it lacks."""

from dataclasses import replace
from pathlib import Path

import pytest

from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.worker_protocol import TaskInputs
from evenload.pipeline.run.machines.remote_workers import (
    describe_file,
    files_of_job,
    models_of,
    paths_of,
    with_content,
)
from evenload.pipeline.site import SiteCheck
from evenload.pipeline.stage import Item, ModelFolder, StageSetup
from evenload.pipeline.target import CodeTarget, has_sources
from evenload.pipeline.worker.site import ScratchFolder, Site


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


@pytest.fixture
def setup(tmp_path: Path) -> StageSetup:
    folder, run_folder = tmp_path / "job", tmp_path / "run"
    for name, text in (("stages.py", "class A: pass"), ("net/a.bin", "weights"), ("net/deep/b.bin", "more")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    run_folder.mkdir()
    file = folder / "stages.py"
    sources = ((str(file), digest_of(file.read_bytes())),)
    params = {"weights": "net", "rate": 3, "more": ["stages.py", "no such file", "/dev/null"], "up": "../run"}
    target = CodeTarget("stages", "A", file)
    return StageSetup("a", target, folder, run_folder, params, sources=sources)


def check_of(setup: StageSetup, token: str = "t") -> SiteCheck:
    (setup.run_folder / "job.json.x.tmp").write_text("t")
    stages = [setup]
    files, models, paths = files_of_job(stages), models_of(stages), paths_of(stages)
    return SiteCheck(setup.run_folder, "job.json.x.tmp", token, files, models, paths)


def test_a_machine_with_all_folders_uses_them(setup: StageSetup, own_temporary_folder: Path) -> None:
    site = Site([setup], check_of(setup))
    assert site.report() == type(site.report())()
    assert site.stages() == (setup,)
    site.close()
    assert not list(own_temporary_folder.iterdir())
    assert [path.name for path in setup.run_folder.iterdir()] == ["job.json.x.tmp"]


def test_a_machine_without_them_works_with_copies(setup: StageSetup, own_temporary_folder: Path) -> None:
    check = check_of(setup, token="of another folder")
    check = replace(check, job_files=tuple(one._replace(mark="another") for one in check.job_files))
    site = Site([setup], check)
    assert (site.has_run_folder, site.report().has_job_files) == (False, False)
    assert not Site([setup], replace(check_of(setup), run_folder=setup.run_folder / "gone")).has_run_folder
    site.take([with_content(given) for given in files_of_job([setup])])
    assert site.report().has_job_files
    (here,) = site.stages()
    assert here.folder != setup.folder
    assert has_sources(here.sources)
    assert here.target.file is not None
    assert here.target.file.read_text() == "class A: pass"
    assert (here.folder / "net" / "deep" / "b.bin").read_text() == "more"
    assert own_temporary_folder in here.run_folder.parents
    site.close()
    assert not list(own_temporary_folder.iterdir())


def test_what_is_missing_is_named(setup: StageSetup, tmp_path: Path) -> None:
    setup = replace(setup, model=ModelFolder("models/edit"))
    check = replace(check_of(setup), models={0: "/job/models/edit"}, paths={0: ("/nowhere/x", "/dev/null")})
    assert Site([setup], check).report().lacks == {0: ("/nowhere/x", "models/edit (/job/models/edit)")}


def test_inputs_are_found_or_given(setup: StageSetup, tmp_path: Path) -> None:
    site, path = Site([setup], check_of(setup)), tmp_path / "a picture.png"
    path.write_bytes(b"content")
    known = describe_file(path)
    task = StageTask(0, 1)
    inputs = TaskInputs(task, {"path": str(path), "n": 3}, Item(0, "a"), files=((("path",), known),))
    found = site.with_files(inputs)
    assert found is not None
    assert found.values == inputs.values
    empty = tmp_path / "empty"
    empty.touch()
    given = inputs._replace(
        files=((("path",), with_content(known)), (("more",), with_content(describe_file(empty))))
    )
    path.write_bytes(b"another")
    assert site.with_files(inputs._replace(files=((("path",), known._replace(mark="x")),))) is None
    path.unlink()
    assert site.with_files(inputs) is None
    here = site.with_files(given)
    assert here is not None
    assert Path(here.values["path"]).name == "a picture.png"
    assert Path(here.values["path"]).exists()
    assert Path(here.values["more"]).read_bytes() == b""
    assert here.values["n"] == 3
    site.forget(task)
    assert not Path(here.values["path"]).exists()
    site.close()


def test_scratch_folders_of_killed_processes_are_swept(own_temporary_folder: Path) -> None:
    mine = ScratchFolder()
    left = own_temporary_folder / "evenload-site-killed"
    left.mkdir()
    (left / "lock").touch()
    (own_temporary_folder / "evenload-site-odd").symlink_to("/")
    other = ScratchFolder()
    assert mine.path.is_dir()
    assert not left.exists()
    other.close()
    mine.close()
    assert [path.name for path in own_temporary_folder.iterdir()] == ["evenload-site-odd"]
