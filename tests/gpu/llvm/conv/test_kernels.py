"""Kernels of small convolutions: what a loop over taps gives, at odd shapes, and no memory beyond touched."""

import ast
from pathlib import Path

import numpy as np
import pytest

from evenload.gpu.hashing.rules import RULES
from evenload.gpu.llvm import program, programs
from evenload.gpu.llvm.conv.geometry import Geometry, channel_scratch_bytes, scratch_bytes
from evenload.gpu.llvm.conv.programs import channel_program, conv_program
from evenload.gpu.llvm.field.floats import lanes_for
from evenload.gpu.llvm.hash import hash_kernels, poseidon_kernels

pytest.importorskip("llvmlite")

GUARD = 12345.0
GEOMETRIES = [  # in, out, height, width, kernel, padding; clients, samples, dtype
    ((1, 6, 9, 8, 5, 5, 2, 2), 2, 32, np.float32),
    ((3, 5, 7, 11, 3, 3, 0, 0), 3, 10, np.float32),
    ((2, 7, 5, 6, 3, 2, 2, 1), 1, 17, np.float64),
    ((4, 3, 1, 13, 1, 4, 0, 2), 2, 5, np.float64),
    ((2, 2, 4, 4, 4, 4, 0, 0), 2, 1, np.float32),
]
CHANNEL_GEOMETRIES = [
    *GEOMETRIES[1:4:2],
    ((3, 19, 6, 7, 3, 3, 1, 1), 2, 3, np.float32),  # a vector that channels do not fill
    ((17, 9, 4, 5, 2, 3, 1, 0), 2, 2, np.float64),
    ((40, 48, 3, 30, 1, 3, 0, 1), 1, 1, np.float32),  # rows longer than a tile
]
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-12}


def slow_forward(x, weight, bias, g):
    """x [clients, samples, in, height, width] float64: a loop over taps."""
    around = [(0, 0)] * 3 + [(g.pad_height, g.pad_height), (g.pad_width, g.pad_width)]
    padded = np.pad(x, around)
    y = np.zeros((*x.shape[:2], g.c_out, g.out_height, g.out_width)) + bias[:, None, :, None, None]
    for i in range(g.k_height):
        for j in range(g.k_width):
            part = padded[..., i : i + g.out_height, j : j + g.out_width]
            y += np.einsum("kncyx,koc->knoyx", part, weight[..., i, j])
    return y


def slow_gradients(x, weight, grad, g):
    """Of the sum of y * grad: with respect to x, weight and bias."""
    around = [(0, 0)] * 3 + [(g.pad_height, g.pad_height), (g.pad_width, g.pad_width)]
    padded, dweight = np.pad(x, around), np.zeros_like(weight)
    dpadded = np.zeros_like(padded)
    for i in range(g.k_height):
        for j in range(g.k_width):
            here = (..., slice(i, i + g.out_height), slice(j, j + g.out_width))
            dweight[..., i, j] = np.einsum("kncyx,knoyx->koc", padded[here], grad)
            dpadded[here] += np.einsum("knoyx,koc->kncyx", grad, weight[..., i, j])
    h, w = g.pad_height, g.pad_width
    dx = dpadded[..., h : h + g.height, w : w + g.width]
    return dx, dweight, grad.sum((1, 3, 4))


class Arena:
    """Arrays with guards on both sides."""

    def __init__(self, dtype):
        self._all, self._dtype = [], dtype

    def put(self, values):
        values = np.asarray(values, self._dtype)
        whole = np.full(values.size + 64, GUARD, self._dtype)
        whole[32:-32] = values.ravel()
        self._all.append(whole)
        return whole[32:-32].reshape(values.shape)

    def assert_untouched(self):
        for whole in self._all:
            assert (whole[:32] == GUARD).all()
            assert (whole[-32:] == GUARD).all()


def last(x):
    return np.moveaxis(x, 1, -1)


def channels_last(x):
    return np.moveaxis(x, 2, -1)


def by_samples(g, samples, n_bytes):
    lanes = lanes_for(samples, n_bytes)
    return last, conv_program(g, lanes, n_bytes), scratch_bytes(g, lanes, n_bytes)


def by_channels(g, samples, n_bytes):
    lanes = lanes_for(1 << 20, n_bytes)
    return channels_last, channel_program(g, lanes, n_bytes), channel_scratch_bytes(g, lanes, n_bytes)


@pytest.mark.parametrize(
    ("kind", "numbers", "clients", "samples", "dtype"),
    [(by_samples, *case) for case in GEOMETRIES] + [(by_channels, *case) for case in CHANNEL_GEOMETRIES],
)
def test_the_kernels_are_the_loop_over_taps(kind, numbers, clients, samples, dtype):
    g = Geometry(*numbers)
    order, program, size = kind(g, samples, np.dtype(dtype).itemsize)
    rng, arena = np.random.default_rng(0), Arena(dtype)
    x = rng.normal(size=(clients, samples, g.c_in, g.height, g.width))
    weight, bias = (
        rng.normal(size=(clients, g.c_out, *rest)) for rest in ((g.c_in, g.k_height, g.k_width), ())
    )
    grad = rng.normal(size=(clients, samples, g.c_out, g.out_height, g.out_width))
    own_x, own_grad, own_weight, own_bias = map(arena.put, (order(x), order(grad), weight, bias))
    y, dx = arena.put(np.full_like(order(grad), np.nan)), arena.put(np.full_like(order(x), np.nan))
    dweight, dbias = arena.put(np.full_like(weight, np.nan)), arena.put(np.full_like(bias, np.nan))
    scratch = arena.put(np.full(size // np.dtype(dtype).itemsize, np.nan))

    def at(*arrays):
        return [a.ctypes.data for a in arrays]

    program.forward(*at(own_x, own_weight, own_bias, y, scratch), clients, samples)
    scratch[:] = np.nan
    program.input_gradient(*at(own_grad, own_weight, dx, scratch), clients, samples)
    scratch[:] = np.nan
    program.weight_gradient(*at(own_x, own_grad, dweight, dbias, scratch), clients, samples)

    arena.assert_untouched()
    slow = slow_gradients(x, weight, grad, g)
    for found, expected in zip(
        (y, dx, dweight, dbias),
        (order(slow_forward(x, weight, bias, g)), order(slow[0]), *slow[1:]),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kind", [by_samples, by_channels])
def test_a_sample_that_is_not_a_number_stays_with_its_client(kind):
    g, clients, samples = Geometry(3, 5, 7, 11, 3, 3, 0, 0), 3, 10
    order, program, size = kind(g, samples, 4)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(clients, samples, g.c_in, g.height, g.width)).astype(np.float32)
    grad = rng.normal(size=(clients, samples, g.c_out, g.out_height, g.out_width)).astype(np.float32)
    x[1], grad[1, -1] = np.nan, np.inf
    dweight = np.zeros((clients, g.c_out, g.c_in, 3, 3), np.float32)
    dbias = np.zeros((clients, g.c_out), np.float32)
    arrays = (*(np.ascontiguousarray(order(t)) for t in (x, grad)), dweight, dbias, np.zeros(size, np.uint8))
    program.weight_gradient(*(a.ctypes.data for a in arrays), clients, samples)
    assert np.isfinite(dweight[[0, 2]]).all()
    assert np.isfinite(dbias[[0, 2]]).all()
    assert np.isnan(dweight[1]).all()


def modules_behind(files):
    """The files of ``evenload.gpu`` that these import, and those in turn; without the list of programs."""
    root, found, todo = Path(program.__file__).parents[3], set(), [Path(file) for file in files]
    while todo:
        path = todo.pop()
        if path not in found and path.exists() and path.name not in ("program.py", "programs.py"):
            found.add(path)
            nodes = [one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.ImportFrom)]
            names = [f"{one.module}.{name.name}" for one in nodes for name in one.names]
            names = [name for name in [*names, *(str(one.module) for one in nodes)] if ".gpu." in name]
            todo += [root.joinpath(*name.split(".")).with_suffix(".py") for name in names]
    return found


def test_a_programs_hash_covers_all_modules_that_its_code_is_made_from(monkeypatch):
    """Else an older program would be taken from the cache. Oracle: the import statements of its modules."""
    monkeypatch.setattr(program, "load", lambda recipe: recipe)
    shape = Geometry(2, 3, 5, 5, 3, 3, 1, 1), 8, 4
    recipes = [made.__wrapped__(*shape) for made in (conv_program, channel_program)]
    recipes += [programs.scalar_recipe(), *map(programs.bulk_recipe, programs.LEVELS)]
    recipes += [poseidon_kernels.poseidon_recipe(level) for level in programs.LEVELS]
    recipes += [hash_kernels.hash_recipe(rule, 256) for rule in RULES]
    for recipe in recipes:
        sources = {Path(source) for source in recipe.sources}
        assert modules_behind(sources) <= sources, recipe.name
