"""A notebook's cells, whose pools are dealt after ``%load_ext evenload``. The oracle is the plain loop."""

import subprocess
import sys

import pytest

pytest.importorskip("IPython", reason="IPython is not installed")
CELLS = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in (
    "%load_ext evenload",
    "%evenload",
    "import multiprocessing, sys\\ndef square(x):\\n    return x * x",
    "with multiprocessing.get_context('fork').Pool(2) as pool:\\n    print(pool.map(square, range(9)))",
    "%reload_ext evenload",
    "with multiprocessing.get_context('fork').Pool(2) as pool:\\n    print(pool.map(square, range(3)))",
    "%evenload",
):
    shell.run_cell(cell).raise_error()
"""


def test_pools_of_cells_are_dealt(tmp_path):
    (tmp_path / "cells.py").write_text(CELLS)
    ended = subprocess.run(
        [sys.executable, tmp_path / "cells.py"],
        capture_output=True,
        text=True,
        timeout=500,
        env={"PATH": "", "IPYTHONDIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    first, squares, again, told = ended.stdout.splitlines()[:4]
    assert first.startswith("evenload: this script gave no work"), ended.stderr
    assert squares == str([x * x for x in range(9)])
    assert again == str([x * x for x in range(3)])
    assert told.startswith("evenload: 12 items of square in ")
