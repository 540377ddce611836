"""The result is the serial one: strategies × models × optimisers, in three stated grades."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from evenload.clients import SGD, Adam, AdamW, Cosine, CrossEntropy, Recipe, Strategy, evaluate, train
from evenload.clients.spread.equivalence_check import difference
from evenload.errors import ConfigError


class Mlp(nn.Sequential):
    def __init__(self, n_in=12, n_out=4):
        super().__init__(nn.Linear(n_in, 16), nn.GELU(), nn.Linear(16, n_out))


class Dropped(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Linear(12, 16),
            nn.Tanh(),
            nn.Dropout(0.4),
            nn.Linear(16, 16),
            nn.Dropout(0.2),
            nn.Linear(16, 4),
        )


class ConvNorm(nn.Module):
    """Convolutions, batch statistics, a channel dropout and a pooling without ties."""

    def __init__(self):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.c2, self.drop, self.out = (
            nn.Conv2d(4, 6, 3, stride=2, groups=2),
            nn.Dropout2d(0.2),
            nn.Linear(6, 4),
        )

    def forward(self, x):
        x = F.silu(self.n1(self.c1(x)))
        return self.out(self.drop(self.c2(x)).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind=nn.GRU):
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(11, 6), kind(6, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(self.cell(self.embed(x))[0][:, -1])


class Tied(nn.Module):
    """Two layers share one weight; a third is frozen; a fourth is never reached."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)
        self.b.weight = self.a.weight
        self.a.bias.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.register_buffer("scale", torch.full((12,), 0.5))

    def forward(self, x):
        return self.out(torch.tanh(self.b(torch.tanh(self.a(x * self.scale)))))


MODELS = {
    "mlp": (Mlp, "vector"),
    "dropout": (Dropped, "vector"),
    "conv-norm": (ConvNorm, "picture"),
    "gru": (Recurrent, "text"),
    "tied": (Tied, "vector"),
}
SIZES = (13, 30, 7, 22, 3, 17, 30)


def rows(kind, n, generator, dtype=torch.float32):
    if kind == "text":
        x = torch.randint(0, 11, (n, 5), generator=generator)
    else:
        shape = (n, 12) if kind == "vector" else (n, 2, 6, 6)
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 4, (n,), generator=generator)


def clients(kind="vector", sizes=SIZES, dtype=torch.float32, seed=0):
    """Ragged clients, each a pair of tensors of its own."""
    generator = torch.Generator().manual_seed(seed)
    return [rows(kind, n, generator, dtype) for n in sizes]


OPTIMIZERS = {
    "nesterov": SGD(lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": Adam(lr=1e-3, eps=1e-4, weight_decay=1e-2),
    "adamw": AdamW(lr=1e-3, eps=1e-4),
}
STEPS = {"batch_size": 8, "steps": 6}
COVERED = [(m, "nesterov") for m in MODELS] + [("conv-norm", "adam"), ("gru", "adamw")]


def trained(model, recipe, strategy, dtype=torch.float32, **kwargs):
    factory, kind = MODELS[model]
    return train(
        lambda: factory().to(dtype),
        clients(kind, dtype=dtype),
        recipe,
        strategy=strategy,
        seed=5,
        **kwargs,
    )


@functools.cache
def serial_of(model, optimizer, dtype=torch.float32):
    """The serial result that both fused strategies are held against."""
    return trained(model, recipe_of(optimizer), "serial", dtype)


def recipe_of(optimizer):
    return Recipe(optimizer=OPTIMIZERS[optimizer], metrics=("accuracy",), **STEPS)


def worst(a, b):
    return max(difference(x.state, y.state) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("model", "optimizer"), COVERED)
@pytest.mark.parametrize("strategy", ["fused:3", "rules:7"])
def test_fused_is_close_in_float32_and_a_replay_in_float64(model, optimizer, strategy):
    serial, fused = serial_of(model, optimizer), trained(model, recipe_of(optimizer), strategy)
    assert str(fused.plan.strategy) == f"inline/{strategy}", fused.plan.explain()
    assert worst(serial, fused) <= 1e-6
    for a, b in zip(serial, fused, strict=True):
        assert (a.client, a.examples, a.n_rows, a.status) == (b.client, b.examples, b.n_rows, b.status)
        assert a.losses == pytest.approx(b.losses, abs=1e-5)
        assert a.metrics == pytest.approx(b.metrics, abs=1e-5)
    if strategy == "fused:3":
        exact = serial_of(model, optimizer, torch.float64)
        replay = trained(model, recipe_of(optimizer), strategy, torch.float64)
        assert worst(exact, replay) <= 1e-12
        assert (
            worst(exact, [type("Start", (), {"state": r.state}) for r in serial]) > 0
        )  # it is another precision


@pytest.mark.parametrize("model", MODELS)
def test_threads_give_the_serial_bits(model):
    threads = trained(model, recipe_of("nesterov"), "threads*2/eager")
    assert worst(serial_of(model, "nesterov"), threads) == 0.0


@pytest.mark.parametrize(
    ("strategy", "most"),
    [
        ("threads*2/fused:2", 1e-6),
        pytest.param("processes*2/eager", 0.0, marks=pytest.mark.slow),
        pytest.param("devices/eager", 0.0, marks=pytest.mark.slow),
        pytest.param("processes*2/fused:4", 1e-6, marks=pytest.mark.slow),
        pytest.param("fused-compiled:4", 1e-6, marks=pytest.mark.slow),
        pytest.param("compiled", 1e-6, marks=pytest.mark.slow),
    ],
)
def test_what_is_spread_or_compiled_has_the_serial_result(strategy, most):
    serial = serial_of("dropout", "nesterov")
    found = trained("dropout", recipe_of("nesterov"), strategy, devices="cpu*2")
    assert found.plan.strategy == Strategy.parse(strategy), found.plan.explain()
    assert worst(serial, found) <= most
    assert [r.examples for r in serial] == [r.examples for r in found]


TERMS = {
    "prox": {"prox": 0.3},
    "clip": {"clip": 0.2},
    "schedule": {"schedule": Cosine(floor=0.1, warmup=3)},
    "all": {"prox": 0.1, "clip": 0.5, "schedule": Cosine()},
    "drop-last": {"drop_last": True},
    "in order": {"shuffle": False},
    "epochs": {"steps": None, "epochs": 3},
    "mse": {},
}


class Gated(Mlp):
    """With a parameter that is one number."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(0.8))

    def forward(self, x):
        return self.gate * super().forward(x)


@pytest.mark.parametrize("term", TERMS)
def test_every_term_of_a_recipe_is_the_same_fused(term):
    recipe = Recipe(**{"optimizer": OPTIMIZERS["nesterov"], **STEPS, **TERMS[term]})
    data = clients()
    if term == "mse":
        recipe = Recipe(optimizer=SGD(0.1), loss="mse", **STEPS)
        data = [(x, torch.stack([y, -y, y * 2, y * 0], 1).double()) for x, y in data]
    runs = [train(Gated, data, recipe, strategy=s, seed=1) for s in ("serial", "fused:4")]
    assert runs[1].plan.strategy.inner == "fused", runs[1].plan.explain()
    assert worst(*runs) <= 1e-6
    assert difference(runs[0][0].state, runs[0][1].state) > 1e-3  # clients do differ


def test_starts_anchors_and_corrections_are_the_clients_own():
    data, recipe = clients(), Recipe(optimizer=SGD(0.1, momentum=0.5), prox=0.2, **STEPS)
    torch.manual_seed(3)
    states = [Mlp().state_dict() for _ in data]
    params = {name: t * 0.01 for name, t in Mlp().state_dict().items()}
    kwargs = {"start": states, "anchor": states[::-1], "corrections": [params] * len(data)}
    serial, fused = (train(Mlp, data, recipe, strategy=s, **kwargs) for s in ("serial", "fused:3"))
    assert worst(serial, fused) <= 1e-6
    plain = train(Mlp, data, recipe, strategy="serial", start=states)
    assert all(difference(a.state, b.state) > 1e-4 for a, b in zip(serial, plain, strict=True))


def test_recipes_may_differ_in_numbers_within_one_fused_step():
    """The first has no momentum, and so no dampening either."""
    data = clients()
    recipes = [
        Recipe(optimizer=SGD(0.01 * (c + 1), momentum=0.1 * c, dampening=0.5), batch_size=8, steps=4 + c)
        for c in range(len(data))
    ]
    serial, fused = (train(Mlp, data, recipes, strategy=s) for s in ("serial", "fused:3"))
    assert worst(serial, fused) <= 1e-6
    assert [r.steps for r in fused] == [4, 5, 6, 7, 8, 9, 10]


def test_an_evaluation_of_a_weighted_loss_is_torchs_own():
    """Oracle: ``nn.CrossEntropyLoss`` of all rows in one call; ours sees them in parts."""
    model, loss = nn.Linear(3, 3).double(), nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 7.0]).double())
    x, y = torch.randn(2500, 3, dtype=torch.float64), torch.randint(0, 3, (2500,))
    found = evaluate(model, model.state_dict(), (x, y), Recipe(loss=loss))
    assert found["loss"] == pytest.approx(loss(model(x), y).item(), rel=1e-12)


def test_a_loss_of_torch_that_means_the_same_is_a_name():
    assert Recipe(loss=nn.MSELoss()).loss == "mse"
    weighted = Recipe(loss=nn.CrossEntropyLoss(torch.tensor([1.0, 2.0]))).loss
    assert weighted == CrossEntropy(weight=[1.0, 2.0])
    with pytest.raises(ConfigError, match="weight="):
        CrossEntropy(weight="heavy")
