"""Convolutions by kernels: the serial result for clients of every shape, else torch's own."""

import runpy
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, vmap

from evenload.clients import SGD, Adam, Recipe, train
from evenload.clients.fused.rules import with_rules
from evenload.clients.spread.equivalence_check import difference
from evenload.clients.step import image_speedups
from evenload.clients.step.convolution import is_plain
from evenload.clients.step.dropout import kept_of, uniform_of
from evenload.clients.step.image_kernels import layout
from evenload.clients.step.image_kernels.operations import KernelConvolution, kept

pytest.importorskip("llvmlite")


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 5, 5, padding=2), nn.Conv2d(5, 7, (3, 2), bias=False)
        self.out = nn.Linear(7 * 2 * 3, 4)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.first(x)), 2)
        return self.out(torch.tanh(self.second(x)).flatten(1))


class Lines(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Conv1d(3, 4, 5, padding=2), nn.Conv1d(4, 6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))).mean(-1))


class Colours(nn.Module):
    """Channels fill vectors; a batch of ten does not."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 24, 3, padding=1)
        self.drop, self.out = nn.Dropout(0.25), nn.Linear(24 * 3 * 3, 4)

    def forward(self, x):
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.out(self.drop(torch.max_pool2d(x, 2)).flatten(1))


CASES = {
    "pictures": (Pictures, (2, 8, 8), 4),
    "lines": (Lines, (3, 11), 3),
    "colours": (Colours, (3, 8, 8), 4),
}


def clients_of(shape, n_classes, sizes):
    g = torch.Generator().manual_seed(3)
    return [
        (torch.randn((n, *shape), generator=g), torch.randint(0, n_classes, (n,), generator=g)) for n in sizes
    ]


@pytest.fixture
def calls(monkeypatch):
    """Convolutions done by kernels."""
    made, apply = [], KernelConvolution.apply
    monkeypatch.setattr(KernelConvolution, "apply", lambda *args: made.append(args) or apply(*args))
    return made


def trained(case, strategy, dtype=torch.float32, batch=8, optimizer=SGD(lr=0.1, momentum=0.9)):  # noqa: B008
    """Ragged clients by the strategy, and how far they end from serial training."""
    model, shape, n_classes = CASES[case]
    data = [(x.to(dtype), y) for x, y in clients_of(shape, n_classes, (9, 33, 14, 1, 20))]
    recipe = Recipe(optimizer=optimizer, batch_size=batch, steps=5)
    runs = [train(lambda: model().to(dtype), data, recipe, strategy=s, seed=1) for s in ("serial", strategy)]
    assert runs[1].plan.strategy.inner == strategy.partition(":")[0], runs[1].plan.explain()
    return max(difference(a.state, b.state) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize(("case", "batch"), [("pictures", 8), ("lines", 10), ("colours", 8), ("colours", 10)])
def test_ragged_clients_by_kernels_are_close_to_serial(case, batch, calls):
    assert trained(case, "rules:3", batch=batch, optimizer=Adam(lr=1e-3, eps=1e-4)) <= 1e-6
    assert calls


@pytest.mark.parametrize("case", CASES)
def test_kernels_are_a_replay_in_float64(case, calls):
    assert trained(case, "rules:2", torch.float64) <= 1e-12
    assert calls


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_kernels_inside_a_compiled_step(case):
    assert trained(case, "rules-compiled:3") <= 1e-6


@pytest.mark.parametrize(
    ("conv", "shape", "is_ours"),
    [
        (nn.Conv2d(2, 3, 3), (8, 2, 6, 6), True),
        (nn.Conv2d(2, 3, 3, padding=1, bias=False), (8, 2, 6, 6), True),
        (nn.Conv1d(2, 3, 3), (8, 2, 6), True),
        (nn.Conv2d(2, 3, (3, 5), padding="same"), (8, 2, 6, 6), True),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (8, 2, 6, 6), False),
        (nn.Conv1d(2, 3, 3, dilation=2, padding="same"), (8, 2, 6), False),
        (nn.Conv2d(2, 3, 3, stride=2), (8, 2, 6, 6), False),
        (nn.Conv2d(2, 3, 3, dilation=2), (8, 2, 6, 6), False),
        (nn.Conv2d(2, 4, 3, groups=2), (8, 2, 6, 6), False),
        (nn.Conv2d(2, 3, 3, padding=3), (8, 2, 6, 6), False),
        (nn.Conv2d(2, 3, 3), (2, 6, 6), False),
        (nn.Conv2d(2, 3, 3).double(), (8, 2, 6, 6), True),
        (nn.Conv2d(2, 3, 3).bfloat16(), (8, 2, 6, 6), False),
        (nn.Conv2d(32, 32, 3), (16, 32, 40, 40), True),
        (nn.Conv2d(256, 256, 3), (2, 256, 4, 4), False),  # weights that leave a core
        (nn.Conv2d(3, 4, 3), (3, 3, 6, 6), False),  # fills no vector, of samples or of channels
        (nn.Conv3d(2, 3, 2), (8, 2, 4, 4, 4), False),
        (nn.Conv1d(2, 3, 40), (8, 2, 50), False),  # would take long to compile
    ],
)
def test_what_kernels_do_not_serve_is_left_to_torch(conv, shape, is_ours, calls):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(conv.weight.dtype)
    rule = with_rules(nn.Sequential(conv))
    stacked = {n: t.detach().expand(3, *t.shape) for n, t in rule.named_parameters()}
    rows = vmap(lambda p: functional_call(rule, p, (x,)))(stacked)
    assert bool(calls) == is_ours
    torch.testing.assert_close(
        rows, conv(x).expand(3, *rows.shape[1:]), rtol=1e-4, atol=1e-2 if x.dtype == torch.bfloat16 else 1e-5
    )


def test_more_zeros_on_one_side_than_on_the_other_are_left_to_torch():
    assert not is_plain(nn.Conv2d(2, 3, (3, 4), padding="same"))


@pytest.mark.parametrize("shape", [(8, 3, 6, 6), (8, 1, 6, 6), (8, 2, 2, 6, 6), (6, 6)])
def test_images_that_do_not_fit_are_refused_as_torch_does(shape):
    conv, x = nn.Conv2d(2, 4, 3), torch.zeros(shape)
    for model in (conv, with_rules(nn.Sequential(conv))):
        with pytest.raises(RuntimeError):
            model(x)


def test_an_operation_says_its_shape_before_it_runs():
    """Compilers ask for shapes and strides without computing."""
    from torch.library import opcheck

    x, weight, bias = torch.randn(2, 8, 3, 6, 5), torch.randn(2, 4, 3, 3, 2), torch.randn(2, 4)
    grad = torch.randn(2, 8, 4, 6, 4)
    ops, tests = torch.ops.evenload, ("test_schema", "test_faketensor")
    opcheck(ops.convolve.default, (x, weight, bias, 1, 0), test_utils=tests)
    opcheck(ops.convolve_input_gradient.default, (grad, weight, 6, 5, 1, 0), test_utils=tests)
    opcheck(ops.convolve_weight_gradient.default, (x, grad, 3, 2, 1, 0), test_utils=tests)
    opcheck(ops.pool.default, (x, 2, False), test_utils=tests)
    places = torch.ops.evenload.pool(x, 2, False)[1]
    opcheck(ops.pool_gradient.default, (torch.randn(places.shape), places, 2, 6, 5, False), test_utils=tests)
    opcheck(ops.kept.default, (torch.tensor([3, 4]), 7, 11, 2**52, torch.float64), test_utils=tests)


def test_without_kernels_it_is_a_loop(monkeypatch, calls):
    monkeypatch.setattr(layout, "has_kernels", lambda: False)
    assert trained("pictures", "rules:2") <= 1e-6
    assert not calls


def test_without_the_room_of_kernels_all_is_left_to_torch(monkeypatch):
    room = "evenload.clients.step.image_kernels"
    for name in [name for name in sys.modules if name.startswith(room)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, room, None)
    seam = runpy.run_path(image_speedups.__file__)
    assert [seam[name](torch.ones(1)) for name in image_speedups.__all__] == [None] * 3


def test_where_kernels_cannot_be_kept_safely_torch_does_the_work_and_it_is_said_once(
    monkeypatch, tmp_path, caplog, calls
):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("EVENLOAD_KERNEL_CACHE", str(tmp_path))
    conv, x = nn.Conv2d(1, 11, (1, 3)), torch.randn(8, 1, 5, 9)  # shapes that no other test compiles
    model = nn.Sequential(conv, nn.MaxPool2d(5))
    assert torch.allclose(with_rules(model)(x), model(x), atol=1e-6)
    assert not calls
    assert sum("left to torch" in line and "chmod" in line for line in caplog.messages) == 1


WORDS = st.integers(-(2**63), 2**63 - 1)


@given(
    keys=st.lists(WORDS, min_size=1, max_size=4),
    salt=st.integers(0, 2**42),
    n=st.integers(0, 70),
    p=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.25, 0.5, 1.0, 2**-53, 1 - 2**-53])),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_places_are_those_of_the_formula(keys, salt, n, p, dtype):
    many = torch.tensor(keys)
    slow = torch.stack([(uniform_of(key, salt, [n]) >= p).to(dtype) for key in many])
    assert torch.equal(vmap(lambda key: kept(key, salt, n, p, dtype))(many), slow)
    assert torch.equal(kept(many[0], salt, n, p, dtype), slow[0])


def test_what_the_kernel_does_not_serve_is_done_by_the_formula():
    key = torch.tensor(5)
    assert kept(key, 1, 9, 0.5, torch.bfloat16) is None
    found = kept_of(key, 1, [3, 3], 0.5, torch.bfloat16)
    assert torch.equal(found, kept_of(key, 1, [3, 3], 0.5, torch.float32).to(torch.bfloat16))
