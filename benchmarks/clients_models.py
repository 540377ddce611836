"""The models and clients of the benchmarks, and plain serial torch: the loop that everybody writes."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, STEPS, LR = 32, 10, 0.05


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.f1, self.f2, self.f3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2).flatten(1)
        return self.f3(F.relu(self.f2(F.relu(self.f1(x)))))


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.out = (
            nn.Embedding(64, 16),
            nn.GRU(16, 64, batch_first=True),
            nn.Linear(64, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cell(self.embed(x))[0][:, -1])


class Transformer(nn.Module):
    """One layer, width 64, four heads, twenty tokens."""

    def __init__(self, d: int = 64):
        super().__init__()
        self.embed, self.place = nn.Embedding(64, d), nn.Parameter(torch.randn(20, d) * 0.02)
        self.n1, self.qkv, self.mix = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.n2, self.up, self.down, self.out = (
            nn.LayerNorm(d),
            nn.Linear(d, 2 * d),
            nn.Linear(2 * d, d),
            nn.Linear(d, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x) + self.place
        q, k, v = self.qkv(self.n1(y)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        seen = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(k.shape[-1]), -1) @ v
        y = y + self.mix(seen.transpose(1, 2).flatten(2))
        return self.out((y + self.down(F.gelu(self.up(self.n2(y))))).mean(1))


def mlp(n_in: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, 10))


MODELS = {
    "64-32-10": lambda: mlp(64, 32),
    "784-128-10": lambda: mlp(784, 128),
    "LeNet-5": LeNet,
    "GRU": Gru,
    "transformer": Transformer,
}
SHAPES = {"64-32-10": (64,), "784-128-10": (784,), "LeNet-5": (1, 28, 28)}


def clients(model: str, n: int, batch: int = BATCH) -> list[tuple[Tensor, Tensor]]:
    """Synthetic rows for so many steps: the speed of a step does not depend on what they say."""
    g = torch.Generator().manual_seed(0)
    rows = batch * STEPS
    if model in SHAPES:
        x = torch.randn((n, rows, *SHAPES[model]), generator=g)
    else:
        x = torch.randint(0, 64, (n, rows, 20), generator=g)
    y = torch.randint(0, 10, (n, rows), generator=g)
    return list(zip(x, y, strict=True))


@functools.cache
def kept_clients(model: str, n: int) -> list[tuple[Tensor, Tensor]]:
    """``clients``, made once in a process: a worker keeps its examples from round to round."""
    return clients(model, n)


def serial(
    model: nn.Module, start: dict[str, Tensor], data: list[tuple[Tensor, Tensor]], batch: int = BATCH
) -> dict[str, Tensor]:
    """Plain torch, one client after the other, shuffled; the mean of the models."""
    total = {name: torch.zeros_like(t) for name, t in start.items()}
    for x, y in data:
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        for name, t in model.state_dict().items():
            total[name] += t / len(data)
    return total
