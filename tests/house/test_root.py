"""The top folder of the repository: only what is meant to be there."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MEANT = {
    ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CITATION.cff", "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md", "GOVERNANCE.md", "LICENSE", "Makefile", "README.md", "ROADMAP.md", "SECURITY.md",
    "constraints.txt", "mkdocs.yml", "pyproject.toml",
    "size-budget.toml",
}  # fmt: skip


def test_what_an_example_wrote_is_not_committed():
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout, but an unpacked archive")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    at_top = {name for name in listed.splitlines() if "/" not in name}
    assert at_top - MEANT == set(), "tried an example here? If it is meant to be here, name it above"
