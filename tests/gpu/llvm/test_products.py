"""Products of many clients: held against numpy's in float64, whatever the order, width and level."""

import os
import subprocess
import sys

import numpy as np
import pytest

from evenload.gpu.llvm.products import ProductShape, product_program
from evenload.native import machine

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
GUARD = 7.25
# clients, rows, columns, depth
SHAPES = [(3, 32, 64, 32), (1, 1, 1, 1), (2, 7, 5, 3), (2, 29, 33, 1), (1, 3, 130, 9)]


def guarded(values):
    """The values with guards on both sides, and a view of them alone."""
    whole = np.full(values.size + 64, GUARD, values.dtype)
    whole[32:-32] = values.ravel()
    return whole, whole[32:-32].reshape(values.shape)


def steps(a):
    return tuple(stride // a.itemsize for stride in a.strides)


def difference(shape, dtype, lanes, is_turned, right_is_turned=False, adds=True):
    """The largest difference of the kernel's sums from numpy's, in units of rounding of their size.

    The middle client is not alive, so that it has what it had.
    """
    clients, rows, columns, depth = shape
    rng = np.random.default_rng(0)
    left = rng.normal(size=(clients, depth, rows) if is_turned else (clients, rows, depth)).astype(dtype)
    left = left.swapaxes(1, 2) if is_turned else left
    right = rng.normal(size=(clients, columns, depth) if right_is_turned else (clients, depth, columns))
    right = right.astype(dtype)
    right_steps = steps(right)[:2]
    right = right.swapaxes(1, 2) if right_is_turned else right
    start = rng.normal(size=(clients, rows, columns)).astype(dtype)
    whole, into = guarded(start)
    product = ProductShape(
        rows, columns, depth, steps(left), right_steps, steps(into)[:2], right_is_turned, adds
    )
    program = product_program(product, lanes, np.dtype(dtype).itemsize)
    alive = np.arange(clients) != clients // 2
    flags = alive.ctypes.data if clients > 1 else 0
    program.multiply(left.ctypes.data, right.ctypes.data, into.ctypes.data, clients, flags)
    if clients > 1:
        assert np.array_equal(into[~alive], start[~alive])
        left, right, start, into = (a[alive] for a in (left, right, start, into))
    assert (whole[:32] == GUARD).all()
    assert (whole[-32:] == GUARD).all()
    start = start * adds
    size = np.abs(start) + np.abs(left).astype(float) @ np.abs(right).astype(float)
    expected = start + left.astype(float) @ right.astype(float)
    return float((np.abs(into - expected) / size).max() / np.finfo(dtype).eps)


ORDERS = ((False, False, True), (True, True, False), (False, True, True))
CASES = [(dtype, *order) for dtype in (np.float32, np.float64) for order in ORDERS]
WIDTHS = (4, 8, 16)
MADE = [(shape, lanes, case) for shape in SHAPES for lanes in WIDTHS for case in CASES]
PAIRED = [  # each is a kernel that must be compiled; whatever two of the three are, some kernel has both
    (shape, lanes, CASES[(at + 2 * turn + half) % 6])
    for at, shape in enumerate(SHAPES)
    for turn, lanes in enumerate(WIDTHS)
    for half in (0, 3)
]


@pytest.mark.parametrize("made", [PAIRED, pytest.param(MADE, marks=pytest.mark.slow)], ids=["pairs", "all"])
def test_sums_are_numpys_in_every_order_and_width(made):
    for shape, lanes, (dtype, left, right, adds) in made:
        assert difference(shape, dtype, lanes, left, right, adds) <= shape[3] + 2, (shape, lanes, dtype)


def test_columns_of_a_wider_matrix_are_written_alone():
    wide, right = np.zeros((2, 6, 40), np.float32), np.ones((2, 5, 50), np.float32)
    left = np.ones((2, 6, 5), np.float32)
    into, part = wide[:, :, 3:24], right[:, :, 7:28]
    product = ProductShape(6, 21, 5, steps(left), steps(part)[:2], steps(into)[:2])
    product_program(product, 16, 4).multiply(left.ctypes.data, part.ctypes.data, into.ctypes.data, 2, 0)
    assert (into == 5).all()
    assert wide.sum() == 5 * into.size


ASK = """if True:
    import numpy as np
    from test_products import difference
    from evenload.gpu.llvm.field.floats import lanes_for
    lanes = lanes_for(64, 4)
    assert difference((3, 32, 64, 32), np.float32, lanes, True, True) <= 34
    print(lanes)
"""


@pytest.mark.parametrize(("forced", "lanes"), [("x86-64-v3", 8), ("x86-64-v4", 16)])
def test_every_level_has_the_product(forced, lanes, request):
    if forced not in machine.baselines_here():
        pytest.skip(f"this processor is no {forced}")
    path = os.pathsep.join([str(request.path.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "EVENLOAD_PROCESSOR": forced, "PYTHONPATH": path}
    command = [sys.executable, "-c", ASK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550)
    assert (done.stdout.strip(), done.returncode) == (str(lanes), 0), done.stderr
