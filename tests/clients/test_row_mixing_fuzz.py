"""Random models and losses, some of which mix rows of a batch: the result is serial, whatever runs."""

import functools
import random

import pytest
import torch
import torch.nn.functional as F
from examples_count import ALL
from torch import nn

from evenload.clients import SGD, ParameterGroups, RAdam, Recipe, RMSprop, train
from evenload.clients.spread.equivalence_check import difference

D, CLASSES = 6, 3


class Layer(nn.Module):
    """One layer by name, with a gate that is zero at first where ``gated``."""

    def __init__(self, how, gated, asked=0):
        super().__init__()
        self.asked = asked
        self.how, self.line, self.norm = how, nn.Linear(D, D), nn.LayerNorm(D)
        self.gate = nn.Parameter(torch.zeros(())) if gated else None
        self.heads = nn.MultiheadAttention(1, 1, dropout=0.2, batch_first=True)
        self.drop, self.batch_norm = nn.Dropout(0.3), nn.BatchNorm1d(D)
        self.register_buffer("ema", torch.zeros(D))
        self.register_buffer("kept", torch.zeros(D), persistent=False)
        self.calls, self.seen = 0, []

    def forward(self, h):
        new = LAYERS[self.how](self, h)
        return new if self.gate is None else h + self.gate * new


def ema(layer, h):
    layer.ema.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return h - layer.ema


def ema_anew(layer, h):
    layer.ema = 0.9 * layer.ema + 0.1 * h.detach().mean(0)
    return h - layer.ema


def kept(layer, h):
    layer.kept.add_(h.detach()[0])
    return h - 0.1 * layer.kept


def calls(layer, h):
    layer.calls += 1
    return h * (1 + 0.1 * (layer.calls % 3))


def by_number(layer, h):
    """A branch on the number of rows, as models have it for a batch of one, or for large ones."""
    sizes = (h.shape[0], len(h), h.size(0))
    n, what = sizes[layer.asked % 3], layer.asked
    is_met = (n > what, n == what, n % 2 == what % 2, n <= what, n == 1)[layer.asked % 5]
    changed = (h * 1.5, h.detach(), h - h.mean(0), h + layer.line(h), h.flip(1))[(layer.asked // 5) % 5]
    return changed if is_met else torch.tanh(layer.line(h))


def seen(layer, h):
    layer.seen.append(float(len(h)))
    return h + 0.01 * sum(layer.seen)


LAYERS = {
    "linear": lambda m, h: torch.tanh(m.line(h)),
    "norm": lambda m, h: m.norm(h),
    "relu": lambda m, h: F.relu(m.line(h)),
    "row norm": lambda m, h: h / (1 + h.norm(dim=1, keepdim=True)),
    "dropout": lambda m, h: m.drop(m.line(h)),
    "dropout by columns": lambda m, h: m.drop(h.T).T,
    "batch norm": lambda m, h: m.batch_norm(h),
    "centred": lambda m, h: h - h.mean(0),
    "whole norm": lambda m, h: h / (1 + h.norm()),
    "cumsum": lambda m, h: h.cumsum(0),
    "rolled": lambda m, h: h + 0.5 * h.roll(1, 0),
    "flipped": lambda m, h: h + 0.5 * h.flip(0),
    "largest": lambda m, h: h - 0.3 * h.amax(0),
    "attention over rows": lambda m, h: torch.softmax(h @ h.T / 3, -1) @ h,
    "by number": by_number,
    "number of rows": lambda m, h: h * (1 + h.shape[0] / 4),
    "ema": ema,
    "ema anew": ema_anew,
    "kept": kept,
    "calls": calls,
    "seen": seen,
    "dropout by function": lambda m, h: F.dropout(m.line(h), 0.3, m.training),
    "alpha dropout by columns": lambda m, h: F.alpha_dropout(h.T, 0.2, m.training).T,
    "noise": lambda m, h: h + 0.1 * torch.randn_like(h),
    "noise for all": lambda m, h: h + 0.1 * torch.randn(D, dtype=h.dtype),
    "heads": lambda m, h: (
        h + m.heads(h[:, :, None], h[:, :, None], h[:, :, None], need_weights=False)[0][:, :, 0]
    ),
    "heads over rows": lambda m, h: h + m.heads(h[:, :1], h[:, :1], h[:, :1])[0],
    "squeezed": lambda m, h: h + m.line(h)[:, :1].squeeze().reshape(-1, 1),
}
LONG = 10_000 if ALL else 300  # rounds: fewer repay measuring, and no compilation, which takes seconds
OPTIMIZERS = (
    *[SGD(0.05), SGD(0.05, momentum=0.9)] * 2,
    RMSprop(0.01, momentum=0.5, eps=1e-3),
    RAdam(0.01, eps=1e-3),
    ParameterGroups(SGD(0.05), {"*bias": {"lr": 0.01}}),
)
LOSSES = {
    "plain": "cross_entropy",
    "per row": lambda out, y: F.cross_entropy(out, y, reduction="none", label_smoothing=0.1),
    "contrastive": lambda out, y: F.cross_entropy(
        out @ out.T, torch.arange(len(out), device=out.device), reduction="none"
    ),
    "centred": lambda out, y: F.cross_entropy(out - out.mean(0), y, reduction="none"),
    "by frequency": lambda out, y: (
        F.cross_entropy(out, y, reduction="none") * (1 + (y[:, None] == y).to(out.dtype).mean(1))
    ),
    "of five and more": lambda out, y: (
        F.cross_entropy(out, y, reduction="none") * (2 if out.size(0) > 4 else 1)
    ),
    "of three": lambda out, y: F.cross_entropy(out, y, reduction="none") * (1 + (len(y) == 3)),
    "by number": lambda out, y: F.cross_entropy(out, y, reduction="none") * len(y),
}


def a_program(seed, branches=False):
    """The largest difference from serial of one random program, and what it was.

    branches  the model acts on the number of rows
    """
    draw = random.Random(seed)
    layers = [(draw.choice(list(LAYERS)), draw.random() < 0.2) for _ in range(draw.randint(1, 3))]
    loss = draw.choice([*LOSSES, "plain", "per row"])
    batch, epochs = draw.choice([2, 4, 5, 8]), draw.randint(1, 3)
    sizes = [draw.choice([1, draw.randint(1, 3 * batch)]) for _ in range(draw.randint(2, 6))]
    if branches:
        layers = [("by number", False, draw.randint(1, 60))]
        loss, batch = draw.choice(["plain", "plain", "of five and more", "of three"]), draw.choice([4, 8, 16])
        every, full = range(1, 2 * batch), [batch * draw.randint(1, 3) for _ in range(4)]
        sizes = draw.choice([[draw.randint(1, 3 * batch) for _ in range(draw.randint(2, 6))], every, full])
    g = torch.Generator().manual_seed(seed)
    data = [
        (torch.randn(n, D, generator=g).double(), torch.randint(0, CLASSES, (n,), generator=g)) for n in sizes
    ]

    def net():
        return nn.Sequential(*[Layer(*layer) for layer in layers], nn.Linear(D, CLASSES)).double()

    recipe = Recipe(optimizer=draw.choice(OPTIMIZERS), loss=LOSSES[loss], batch_size=batch, epochs=epochs)
    strategy, rounds = draw.choice([("fused:4", 1), ("threads*2/fused:3", 1), ("auto", LONG)])
    serial = train(net, data, recipe, strategy="serial", on_error="return", seed=seed)
    ours = train(net, data, recipe, strategy=strategy, rounds=rounds, on_error="return", seed=seed)
    what = f"seed {seed}: {layers}, {loss}, batch {batch}, {sizes}, {strategy}: {ours.plan.strategy}"
    worst = 0.0
    for a, b in zip(serial, ours, strict=True):
        if (a.status, a.steps) != (b.status, b.steps):
            return float("inf"), f"{what}: client {a.client} is {b.status}, serial {a.status}: {a.error}"
        size = max(1.0, *(float(t.abs().max()) for t in a.state.values()))
        worst = max(worst, difference(a.state, b.state) / size if a.status == "ok" else 0.0)
    return worst, what


def test_no_number_of_rows_is_left_out():
    """A model that acts on one number of rows alone, among clients of all numbers."""
    data = [(torch.randn(n, D), torch.randint(0, CLASSES, (n,))) for n in range(1, 17)]
    recipe = Recipe(optimizer=SGD(0.05), batch_size=16)

    class OfSeven(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2.0 if x.shape[0] == 7 else 1.0)

    torch.manual_seed(0)
    model = OfSeven(D, CLASSES)
    serial = train(model, data, recipe, strategy="serial")
    ours = train(model, data, recipe, strategy="fused:4")
    assert max(difference(a.state, b.state) for a, b in zip(serial, ours, strict=True)) < 1e-6
    assert "7 rows" in ours.plan.why


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("seeds", "kind"),
    [
        *((range(k, k + 12), {}) for k in (0, 12)),
        (range(10), {"branches": True}),
        *(slow(range(k, k + 100), {}) for k in range(1000, 3000, 100)),
        *(slow(range(k, k + 100), {"branches": True}) for k in range(1000, 1400, 100)),
    ],
)
@pytest.mark.timeout(1800)
def test_random_programs_give_the_serial_result(seeds, kind):
    found = [a_program(seed, **kind) for seed in seeds]
    assert not [what for far, what in found if not far <= 1e-9]
