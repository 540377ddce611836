"""When two outputs count as equal, against outputs of which that is known."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("psutil", reason="the program kills workers with psutil")
_SPEC = importlib.util.spec_from_file_location(
    "exec_scripts", Path(__file__).parents[2] / "benchmarks" / "exec_scripts.py"
)
exec_scripts = importlib.util.module_from_spec(_SPEC)  # its folder has modules with the names of test rooms
_SPEC.loader.exec_module(exec_scripts)

PLAIN = ["sum 6\ntook 0.12 s\nForkPoolWorker-1 did 3\n", "sum 6\ntook 0.13 s\nForkPoolWorker-2 did 3\n"]


@pytest.mark.parametrize(
    ("ours", "is_equal"),
    [
        ("took 1.5 s\nForkPoolWorker-9 did 3\nsum 6\n", True),
        ("sum 7\ntook 0.12 s\nForkPoolWorker-1 did 3\n", False),
        ("sum 6\nForkPoolWorker-1 did 3\n", False),
        ("sum 6\ntook 0.12 s\nForkPoolWorker-1 did 3\nsum 6\n", False),
        ("sum 6\nlasted 0.12 s\nForkPoolWorker-1 did 3\n", False),
    ],
)
def test_what_hangs_on_time_may_differ_and_nothing_else(ours, is_equal):
    assert exec_scripts.are_equal(ours, PLAIN) == is_equal
