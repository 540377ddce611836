"""What functions keep from client to client is refused, wherever it is; logs and caches are not."""

import pytest
import torch
import torch.nn.functional as F
from clients import zoo

from evenload.clients import SGD, Recipe, train
from evenload.errors import ConfigError

N = [0]
RECIPE = {"optimizer": SGD(0.1), "batch_size": 4, "shuffle": False}


def per_row(outputs, y):
    return F.cross_entropy(outputs, y, reduction="none")


def in_an_object():
    class Loss:
        n = 0

        def __call__(self, outputs, y):
            self.n += 1
            return per_row(outputs, y) * self.n

    return Loss()


def in_a_default():
    def loss(outputs, y, n=[0]):  # noqa: B006
        n[0] += 1
        return per_row(outputs, y) * n[0]

    return loss


def in_the_module():
    def loss(outputs, y):
        N[0] += 1
        return per_row(outputs, y) * N[0]

    return loss


def in_a_generator():
    draws = torch.Generator().manual_seed(0)
    return lambda outputs, y: per_row(outputs, y) * torch.rand((), generator=draws)


def in_another_function():
    inner = in_an_object()
    return lambda outputs, y: inner(outputs, y)


@pytest.mark.parametrize("strategy", ["serial", "fused:2", "threads*2/eager"])
@pytest.mark.parametrize(
    "kept", [in_an_object, in_a_default, in_the_module, in_a_generator, in_another_function]
)
def test_what_a_loss_keeps_is_refused_wherever_it_is(kept, strategy):
    with pytest.raises(ConfigError, match="changed"):
        train(zoo.mlp, [zoo.tensors(n) for n in (11, 7)], Recipe(loss=kept(), **RECIPE), strategy=strategy)


def test_a_log_and_a_cache_are_not_refused():
    log, cache = [], {}

    def loss(outputs, y):
        cache.setdefault("weight", torch.ones((), dtype=torch.float64))
        return per_row(outputs, y) * cache["weight"]

    def step(model, optimizer, x, y):
        optimizer.zero_grad()
        value = per_row(model(x), y).mean()
        value.backward()
        optimizer.step()
        log.append(value.item())
        return value

    data = [zoo.tensors(n) for n in (11, 7)]
    by_step = train(zoo.mlp, data, Recipe(step=step, **RECIPE), strategy="serial")
    by_loss = train(zoo.mlp, data, Recipe(loss=loss, **RECIPE), strategy="serial")
    assert log == [value for client in by_step for value in client.losses]
    assert all(zoo.distance(a.state, b.state) <= 1e-12 for a, b in zip(by_step, by_loss, strict=True))
