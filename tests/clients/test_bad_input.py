"""What is wrong with one client is said of that client; the others are trained."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from clients.linear_clients import RECIPE, Cased, model, pair
from torch import nn
from torch.utils.data import Dataset

from evenload.clients import SGD, AdamW, Recipe, Strategy, train
from evenload.clients.spread.equivalence_check import difference
from evenload.errors import ConfigError, TaskError, UnknownName


class Broken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        if i == 2:
            raise OSError("disk on fire")
        return torch.zeros(5), 0


class WithInputs(nn.Linear):
    """Returns its inputs beside its outputs."""

    def __init__(self):
        super().__init__(5, 3)

    def forward(self, x):
        return super().forward(x), x


@pytest.mark.parametrize("strategy", ["serial", "fused:4", "threads*2/eager"])
def test_one_bad_client_leaves_the_others_as_they_are(strategy):
    good = [pair(seed=i) for i in range(3)]
    x, y = pair()
    poison = (torch.full_like(x, float("nan")), y)
    data = [good[0], (x[:0], y[:0]), Broken(), good[1], (x, y + 1), poison, good[2], (x[:1], y[:1])]
    with pytest.raises(TaskError, match=r"client 2 failed \(and 1 more\): disk on fire") as caught:
        train(model, data, RECIPE, strategy=strategy)
    result = caught.value.result
    assert [r.status for r in result] == ["ok", "empty", "failed", "ok", "failed", "diverged", "ok", "ok"]
    assert isinstance(result[2].error, OSError)
    assert "label 3 is out of range: the model's classes are 0 to 2" in str(result[4].error)
    healthy = train(model, [good[0], good[1], good[2]], RECIPE, strategy=strategy, ids=[0, 3, 6])
    assert all(difference(r.state, result[r.client].state) == 0 for r in healthy)
    assert train(model, [], RECIPE).plan.why == "there was no client to train"
    assert result[5].steps == 0
    assert difference(result[5].state, result[1].state) == 0  # frozen at the start
    returned = train(model, data, RECIPE, strategy=strategy, on_error="return")
    assert [r.client for r in returned.not_ok] == [1, 2, 4, 5]


def test_a_reducer_leaves_out_what_is_not_usable():
    x, y = pair()
    data = [pair(6, seed=1), (x * float("nan"), y), pair(12, seed=2)]
    whole = train(model, data, RECIPE, strategy="fused:4")
    reduced = train(model, data, RECIPE, strategy="fused:4", reduce="mean")
    expected = {n: (whole[0].state[n] * 6 + whole[2].state[n] * 12) / 18 for n in whole[0].state}
    assert difference(reduced.reduced, expected) <= 1e-7
    assert all(not r.state for r in reduced)
    with pytest.raises(ConfigError, match="nothing to average"):
        train(model, [data[1]], RECIPE, reduce="mean")


@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_where_all_fail_the_mean_does_not_hide_why(on_error):
    x, y = pair()
    with pytest.raises(TaskError, match=r"client 0 failed \(and 1 more\): label 11 is out of range"):
        train(model, [(x, y + 9)] * 2, RECIPE, strategy="serial", reduce="mean", on_error=on_error)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recipe(optimizer="sgd"), "optimizer='sgd'"),
        (lambda: Recipe(loss="crossentropy"), "unknown loss 'crossentropy'"),
        (lambda: Recipe(metrics=("auc",)), "unknown metric"),
        (lambda: Recipe(steps=3, epochs=2), "give one of the two"),
        (lambda: Recipe(batch_size=0), "batch_size=0"),
        (lambda: Recipe(batch_size=10**12), "rows of the largest"),
        (lambda: Recipe(clip=-1.0), "clip is -1.0"),
        (lambda: Recipe(prox=-1.0), "prox is -1.0"),
        (lambda: Recipe(clip="1"), "clip is '1'"),
        (lambda: Recipe(prox=float("nan")), "prox is nan"),
        (lambda: Recipe(shuffle="no"), "shuffle='no' is neither"),
        (lambda: Recipe(metrics="accuracy"), "metrics='accuracy' is no sequence"),
        (lambda: Recipe(optimizer=SGD), "optimizer=<class"),
        (lambda: SGD(lr=float("nan")), "lr=nan"),
        (lambda: SGD(nesterov=True), "nesterov needs"),
        (lambda: Strategy.parse("fussed"), "unknown inner strategy 'fussed'"),
        (lambda: Strategy.parse("thread/eager"), "unknown outer strategy 'thread'"),
        (lambda: Strategy.parse("fused:"), "not of the form"),
        (lambda: Strategy.parse("threads/merged"), "cannot be spread"),
        (lambda: train(model, [pair()], [RECIPE, RECIPE]), "2 recipes for 1 clients"),
        (
            lambda: train(model, [pair()] * 2, [RECIPE, Recipe(optimizer=AdamW(), batch_size=4)]),
            "client 1 uses AdamW",
        ),
        (lambda: train(model, [pair()] * 2, [RECIPE, Recipe(batch_size=5)]), "batch_size=5"),
        (lambda: train(model, [pair()] * 2, RECIPE, ids=[1, 1]), "1 different ids"),
        (lambda: train(model, [pair()], RECIPE, start=nn.Linear(4, 3).state_dict()), r"'weight' is \(3, 4\)"),
        (lambda: train(model, [pair()], RECIPE, start={}), "lacks 'weight'"),
        (
            lambda: train(model, [pair()], RECIPE, corrections=[{"weight": torch.zeros(3, 5)}]),
            "correction of client 0 lacks 'bias'",
        ),
        (
            lambda: train(model, [pair()], Recipe(prox=0.1), anchor={"bias": torch.zeros(3)}),
            "anchor of client 0 lacks 'weight'",
        ),
        (lambda: train(model, [pair()], RECIPE, on_error="ignore"), "unknown on_error 'ignore'"),
        (lambda: train(model, [pair()], RECIPE, reduce="sum"), "reduce='sum'"),
        (lambda: train(model, (pair() for _ in "12"), RECIPE), "datasets is a generator"),
        (lambda: train(model, {"ann": pair()}, RECIPE), r"datasets is a dict\n.*list\(datasets.values\(\)\)"),
        (lambda: train(model, {1, 2}, RECIPE), "datasets is a set"),
        (lambda: train(model, [pair()], None), "a recipe is None"),
        (lambda: train(model, [pair()], [{"lr": 0.1}]), "a recipe is {'lr': 0.1}"),
        (lambda: train(model().requires_grad_(False), [pair()], RECIPE), "on no trained parameter"),
        (lambda: train(WithInputs, [pair()] * 2, RECIPE, strategy="fused"), "the model returned a tuple"),
        (lambda: train([model(), model()], [pair()], RECIPE), "the model is a list"),
        (
            lambda: train(
                model, [pair()] * 2, RECIPE, start=[model().state_dict(), nn.Linear(4, 3).state_dict()]
            ),
            r"start of client 1: 'weight' is \(3, 4\), in the model \(3, 5\)",
        ),
        (lambda: train(3, [pair()], RECIPE), "the model is a int"),
        (lambda: train(lambda: 3, [pair()], RECIPE), "factory returned a int"),
        (lambda: train(model, [5], RECIPE), "a client's dataset is a int"),
        (lambda: train(model, [(torch.zeros(3, 5), torch.zeros(2))], RECIPE), "3 inputs, but 2 targets"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(make, message):
    with pytest.raises((ConfigError, UnknownName, TaskError), match=message):
        make()


@pytest.mark.parametrize("strategy", ["serial", "fused:3", "threads*2/eager"])
def test_a_loss_that_is_nan_midway_freezes_that_client_alone(strategy):
    recipe = dataclasses.replace(RECIPE, shuffle=False)
    data = [pair(12, seed=i) for i in range(3)]
    healthy = train(model, data, recipe, strategy=strategy)
    x = data[1][0].clone()
    x[5] = float("nan")  # in the second of three batches
    run = train(model, [data[0], (x, data[1][1]), data[2]], recipe, strategy=strategy)
    assert [(r.status, r.steps) for r in run] == [("ok", 3), ("diverged", 1), ("ok", 3)]
    assert all(difference(run[i].state, healthy[i].state) == 0 for i in (0, 2))
    first = (data[1][0][:4], data[1][1][:4])
    before = train(model, [first], recipe, strategy="serial", ids=[1])
    assert difference(run[1].state, before[0].state) <= 1e-6


def test_clients_may_share_a_start_and_a_model_its_parameters():
    """Nobody writes into what is shared: not into the caller's tensors, not into a neighbour's."""
    twice = nn.Linear(5, 5)
    net = nn.Sequential(twice, nn.Tanh(), twice, nn.Linear(5, 3))
    start = {name: t.clone() for name, t in net.state_dict().items()}
    kept, data = {name: t.clone() for name, t in start.items()}, [pair(seed=1), pair(seed=2)]
    rows = data[0][0].clone()
    runs = [
        train(net, data, RECIPE, strategy=s, start=[start, start]) for s in ("serial", "fused:2", "rules:2")
    ]
    for run in runs:
        assert difference(start, kept) == difference(net.state_dict(), kept) == 0
        assert difference(run[0].state, run[1].state) > 1e-3
        assert torch.equal(run[0].state["0.weight"], run[0].state["2.weight"])
        assert torch.equal(data[0][0], rows)
        assert max(difference(a.state, b.state) for a, b in zip(runs[0], run, strict=True)) <= 1e-6


def test_threads_do_not_share_torchs_generator():
    data = [pair(seed=i) for i in range(3)]
    threaded = train(lambda: Cased("noise"), data, RECIPE, strategy="threads*2/eager")
    serial = train(lambda: Cased("noise"), data, RECIPE, strategy="serial")
    assert threaded.plan.strategy.outer == "inline"
    assert "generators that threads share" in threaded.plan.explain()
    assert max(difference(a.state, b.state) for a, b in zip(threaded, serial, strict=True)) == 0


def test_clients_that_cannot_join_are_trained_beside():
    net = lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))  # noqa: E731
    data = [pair(8, seed=1), pair(9, seed=2), pair(7, seed=3)]
    run = train(net, data, RECIPE, strategy="fused:3", on_error="return")
    assert run.plan.solo == {1: "a batch of one row, and the model has batch statistics"}
    assert [r.status for r in run] == ["ok", "failed", "ok"]
    assert "more than 1 value per channel" in str(run[1].error)


def test_the_package_costs_nothing_until_it_is_used():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import evenload.clients as c\n"
        "c.Recipe(optimizer=c.SGD(0.1))\n"
        "print(c.Strategy.parse('fused'), dir(c) == sorted(c.__all__))\n"
        "try: c.train\n"
        "except ImportError as error: print(type(error).__name__, error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path.home(),
        check=False,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "inline/fused:16 True",
        "MissingExtra pip install 'evenload[clients]'",
    ]
