"""Tests through training what is accepted as torch accepts it, and what is said of the rest."""

import copy

import pytest
import torch
import torch.nn.functional as F
from clients.linear_clients import pair
from torch import nn

from evenload.clients import SGD, Recipe, Trainer, federate, train
from evenload.clients.job import read_job
from evenload.clients.spread.equivalence_check import difference
from evenload.errors import ConfigError, SpecError

RECIPE = Recipe(optimizer=SGD(0.1), batch_size=4, metrics=("accuracy",))


@pytest.mark.parametrize("strategy", ["fused:3", "threads*2/eager", "auto"])
def test_ignored_labels_are_left_out_as_torch_does(strategy):
    torch.manual_seed(0)
    net, data = nn.Linear(5, 3), [pair(n, seed=n) for n in (9, 6, 8)]
    data[1][1][[0, 2]] = -100
    recipe = Recipe(optimizer=SGD(0.1), batch_size=6, shuffle=False)
    plain = copy.deepcopy(net)
    F.cross_entropy(plain(data[1][0]), data[1][1]).backward()
    expected = net.weight.detach() - 0.1 * plain.weight.grad
    run = train(net, data, recipe, strategy=strategy)
    assert (run[1].state["weight"] - expected).abs().max() <= 1e-6
    serial = train(net, data, recipe, strategy="serial")
    assert max(difference(a.state, b.state) for a, b in zip(run, serial, strict=True)) <= 1e-6
    if strategy == "fused:3":
        assert "labels are ignored" in run.plan.solo[1]


def test_a_plan_without_clients_says_why_there_are_none():
    x, y = pair()
    run = train(nn.Linear(5, 3), [(x, y + 9), (x, y + 9)], RECIPE, on_error="return")
    assert run.plan.why.startswith("there was no client to train: client 0: ConfigError: label")
    assert "(and 1 more)" in run.plan.explain()


class Fails(nn.Linear):
    def forward(self, x):
        raise RuntimeError("no such layer")


@pytest.mark.parametrize("strategy", ["auto", "measured", "fused:2", "serial"])
def test_a_plan_of_clients_that_all_failed_says_so_and_not_what_was_fastest(strategy):
    with Trainer(Fails(5, 3), strategy=strategy, rounds=10_000) as trainer:
        run = trainer.train([pair(seed=i) for i in range(3)], RECIPE, on_error="return")
    told = run.plan.explain()
    assert told.startswith("no client was trained")
    assert "client 0: RuntimeError: no such layer (and 2 more)" in told
    assert "fastest" not in told
    assert "bitwise" not in told


@pytest.mark.parametrize("loss", ["mse", "l1"])
@pytest.mark.parametrize("strategy", ["serial", "fused:2"])
def test_targets_that_would_be_broadcast_are_refused_with_both_shapes(loss, strategy):
    x, _ = pair(8)
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, loss=loss)
    run = train(nn.Linear(5, 1), [(x, x[:, 0])] * 2, recipe, strategy=strategy, on_error="return")
    assert "outputs of shape (4, 1) and targets of shape (4,)" in str(run[0].error)
    assert train(nn.Linear(5, 1), [(x, x[:, :1])] * 2, recipe, strategy=strategy)[0].status == "ok"


def test_a_cohort_of_more_clients_than_there_are_is_told():
    data = [pair(seed=i) for i in range(3)]
    with pytest.warns(UserWarning, match="a cohort of 50, but there are 3 clients: all take part"):
        federate(nn.Linear(5, 3), data, RECIPE, rounds=1, cohort=50, strategy="serial")


def test_every_fault_of_a_recipe_is_told_at_once():
    recipe = {"optimizer": {"name": "SGD", "rate": 1}, "batch_size": 0, "loss": "mes", "spoch": 3}
    document = {"model": "a.py:b", "clients": "a.py:c", "rounds": 1, "recipe": recipe}
    with pytest.raises(SpecError) as caught:
        read_job(document, "job.yaml")
    assert all(part in str(caught.value) for part in ("rate", "batch_size=0", "'mes'", "spoch"))


class Leaky(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.line = how, nn.Linear(5, 3)
        self.register_buffer("kept", torch.zeros(5), persistent=False)
        self.n, self.table, count = 0, {"last": None}, 0

        def counting():
            nonlocal count
            count += 1
            return count

        self.counting = counting

    def forward(self, x):
        if self.how == "buffer anew":
            self.kept = self.kept + x.detach().mean(0)
        elif self.how == "dict":
            last, self.table["last"] = self.table["last"], x.detach().mean(0)
            x = x if last is None else x - last
        elif self.how == "new attribute":
            self.extra = getattr(self, "extra", 0) + 1
            x = x * self.extra
        elif self.how == "late" and len(x) == 2:
            self.n += 1
        elif self.how == "closure":
            x = x * self.counting()
        return self.line((x - self.kept) * (1 + self.n))


@pytest.mark.parametrize("how", ["buffer anew", "dict", "new attribute", "late"])
@pytest.mark.parametrize("strategy", ["serial", "threads*2/eager", "fused:3"])
def test_what_a_model_remembers_does_not_reach_the_next_client(how, strategy):
    torch.manual_seed(0)
    net, data = Leaky(how), [pair(n, seed=n) for n in (9, 6, 13, 10)]
    fresh = [train(net, [d], RECIPE, strategy="serial", ids=[i])[0] for i, d in enumerate(data)]
    run = train(net, data, RECIPE, strategy=strategy)
    assert max(difference(a.state, b.state) for a, b in zip(run, fresh, strict=True)) == 0


def test_what_cannot_be_put_back_is_refused_by_name():
    with pytest.raises(ConfigError, match="attribute 'counting' of the model changed"):
        train(Leaky("closure"), [pair(), pair(seed=1)], RECIPE, strategy="serial")
    net = nn.Linear(5, 3)
    net.rows = (i for i in range(3))
    with pytest.raises(ConfigError, match="attribute 'rows' of the model cannot be copied"):
        train(net, [pair()], RECIPE, strategy="serial")
