"""Small models of every kind, ragged clients, and the recipes they are trained with."""

import math

import pytest
import torch
import torch.nn.functional as F
from clients.linear_clients import tasks_of as loaded_tasks
from torch import nn

from evenload.clients import SGD, Recipe
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.tune.engine_checks import why_not_compiled


@pytest.fixture(scope="session")
def compiler():
    """Skip a test of what torch's compiler makes where it can make nothing."""
    if missing := why_not_compiled():
        pytest.skip(missing)


@pytest.fixture(scope="module", autouse=True)
def workers_have_torch(forked_servers):
    """Workers of executors do not import it anew, for seconds; how they start is tested elsewhere."""


@pytest.fixture(autouse=True)
def one_intra_op_thread():
    """The machine that runs the tests shares its cores; small steps are faster on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


class Attention(nn.Module):
    def __init__(self, d=8, heads=2):
        super().__init__()
        self.heads, self.embed, self.norm = heads, nn.Embedding(11, d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, 4)

    def forward(self, x):
        y = self.embed(x)
        q, k, v = self.qkv(self.norm(y)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(k.shape[-1]), -1) @ v
        return self.out((y + mixed.transpose(1, 2).flatten(2)).mean(1))


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
    "attention": (Attention, "text"),
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


def make_tasks(n, model=None):
    model = model or with_keyed_dropout(nn.Linear(3, 2))
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 3, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(n)]
    return model, loaded_tasks(model, data, Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, steps=10))


@pytest.fixture(scope="session")
def tasks_of():
    """Makes a model and tasks of so many clients, each of ten steps."""
    return make_tasks


def make_clients(n, width=3):
    g = torch.Generator().manual_seed(n)
    return [(torch.randn(8, width, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(n)]


@pytest.fixture
def linear_clients():
    """Makes so many clients' examples for a linear model."""
    return make_clients
