"""When two outputs count as equal, against outputs of which that is known."""

import pytest
from loaded_programs import load

pytest.importorskip("psutil", reason="the program kills workers with psutil")
exec_scripts = load("benchmarks/exec_scripts.py")

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
