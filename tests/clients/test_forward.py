"""Augmentation and precision: the same in every strategy, and really there."""

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, train
from evenload.clients.forward import Draws
from evenload.errors import ConfigError

STRATEGIES = ["threads*2/eager", "fused:3", "fused:5", "threads*2/fused:2", "fused-compiled:4"]


def flip_and_shift(x, draws):
    """Mirrors some rows, and adds noise to all: what pictures and signals get."""
    mirrored = torch.where(draws.coin(0.5, len(x))[:, None], x.flip(1), x)
    return mirrored + 0.1 * draws.uniform(*x.shape).to(x.dtype)


def clients(n=5, dtype=torch.float64):
    g = torch.Generator().manual_seed(3)
    sizes = (7, 4, 9, 5, 6)[:n]
    return [
        (torch.randn(m, 6, generator=g, dtype=dtype), torch.randint(0, 3, (m,), generator=g)) for m in sizes
    ]


def model():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3)).double()


def apart(a, b):
    return max(
        float((x.state[n] - y.state[n]).abs().max()) for x, y in zip(a, b, strict=True) for n in x.state
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_augmentation_does_not_depend_on_the_strategy(strategy):
    recipe = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, epochs=2, augment=flip_and_shift)
    serial = train(model, clients(), recipe, strategy="serial", seed=5)
    other = train(model, clients(), recipe, strategy=strategy, seed=5)
    assert str(other.plan.strategy).endswith(strategy.rpartition("/")[2])
    assert apart(serial, other) < 1e-12
    plain = train(model, clients(), Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, epochs=2), seed=5)
    assert apart(serial, plain) > 1e-3


def test_draws_are_uniform_differ_by_call_and_do_not_see_padding():
    draws = Draws(torch.tensor(77))
    a, b = draws.uniform(40, 100), draws.uniform(40, 100)
    assert float(a.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(a.min()) >= 0
    assert float(a.max()) < 1
    assert not torch.equal(a, b)
    assert torch.equal(Draws(torch.tensor(77)).uniform(3, 100), a[:3])
    assert not torch.equal(Draws(torch.tensor(78)).uniform(40, 100), a)
    assert float(draws.coin(0.25, 10_000).float().mean()) == pytest.approx(0.25, abs=0.03)


def test_random_numbers_of_torch_in_an_augmentation_are_named():
    recipe = Recipe(batch_size=4, augment=lambda x, draws: x + torch.rand_like(x))
    found = train(model, clients(), recipe, strategy="fused:4")
    assert found.plan.strategy.inner == "eager"
    assert "random numbers" in found.plan.why


@pytest.mark.parametrize("strategy", ["fused:4", pytest.param("fused-compiled:4", marks=pytest.mark.slow)])
def test_bfloat16_is_bfloat16_and_close_to_serial(strategy):
    make = lambda: nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))  # noqa: E731
    data = clients(dtype=torch.float32)
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, steps=4, precision="bfloat16")
    full = train(make, data, Recipe(optimizer=SGD(0.1), batch_size=4, steps=4), strategy="serial", seed=1)
    serial = train(make, data, recipe, strategy="serial", seed=1)
    other = train(make, data, recipe, strategy=strategy, seed=1)
    assert other.plan.strategy.inner == strategy.partition(":")[0]
    assert 1e-5 < apart(full, serial) < 2e-2
    assert apart(serial, other) < 5e-3
    assert all(t.dtype == torch.float32 for t in other[0].state.values())


def test_what_a_custom_step_would_ignore_is_refused():
    with pytest.raises(ConfigError, match="augment and precision"):
        Recipe(step=lambda *a: 0.0, precision="bfloat16")
    with pytest.raises(ConfigError, match="float16 needs its losses scaled"):
        Recipe(precision="float16")
