"""Random models, recipes and data through compiled steps: taken many at a time, one by one, and serially."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from evenload.clients import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Cosine,
    NAdam,
    ParameterGroups,
    RAdam,
    Recipe,
    RMSprop,
    StepDecay,
    Trainer,
    train,
)
from evenload.clients.fused.compiled import CompiledStep
from evenload.clients.spread.equivalence_check import difference

pytestmark = pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
D, CLASSES, WORDS = 6, 3, 11


class Layers(nn.Module):
    """Linear layers of many widths, some with what a recording cannot have: drop-out, batch statistics."""

    def __init__(self, draw):
        super().__init__()
        layers, d = [], D
        for _ in range(draw.randint(1, 3)):
            n = draw.choice([1, 5, 16, 18, 33])
            layers += [nn.Linear(d, n, bias=draw.random() < 0.7), draw.choice([nn.ReLU, nn.Tanh, nn.GELU])()]
            layers += draw.choice([[]] * 5 + [[nn.BatchNorm1d(n)], [nn.LayerNorm(n)], [nn.Dropout(0.3)]])
            d = n
        self.layers = nn.Sequential(*layers, nn.Linear(d, CLASSES))
        self.register_buffer("scale", torch.full((D,), 0.7))
        self.register_buffer("shift", torch.rand(D), persistent=False)
        self.layers[0].weight.requires_grad_(draw.random() < 0.7)
        self.gate = nn.Parameter(torch.ones(()), requires_grad=draw.random() < 0.5)

    def forward(self, x):
        return self.gate * self.layers(x * self.scale + (self.shift if len(self.layers) > 5 else 0.3))


class Words(nn.Module):
    """A model of words, with ``mix`` between them."""

    def __init__(self, draw):
        super().__init__()
        self.how = draw.choice(["mean", "attention"])
        self.embed, self.norm = nn.Embedding(WORDS, 8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, CLASSES)

    def forward(self, x):
        h = self.norm(self.embed(x))
        q, k, v = self.qkv(h).chunk(3, -1)
        mixed = torch.softmax(q @ k.transpose(1, 2) / 3, -1) @ v if self.how == "attention" else q * k + v
        return self.out((h + mixed).mean(1))


class Sequences(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.embed, self.out = nn.Embedding(WORDS, D), nn.Linear(8, CLASSES)
        self.cell = draw.choice([nn.GRU, nn.LSTM, nn.RNN])(D, 8, batch_first=True)

    def forward(self, x):
        return self.out(self.cell(self.embed(x))[0][:, -1])


class Masked(nn.Module):
    """A model of a dict batch with a mask."""

    def __init__(self, draw):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(D, 18), nn.Linear(4, 18), nn.Linear(18, CLASSES)

    def forward(self, a, mask, b):
        return self.out(torch.relu(self.a(a)) * mask[:, None] + self.b(b))


MODELS = {
    Layers: "fused-compiled",
    Words: "fused-compiled",
    Masked: "fused-compiled",
    Sequences: "rules-compiled",
}
OPTIMIZERS = [
    *[SGD(0.1)] * 3,
    SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    SGD(0.1, weight_decay=0.1),
    Adam(0.01, amsgrad=True, eps=1e-4),
    AdamW(0.01, eps=1e-4),
    RMSprop(0.01, centered=True, momentum=0.5, eps=1e-3),
    Adagrad(0.05, eps=1e-4),
    NAdam(0.01, eps=1e-4),
    RAdam(0.01, eps=1e-3),
    ParameterGroups(SGD(0.05), {"*bias": {"lr": 0.01}}),
]


def smoothed(outputs, y):
    return F.cross_entropy(outputs, y, reduction="none", label_smoothing=0.1)


def flipped(x, draws):
    return torch.where(draws.coin(0.5, len(x))[:, None], x.flip(1), x)


def a_recipe(draw, kind, batch):
    options = {
        "schedule": draw.choice([Cosine(), StepDecay(2), lambda step, n: 1 / (1 + step)]),
        "clip": 0.5,
        "prox": 0.1,
        "metrics": ("accuracy",),
        "loss": smoothed,
    } | ({"augment": flipped} if kind is Layers else {})
    chosen = {name: value for name, value in options.items() if draw.random() < 0.25}
    return Recipe(optimizer=draw.choice(OPTIMIZERS), batch_size=batch, epochs=draw.randint(1, 3), **chosen)


def elsewhere(t, how):
    """The same numbers, in another order or place in memory."""
    if how == "turned":
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if how == "strided":
        return torch.stack([t, t], -1)[..., 0]
    return torch.cat([t.new_zeros(3), t.flatten()])[3:].view(t.shape) if how == "shifted" else t


def clients_of(draw, kind, sizes):
    """Data of each client, some with rows that are not finite or labels that are left out."""
    g = torch.Generator().manual_seed(draw.randrange(1 << 30))
    numbers = lambda *shape: torch.randn(shape, generator=g).double()  # noqa: E731
    how, clients = draw.choice(["own", "turned", "strided", "shifted", "one tensor"]), []
    n = sum(sizes) + 5  # the rows of all, and of none at the end
    x = numbers(n, D) if kind is Layers else torch.randint(0, WORDS, (n, 5), generator=g)
    if kind is Masked:
        x = {"a": numbers(n, D), "mask": torch.rand(n, generator=g) < 0.5, "b": numbers(n, 4)}
    y, end = torch.randint(0, CLASSES, (n,), generator=g), 0
    y[0] = draw.choice([y[0], -100])
    if kind is Layers and draw.random() < 0.3:
        x[draw.randrange(n)] = draw.choice([math.nan, math.inf])
    for size in sizes:
        begin, end = end, end + size
        part = {k: t[begin:end] for k, t in x.items()} if kind is Masked else x[begin:end]
        if kind is not Masked and how != "one tensor":
            part = elsewhere(part, how)
        clients.append((part, elsewhere(y[begin:end], how)))
    return clients


def a_program(seed, monkeypatch):
    """What of one random program is not as it has to be, and how many calls took many steps."""
    draw = random.Random(seed)
    kind = draw.choice([*MODELS, Layers, Layers])
    batch = draw.choice([1, 2, 4, 7, 16])
    sizes = [
        draw.choice([1, draw.randint(1, 3 * batch), draw.randint(1, 40)]) for _ in range(draw.randint(2, 7))
    ]
    clients, recipe = clients_of(draw, kind, sizes), a_recipe(draw, kind, batch)
    outer, rows = draw.choice(["", "threads*2/"]), draw.choice([1, 2, 3, 4])
    torch.manual_seed(seed)
    model, strategy, many = kind(draw).double(), f"{outer}{MODELS[kind]}:{rows}", []
    real = CompiledStep.steps

    def noted(self, *given):
        out = real(self, *given)
        many.append(out is not None)
        return out

    with Trainer(model, strategy=strategy, seed=seed) as trainer:
        monkeypatch.setattr(CompiledStep, "steps", noted)
        ours = trainer.train(clients, recipe, on_error="return")
        monkeypatch.setattr(CompiledStep, "steps", lambda *_: None)
        one_by_one = trainer.train(clients, recipe, on_error="return")
        monkeypatch.setattr(CompiledStep, "steps", real)
        again = trainer.train(clients, recipe, on_error="return")
    serial = train(model, clients, recipe, strategy="serial", seed=seed, on_error="return")
    ways = {"one by one": one_by_one, "again": again, "serial": serial}
    what = f"seed {seed}: {kind.__name__}, {sizes}, {recipe}, {strategy}"
    wrong = [
        f"{what}: client {a.client} is not what it is {way}: {far}"
        for way, other in ways.items()
        for a, b in zip(ours, other, strict=True)
        if not (far := apart(a, b)) <= 1e-8
    ]
    return wrong, sum(many)


def apart(a, b):
    """How far two results of a client are from each other."""
    if (a.status, a.steps, a.metrics.keys()) != (b.status, b.steps, b.metrics.keys()):
        return math.inf
    size = max(1.0, *(float(t.abs().max()) for t in b.state.values()))
    losses = [abs(float(p) - float(q)) for p, q in zip(a.losses, b.losses, strict=True)]
    return max([difference(a.state, b.state) / size, *losses])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_random_programs_give_the_same_many_at_a_time_one_by_one_and_serially(part, monkeypatch):
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    found = [a_program(seed, monkeypatch) for seed in range(25 * part, 25 * part + 25)]
    assert not [line for wrong, _ in found for line in wrong]
    assert sum(many > 0 for _, many in found) > 5  # of 25: else it is not what is compared
