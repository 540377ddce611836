"""The router's kernel lies in several files: numba's cache must notice when any of them changes."""

import ast
from pathlib import Path

from evenload.balance.flow.kernels import route as kernel
from evenload.balance.flow.kernels.jit import fingerprint
from evenload.balance.flow.kernels.memory import lay_out

FOLDER = Path(kernel.__file__).parent
ROOM = kernel.__name__.rpartition(".")[0]


def neighbours(name):
    """The modules of the folder that ``name`` imports from, and those that these import from."""
    found = set()
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{ROOM}."):
            module = str(node.module).removeprefix(f"{ROOM}.")
            found |= {module} | neighbours(module)
    return found


def test_the_kernel_is_sealed_with_all_its_pieces():
    assert set(kernel.PIECES) == neighbours("route")
    (cell,) = kernel.route_layers.py_func.__closure__
    assert cell.cell_contents == fingerprint(str(FOLDER), *kernel.PIECES) != 0


def test_a_changed_piece_changes_the_fingerprint(tmp_path):
    (tmp_path / "piece.py").write_text("STEP = 1")
    before = fingerprint(str(tmp_path), "piece")
    (tmp_path / "piece.py").write_text("STEP = 2")
    assert fingerprint(str(tmp_path), "piece") != before
    assert fingerprint(str(tmp_path), "piece", "not_there") == 0


def test_arrays_of_a_block_lie_where_its_table_says_and_do_not_overlap():
    block, arrays = lay_out(
        {"a": ((3,), "int32"), "none": ((0,), "float64"), "b": ((2, 5), "bool"), "c": ((9,), "int64")}
    )
    for i, array in enumerate(arrays.values()):
        array[...] = i + 1
        start = array.__array_interface__["data"][0] - block.__array_interface__["data"][0]
        assert start == 8 * block[i] or not array.size
        assert array.nbytes <= 8 * (block[i + 1] - block[i])
    assert [set(array.ravel().tolist()) for array in arrays.values()] == [{1}, set(), {True}, {4}]
