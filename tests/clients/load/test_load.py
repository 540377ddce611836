"""Tests through training how datasets of all kinds are read, and what is refused in them."""

import numpy as np
import pytest
import torch
from clients.linear_clients import RECIPE, model, pair
from torch import nn
from torch.utils.data import Subset, TensorDataset

from evenload.clients import Cosine, Recipe, Rows, Strategy, train
from evenload.clients.spread.equivalence_check import difference
from evenload.errors import ConfigError


def test_every_kind_of_dataset_is_the_same_client():
    x, y = pair()
    rows = np.array([8, 1, 3, 5])
    forms = [
        (x[rows], y[rows]),
        [x[rows].numpy().astype(np.float64), y[rows].numpy()],
        TensorDataset(x[rows], y[rows]),
        Subset(TensorDataset(x, y), rows.tolist()),
        Subset([(x[i], y[i]) for i in range(9)], rows.tolist()),
        Rows(x, y, rows),
        lambda: (x[rows], y[rows]),
    ]
    for strategy in ("serial", "fused:3"):
        states = [train(model, [form], RECIPE, strategy=strategy)[0].state for form in forms]
        assert all(difference(states[0], state) == 0 for state in states)


def test_lazy_clients_are_loaded_in_windows(monkeypatch):
    monkeypatch.setattr("evenload.clients.trainer.WINDOW", 3)
    loaded, alive = [], []

    def lazy(i):
        def load():
            loaded.append(i)
            return pair(seed=i)

        return load

    def watch(results):
        alive.append((len(loaded), [r.client for r in results]))
        return results

    reducer = type("Watch", (), {"take": staticmethod(watch), "value": lambda self: None})()
    result = train(model, [lazy(i) for i in range(7)], RECIPE, strategy="serial", reduce=reducer)
    assert [r.client for r in result] == loaded == list(range(7))
    assert all(n - min(clients) <= 3 for n, clients in alive if clients)


@pytest.mark.parametrize("strategy", ["serial", "fused:2"])
def test_a_client_that_cannot_be_loaded_midway_keeps_those_before_and_after(monkeypatch, strategy):
    monkeypatch.setattr("evenload.clients.trainer.WINDOW", 2)
    fetched = []

    def load(i):
        fetched.append(i)
        if i == 3:
            raise OSError("the disk is gone")
        return pair(seed=i)

    run = train(
        model, [lambda i=i: load(i) for i in range(6)], RECIPE, strategy=strategy, on_error="return", seed=1
    )
    assert fetched == list(range(6))
    assert [r.status for r in run] == ["ok", "ok", "ok", "failed", "ok", "ok"]
    assert "the disk is gone" in str(run[3].error)
    healthy = train(model, [pair(seed=i) for i in range(6)], RECIPE, strategy="serial", seed=1)
    assert max(difference(run[i].state, healthy[i].state) for i in (0, 1, 2, 4, 5)) <= 1e-6


def test_labels_of_any_whole_type_are_labels():
    x, y = pair()
    whole = train(model, [(x, y)], RECIPE, strategy="serial")[0]
    rows = np.arange(9)
    for kind in (torch.int32, torch.uint8, torch.int16):
        for form in ((x, y.to(kind)), Rows(x, y.to(kind), rows)):
            for strategy in ("serial", "fused:2"):
                found = train(model, [form, form], RECIPE, strategy=strategy)[0]
                assert difference(found.state, whole.state) <= 1e-6


@pytest.mark.parametrize("strategy", ["serial", "fused:5"])
@pytest.mark.parametrize("beyond", [7, 100, -20])
def test_an_index_beyond_a_clients_table_is_that_clients_error(strategy, beyond):
    """Under vmap the tables lie one behind another: the index would read and train a neighbour's."""

    def net():
        return nn.Sequential(nn.Embedding(11, 6), nn.Flatten(), nn.Linear(30, 3))

    g = torch.Generator().manual_seed(1)
    data = [
        (torch.randint(4, 11, (9, 5), generator=g), torch.randint(0, 3, (9,), generator=g)) for _ in "12345"
    ]
    healthy = train(net, data, RECIPE, strategy="serial")
    data[2] = (data[2][0] + beyond, data[2][1])
    run = train(net, data, RECIPE, strategy=strategy, on_error="return")
    assert [r.status for r in run] == ["ok", "ok", "failed", "ok", "ok"]
    assert "index out of range" in str(run[2].error)
    assert str(run.plan.strategy) == str(Strategy.parse(strategy))
    assert max(difference(run[i].state, healthy[i].state) for i in (0, 1, 3, 4)) <= 1e-6


def test_only_the_rows_that_a_client_has_are_asked_about():
    x = torch.tensor([[3], [50], [10], [0]])
    net = nn.Sequential(nn.Embedding(11, 6), nn.Flatten(), nn.Linear(6, 3))
    y = torch.zeros(4, dtype=torch.int64)
    data = [Rows(x, y, np.array([0, 2])), Rows(x, y, np.array([1, 3]))]
    run = train(net, data, RECIPE, strategy="fused:2", on_error="return")
    assert [r.status for r in run] == ["ok", "failed"]


def test_merged_is_another_computation_and_says_so():
    data = [pair(8, seed=1), pair(12, seed=2)]
    merged = train(model, data, RECIPE, strategy="merged")
    assert merged.plan.strategy.grade == "approximate"
    assert "not training clients" in merged.plan.why
    assert difference(merged[0].state, merged[1].state) == 0
    assert difference(merged[0].state, train(model, data, RECIPE, strategy="serial")[0].state) > 1e-3


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({}, "without corrections"),
        ({"clip": 1.0, "prox": 0.1}, "without clip, prox"),
        ({"schedule": Cosine()}, "without schedule"),
        ({"augment": lambda x, draws: x, "precision": "bfloat16"}, "without augment, precision"),
        ({"metrics": ("accuracy",)}, "without metrics"),
        ({"step": lambda net, optimizer, x, y: 0.0}, "without step"),
    ],
)
def test_merged_refuses_what_it_would_leave_out(kwargs, named):
    zeros = {name: torch.zeros_like(t) for name, t in model().named_parameters()}
    given = {} if kwargs else {"corrections": [zeros, zeros]}
    with pytest.raises(ConfigError, match=named):
        train(model, [pair(), pair()], Recipe(batch_size=4, **kwargs), strategy="merged", **given)
