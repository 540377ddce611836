"""The lines of each room stay within the committed budget.

The oracle of the count is a fresh repository with files of known length, and what git says changed in it.
"""

import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from loaded_programs import load


@pytest.fixture(scope="module")
def size() -> ModuleType:
    return load("scripts/size.py")


def test_no_room_is_above_its_budget(size: ModuleType) -> None:
    assert size.faults(size.lines_now(), size.budget()) == []


def test_lines_and_their_change_are_what_git_counts(size: ModuleType, tmp_path: Path) -> None:
    def write(path: str, n: int) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("one = 1\n" * n)

    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    write("src/evenload/errors.py", 7)
    write("src/evenload/moe/routing/planner.py", 20)
    write("tests/moe/test_planner.py", 5)
    git("init")
    git("add", ".")
    git("commit", "--message", "first")
    write("src/evenload/moe/routing/planner.py", 12)
    write("src/evenload/moe/new.py", 3)
    (tmp_path / "tests/moe/test_planner.py").unlink()
    lines = size.lines_now(tmp_path)
    change = size.change_since("HEAD", tmp_path)
    assert lines == {"evenload": 7, "moe": 15}
    assert change == {"moe": -5, "tests": -5}
    allowed = {"evenload": 7, "moe": 14, "tests": 5}
    assert size.faults(lines, allowed) == [
        "moe has 15 lines, and its budget is 14",
        "tests has a budget and no files",
    ]
    assert "moe                  15       14       -5" in size.table(lines, allowed, change)
