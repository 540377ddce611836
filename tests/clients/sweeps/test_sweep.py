"""Sweeps: every trial is what training it alone gives, whatever it is trained with."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from evenload.clients import SGD, Adam, Recipe, evaluate, sweep, train
from evenload.clients.spread.equivalence_check import difference
from evenload.errors import ConfigError, TaskError

G = torch.Generator().manual_seed(0)
X = torch.randn(24, 5, generator=G, dtype=torch.float64)
DATA = X, (X @ torch.randn(5, 3, generator=G, dtype=torch.float64)).argmax(1)
RECIPE = Recipe(optimizer=SGD(0.1), batch_size=8, epochs=2)


def net(width=4):
    return nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 3)).double()


GRID = {"lr": [0.3, 0.03], "optimizer": [SGD, Adam], "batch_size": [6, 8], "width": [3, 5], "seed": [0, 1]}


def test_every_trial_is_what_it_is_alone():
    found = sweep(net, DATA, GRID, recipe=RECIPE, test=DATA, strategy="fused:8", seed=3)
    assert len(found) == 32
    assert len(found.plans) == 8  # optimiser, batch size and width cannot differ within a step
    assert {plan.strategy.inner for plan in found.plans.values()} == {"fused"}
    assert [t.score for t in found] == sorted((t.score for t in found), reverse=True)
    for one in (found.best, found[-1]):
        settings, trial = one.settings, one.trial
        with torch.random.fork_rng():
            torch.manual_seed(settings["seed"])
            start = net(settings["width"]).state_dict()
        recipe = Recipe(
            optimizer=settings["optimizer"](lr=settings["lr"]), batch_size=settings["batch_size"], epochs=2
        )
        made = net(settings["width"])
        alone = train(made, [DATA], recipe, strategy="serial", start=start, ids=[trial.number], seed=3)
        assert difference(alone[0].state, one.state) <= 1e-12
        assert one.metrics == pytest.approx(evaluate(made, alone[0].state, DATA, recipe))
    assert "4 trials together" in found.explain()


def test_halving_stops_the_worse_ones_and_leaves_the_best_as_it_is():
    grid = {"lr": [1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0001]}
    recipe = Recipe(optimizer=SGD(), batch_size=8, epochs=4)
    whole = sweep(net, DATA, grid, recipe=recipe, test=DATA, strategy="fused:8")
    halved = sweep(net, DATA, grid, recipe=recipe, test=DATA, strategy="fused:8", halving=2)
    assert [t.share for t in halved] == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
    assert sum(t.result.steps for t in halved) < sum(t.result.steps for t in whole)
    same = next(t for t in whole if t.trial.number == halved.best.trial.number)
    assert difference(same.state, halved.best.state) <= 1e-12
    assert halved.best.score == max(t.score for t in whole)


def test_a_trial_that_fails_or_diverges_is_the_last():
    found = sweep(net, DATA, {"lr": [0.1, 1e308]}, recipe=RECIPE, test=DATA, strategy="fused:2")
    assert [t.settings["lr"] for t in found] == [0.1, 1e308]
    assert found[-1].score == -math.inf
    assert found[-1].result.status == "diverged"


def test_scores_are_the_callers_or_the_last_loss():
    made = net()
    by_size = sweep(
        made, DATA, {"lr": [0.5, 0.01]}, recipe=RECIPE, strategy="serial",
        score=lambda model: -float(model[0].weight.norm()),
    )  # fmt: skip
    assert by_size.best.score == pytest.approx(-float(by_size.best.state["0.weight"].norm()))
    plain = sweep(made, DATA, [{"lr": 0.5}, {"lr": 0.01, "momentum": 0.5}], recipe=RECIPE, strategy="serial")
    assert plain.best.score == -float(plain.best.result.losses[-1])


class Quiet:
    """An argument of a model whose repr and equality do not tell it from others."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return "Quiet"

    def __eq__(self, other):
        return True

    __hash__ = None


@pytest.mark.parametrize("seed", range(3))
def test_arguments_are_told_apart_by_what_they_are_and_not_by_what_they_print(seed):
    values = [float(v) for v in torch.rand(4, generator=torch.Generator().manual_seed(seed))]
    wide = [np.zeros(3000) for _ in values]
    for array, value in zip(wide, values, strict=True):
        array[1500] = value

    def made(start):
        model = nn.Linear(5, 3).double()
        nn.init.constant_(model.weight, start.value if isinstance(start, Quiet) else float(start[1500]))
        return model

    still = Recipe(optimizer=SGD(0.0), epochs=1)
    for starts in ([Quiet(v) for v in values], wide):
        found = sweep(made, DATA, {"start": starts, "lr": [0.0, 0.0]}, recipe=still, strategy="serial")
        for trial in found:
            start = trial.settings["start"]
            value = start.value if isinstance(start, Quiet) else start[1500]
            assert float(trial.state["weight"][0, 0]) == float(value)


def test_whole_numbers_may_be_numpys():
    grid = {"batch_size": np.array([6, 8]), "epochs": np.arange(1, 3), "width": np.array([3, 3])}
    found = sweep(net, DATA, grid, recipe=RECIPE, strategy="serial")
    assert len(found) == 8
    assert len(found.plans) == 2  # by batch size


def test_a_trial_whose_score_fails_is_the_last_and_says_why():
    def score(model):
        if float(model[0].weight.abs().max()) > 1e3:
            return float("nan")
        return 1 / 0 if model[0].weight.shape[0] == 3 else 1.0

    with pytest.warns(UserWarning, match="has no score"):
        found = sweep(
            net, DATA, [{"width": 3}, {"width": 4}, {"width": 5, "lr": 1e4}], recipe=RECIPE, score=score,
            strategy="serial",
        )  # fmt: skip
    assert [t.settings["width"] for t in found] == [4, 3, 5]
    assert [t.score for t in found] == [1.0, -math.inf, -math.inf]
    assert isinstance(found[1].error, ZeroDivisionError)
    with pytest.warns(UserWarning, match="shapes cannot be multiplied"):
        found = sweep(net, DATA, {"lr": [0.1]}, test=(X[:, :2], DATA[1]), strategy="serial")
    assert found.best.score == -math.inf


def brittle(width):
    if width > 4:
        raise RuntimeError("too wide")
    return net(width)


@pytest.mark.parametrize(
    ("grid", "options", "said"),
    [
        (None, {}, "grid=None"),
        ([1, 2], {}, r"grid=\[1, 2\]"),
        ({1: [2]}, {}, "names"),
        ({"seed": ["a"]}, {}, "seed='a'"),
        ({"seed": [2**70]}, {}, "64 bits"),
        ({"optimizer": [torch.optim.SGD]}, {}, "optimizer=SGD"),
        ({"batch_size": [True]}, {}, "batch_size=True"),
        ({"width": [3, 9]}, {}, "too wide"),
        ({}, {}, "no setting"),
        ([{}], {}, "no setting"),
        ({"lr": 0.1}, {}, r"grid\['lr'\]=0.1"),
        ({"lr": [-1.0]}, {}, r"SGD\(lr=-1.0\)"),
        ({"depth": [2]}, {}, "does not take 'depth'"),
        ({"lr": [0.1]}, {"halving": 1}, "halving=1"),
        ({"lr": [0.1]}, {"score": "beauty"}, "beauty"),
        ({"lr": [0.1]}, {"score": "accuracy"}, "needs examples"),
        ({"lr": [0.1], "loss": ["cross_entropy", "mse"]}, {"score": "accuracy", "test": DATA}, "use loss"),
        ({"lr": [0.1]}, {"test": (X[:0], DATA[1][:0])}, "no examples"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_is_trained(grid, options, said, monkeypatch):
    monkeypatch.setattr("evenload.clients.trainer.Trainer.train_with", None)
    with pytest.raises(ConfigError, match=said):
        sweep(brittle if grid == {"width": [3, 9]} else net, DATA, grid, strategy="serial", **options)


def test_a_module_has_no_settings():
    with pytest.raises(ConfigError, match="has a setting 'width'"):
        sweep(net(), DATA, {"width": [2]}, recipe=RECIPE)


def test_no_trial_at_all_is_an_error():
    with pytest.raises(TaskError, match="none of 2 trials"):
        sweep(net, (X[:, :2], DATA[1]), {"lr": [0.1, 0.2]}, strategy="serial")
    with pytest.raises(TaskError, match="no examples"):
        sweep(net, (X[:0], DATA[1][:0]), {"lr": [0.1, 0.2]}, strategy="serial")
