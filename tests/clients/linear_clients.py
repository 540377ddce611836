"""Clients of a linear model, and models that clients of one fused step cannot share a step of."""

import torch
import torch.nn.functional as F
from torch import nn

from evenload.clients import SGD, Recipe
from evenload.clients.load.load import ClientInputs, DatasetReader, load_tasks

RECIPE = Recipe(optimizer=SGD(0.1), batch_size=4)


def pair(n=9, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=g), torch.randint(0, classes, (n,), generator=g)


def model():
    return nn.Linear(5, 3)


def tasks_of(net, data, recipes=RECIPE):
    """The tasks of clients that begin with ``net``, which has keyed dropout."""
    n, start = len(data), net.state_dict()
    recipes = [recipes] * n if isinstance(recipes, Recipe) else recipes
    wanted = ClientInputs(data, recipes, range(n), [start] * n, [None] * n, [None] * n)
    return load_tasks(DatasetReader(net), wanted, 0, 0).tasks


def own_loss(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


class Cased(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.out = how, nn.Linear(5, 3)
        self.hidden = nn.Parameter(torch.ones(5))

    def forward(self, x):
        if self.how == "branch":
            x = x if x.sum() > 0 else -x
        elif self.how == "item":
            x = x * x.sum().item()
        elif self.how == "noise":
            x = x * torch.empty_like(x).exponential_()
        elif self.how == "shape":
            x = x * x[x > 0].sum()
        elif self.how == "batch":
            x = x - x.mean(0)
        return self.out(x * self.hidden)
