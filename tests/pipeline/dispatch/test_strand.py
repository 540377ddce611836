"""Tests where a failure is said to have happened. The oracle is Python's own traceback of the same call."""

import traceback
from pathlib import Path

import pytest

from evenload.executor.task.user_file import import_file
from evenload.pipeline.dispatch.strand import ItemFailure


@pytest.mark.parametrize(
    ("line", "number"),
    [("return {}['pth']", 3), ("return json.loads('{')", 3), ("return inner()", 5)],
)
def test_the_place_is_the_users_last_line(tmp_path: Path, line: str, number: int) -> None:
    file = tmp_path / "own code.py"
    file.write_text(f"import json\ndef outer():\n    {line}\ndef inner():\n    return [][1]\n")
    module = import_file(file, "own_code_of_this_test")
    with pytest.raises((LookupError, ValueError)) as caught:
        module.outer()
    text = "".join(traceback.format_exception(caught.value))
    assert ItemFailure("s", "E", "m", text).place == f"{file} line {number}"


def test_a_failure_of_no_code_of_the_user_has_no_place() -> None:
    ours = traceback.FrameSummary(str(Path(traceback.__file__)), 7, "f")
    for text in ("", "WorkerLost: gone", "".join(traceback.format_list([ours]))):
        assert ItemFailure("s", "E", "m", text).place == ""
