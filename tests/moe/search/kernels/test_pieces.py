"""The search's kernels lie in several files: numba's cache must notice when any of them changes."""

import ast
from pathlib import Path

import pytest

from evenload.moe.search.kernels import greedy_search, random_search

FOLDER = Path(random_search.__file__).parent
ROOM = random_search.__name__.rpartition(".")[0]


def neighbours(name):
    """``name``, and the modules of the folder that it imports from, and those that these import from."""
    found = {name}
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{ROOM}."):
            found |= neighbours(str(node.module).removeprefix(f"{ROOM}."))
    return found


@pytest.mark.parametrize("module", [greedy_search, random_search])
def test_a_kernel_is_sealed_with_all_its_pieces(module):
    """And with the tuples it takes: to numba those with fields in another order would be of the same type."""
    pieces = neighbours(module.__name__.rpartition(".")[2])
    assert set(module.PIECES) == pieces | {"state"}
