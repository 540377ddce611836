"""Workflows of the hosted service: they may write only what they must, and what they call exists."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WRITES = {  # by file and job: all that may be written, with the reason beside it in the file
    ("release.yml", "build"): {"id-token", "attestations"},
    ("release.yml", "publish"): {"id-token"},
    ("docs.yml", "publish"): {"contents"},
}
FREE_OF_SECRETS = re.compile(r"\$\{\{\s*(secrets|github\.event|github\.head_ref)")


def parsed(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_there_are_workflows():
    assert {path.name for path in WORKFLOWS} >= {"ci.yml", "release.yml", "docs.yml"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_writes_only_what_it_must(path):
    workflow = parsed(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        granted = {what for what, access in job.get("permissions", {}).items() if access != "read"}
        assert granted == WRITES.get((path.name, name), set()), name
        assert job["timeout-minutes"] <= 60
    assert not FREE_OF_SECRETS.search(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_calls_exists(path):
    known = targets()
    for step in steps(parsed(path)):
        if "uses" in step:
            assert re.fullmatch(r"[\w./-]+@(v\d+(\.\d+)*|release/v1|[0-9a-f]{40})", step["uses"]), step[
                "uses"
            ]
            continue
        for goals in re.findall(r"(?:^|&& |; )make ([a-z -]+)", step["run"], re.MULTILINE):
            assert set(goals.split()) <= known, goals
        for called in re.findall(r"(?<![\w./-])((?:\.ci|scripts|tests|src)/[\w./-]+)", step["run"]):
            assert (ROOT / called).exists(), called


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_checkout_leaves_no_credentials_unless_it_pushes(path):
    for name, job in parsed(path)["jobs"].items():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@") and (path.name, name) != (
                "docs.yml",
                "publish",
            ):
                assert step["with"]["persist-credentials"] is False


def test_a_release_waits_for_an_approval_and_has_no_token():
    publish = parsed(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["publish"]
    assert publish["environment"]["name"] == "pypi"
    assert publish["needs"] == "build"


def test_every_other_file_of_the_repository_is_sound():
    for path in [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"]:
        assert parsed(path), path


def test_the_version_is_one():
    version = re.search(r'"(.+)"', (ROOT / "src" / "evenload" / "_version.py").read_text(encoding="utf-8"))[1]
    assert parsed(ROOT / "CITATION.cff")["version"] == version
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.search(r"^## (\d\S*) - (\d{4}-\d\d-\d\d)$", log, re.MULTILINE)
    assert released[1] == version
    assert str(parsed(ROOT / "CITATION.cff")["date-released"]) == released[2]
    assert f"| {version.rpartition('.')[0]} | yes |" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_each_classifier_of_a_version_is_checked_by_a_workflow_or_between_two_that_are():
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [int(minor) for minor in re.findall(r":: 3\.(\d+)", "\n".join(facts["classifiers"]))]
    tested = parsed(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["linux"]["strategy"]["matrix"][
        "python"
    ]
    assert [f"3.{min(named)}", f"3.{max(named)}"] == tested
