"""Engines that cannot be used here, or not for some clients, and why."""

import dataclasses
import sys

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, Trainer, train
from evenload.clients.tune.engine_checks import why_not_compiled
from evenload.clients.values.strategy import Strategy

RECIPE = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, steps=10)


def clients():
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(8, 3, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(2)]


@pytest.mark.parametrize("named", [None, "", "g++ -O3", "/"])
def test_no_compiler_is_a_reason(named, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    if named is None:
        monkeypatch.delenv("CXX", raising=False)
    else:
        monkeypatch.setenv("CXX", named)
    assert "C++ compiler" in str(why_not_compiled())
    run = train(nn.Linear(3, 2), clients(), RECIPE, strategy="fused-compiled:2")
    assert run.plan.strategy == Strategy("inline", "fused", 2)
    assert "C++ compiler" in run.plan.explain()


@pytest.mark.parametrize("name", ["my folder", "it's", "back\\slash"])
def test_a_folder_that_torchs_compiler_cannot_name_is_a_reason(name, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / name))
    assert "without spaces and quotes" in str(why_not_compiled())
    run = train(nn.Linear(3, 2), clients(), RECIPE, strategy="fused-compiled:2")
    assert run.plan.strategy == Strategy("inline", "fused", 2)
    assert "without spaces and quotes" in run.plan.explain()


def test_one_odd_client_in_front_does_not_make_the_others_odd(linear_clients):
    net = nn.Sequential(nn.AdaptiveAvgPool1d(3), nn.Linear(3, 2))
    data = [linear_clients(1, width=6)[0], *linear_clients(4)]
    run = train(net, data, RECIPE, strategy="fused:4")
    assert set(run.plan.solo) == {0}
    assert run.plan.strategy.inner == "fused"


def test_an_augmentation_is_surveyed_for_itself(linear_clients):
    """The first recipe shows that no number is drawn from torch's generator; the second one draws."""
    with Trainer(nn.Linear(3, 2), strategy="fused:4") as trainer:
        assert trainer.train(linear_clients(4), RECIPE).plan.strategy.inner == "fused"
        noisy = dataclasses.replace(RECIPE, augment=lambda x, draws: x + torch.empty_like(x).uniform_())
        run = trainer.train(linear_clients(4), noisy)
    assert "random numbers" in run.plan.why
