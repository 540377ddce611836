"""What is wrong with one client is said of that client; the others are trained."""

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from evenload.clients import SGD, AdamW, Constant, Cosine, Recipe, Rows, Strategy, Trainer, train
from evenload.clients.load.load import ClientInputs, DatasetReader, load_tasks
from evenload.clients.spread.dispatch_clients import ClientDispatcher
from evenload.clients.spread.equivalence_check import difference
from evenload.clients.spread.remote import (
    RemoteClientWorker,
    SentModel,
    _arrays,
    _tensors,
    received,
    sent_recipe,
    sent_task,
)
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.step.model_traits import find_traits
from evenload.devices import CurrentDevice
from evenload.errors import ConfigError, EvenloadError, TaskError, UnknownName, WorkerLost

RECIPE = Recipe(optimizer=SGD(0.1), batch_size=4)


def pair(n=9, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=g), torch.randint(0, classes, (n,), generator=g)


def model():
    return nn.Linear(5, 3)


class Broken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        if i == 2:
            raise OSError("disk on fire")
        return torch.zeros(5), 0


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


@pytest.mark.parametrize("said", ["MemoryError: ", "_ArrayMemoryError: Unable to allocate 3 GiB", "boom"])
def test_what_a_worker_says_of_its_memory_is_understood(monkeypatch, said):
    real = ClientDispatcher.run

    def small(self, strategy, *args):
        if strategy.rows > 2:
            raise RuntimeError(said)
        yield from real(self, strategy, *args)

    monkeypatch.setattr(ClientDispatcher, "run", small)
    run = train(model, [pair(seed=k) for k in range(5)], RECIPE, strategy="fused:4")
    assert [r.status for r in run] == ["ok"] * 5
    assert ("went on as inline/fused:2" in run.plan.explain()) == (said != "boom")


@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_where_all_fail_the_mean_does_not_hide_why(on_error):
    x, y = pair()
    with pytest.raises(
        TaskError, match=r"client 0 failed \(and 1 more\): label 11 is out of range"
    ) as caught:
        train(model, [(x, y + 9)] * 2, RECIPE, strategy="serial", reduce="mean", on_error=on_error)
    assert [r.status for r in caught.value.result] == ["failed", "failed"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recipe(optimizer="sgd"), "optimizer='sgd'"),
        (lambda: Recipe(loss="crossentropy"), "unknown loss 'crossentropy'"),
        (lambda: Recipe(metrics=("auc",)), "unknown metric"),
        (lambda: Recipe(steps=3, epochs=2), "give one of the two"),
        (lambda: Recipe(batch_size=0), "batch_size=0"),
        (lambda: Recipe(clip=-1.0), "clip=-1.0"),
        (lambda: Recipe(prox=-1.0), "prox=-1.0"),
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
        (lambda: train(model, [pair()], RECIPE, on_error="ignore"), "on_error='ignore'"),
        (lambda: train(model, [pair()], RECIPE, reduce="sum"), "reduce='sum'"),
        (lambda: train(model, (pair() for _ in "12"), RECIPE), "datasets is a generator"),
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
    monkeypatch.setattr("evenload.clients.tune.trainer.WINDOW", 3)
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
    monkeypatch.setattr("evenload.clients.tune.trainer.WINDOW", 2)
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
    runs = [
        train(net, data, RECIPE, strategy=s, start=[start, start]) for s in ("serial", "fused:2", "rules:2")
    ]
    for run in runs:
        assert difference(start, kept) == difference(net.state_dict(), kept) == 0
        assert difference(run[0].state, run[1].state) > 1e-3
        assert torch.equal(run[0].state["0.weight"], run[0].state["2.weight"])
        assert max(difference(a.state, b.state) for a, b in zip(runs[0], run, strict=True)) <= 1e-6


def by_value(x):
    return x if float(x.sum()) > 0 else -x


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
        elif self.how == "dropout":
            x = F.dropout(x, 0.3)
        elif self.how == "shape":
            x = x * x[x > 0].sum()
        elif self.how == "batch":
            x = x - x.mean(0)
        return self.out(x * self.hidden)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("branch", "the model acts on a tensor's value"),
        ("item", "the model acts on a tensor's value"),
        ("dropout", "use nn.Dropout"),
        ("shape", "boolean indexing"),
        ("batch", "away from serial"),
    ],
)
def test_what_cannot_be_fused_is_named_and_trained_serially(how, reason):
    """ "batch" can be run by vmap, but padding rows would enter its mean: only the comparison finds that."""
    data = [pair(n, seed=n) for n in (9, 6, 5)]
    run = train(lambda: Cased(how), data, RECIPE, strategy="fused:3")
    serial = train(lambda: Cased(how), data, RECIPE, strategy="serial")
    assert run.plan.strategy.inner == "eager"
    assert reason in run.plan.reasons["fused"], run.plan.explain()
    assert reason in run.plan.why
    assert max(difference(a.state, b.state) for a, b in zip(run, serial, strict=True)) == 0


@pytest.mark.parametrize(
    ("sizes", "kwargs"),
    [((8, 6, 4), {}), ((9, 9), {"steps": 4}), ((8, 8, 8, 7), {}), ((9, 8, 5), {"steps": 9})],
)
def test_a_short_batch_is_always_among_what_is_checked(sizes, kwargs):
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, **kwargs)
    data = [pair(n, seed=n) for n in sizes]
    run = train(lambda: Cased("batch"), data, recipe, strategy="fused:3")
    serial = train(lambda: Cased("batch"), data, recipe, strategy="serial")
    assert "away from serial" in run.plan.why
    assert max(difference(a.state, b.state) for a, b in zip(run, serial, strict=True)) == 0


def test_a_verdict_on_full_batches_does_not_serve_short_ones():
    full, short = [pair(8, seed=i) for i in range(4)], [pair(n, seed=n) for n in (8, 7, 6, 5)]
    with Trainer(lambda: Cased("batch"), strategy="fused:4") as trainer:
        assert trainer.train(full, RECIPE).plan.strategy.inner == "fused"
        assert trainer.train(short, RECIPE).plan.strategy.inner == "eager"


def test_an_augmentation_whose_numbers_depend_on_padding_is_not_fused():
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, augment=lambda x, draws: x + draws.uniform(5, len(x)).T)
    run = train(model, [pair(n, seed=n) for n in (8, 6, 4)], recipe, strategy="fused:3")
    assert "away from serial" in run.plan.why


def test_running_statistics_per_row_are_not_fused_over_padding():
    net = lambda: nn.Sequential(  # noqa: E731
        nn.Unflatten(1, (1, 5)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten(), nn.Linear(5, 3)
    )
    run = train(net, [pair(n, seed=n) for n in (8, 6, 4)], RECIPE, strategy="fused:3")
    assert run.plan.strategy.inner == "eager"
    assert run.plan.reasons["fused"]


def test_threads_do_not_share_torchs_generator():
    data = [pair(seed=i) for i in range(3)]
    threaded = train(lambda: Cased("dropout"), data, RECIPE, strategy="threads*2/eager")
    serial = train(lambda: Cased("dropout"), data, RECIPE, strategy="serial")
    assert threaded.plan.strategy.outer == "inline"
    assert "torch's own generator" in threaded.plan.explain()
    assert max(difference(a.state, b.state) for a, b in zip(threaded, serial, strict=True)) == 0


def test_a_custom_step_is_run_and_not_fused():
    def step(net, optimizer, x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y) * 2
        loss.backward()
        optimizer.step()
        return loss

    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, step=step)
    doubled = Recipe(
        optimizer=SGD(0.1), batch_size=4, loss=lambda out, y: 2 * F.cross_entropy(out, y, reduction="none")
    )
    own = train(model, [pair()], recipe, strategy="fused:2")
    assert "step function of its own" in own.plan.explain()
    assert difference(own[0].state, train(model, [pair()], doubled, strategy="fused:2")[0].state) <= 1e-6


def test_clients_that_cannot_join_are_trained_beside():
    net = lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))  # noqa: E731
    data = [pair(8, seed=1), pair(9, seed=2), pair(7, seed=3)]
    run = train(net, data, RECIPE, strategy="fused:3", on_error="return")
    assert run.plan.solo == {1: "a batch of one row, and the model has batch statistics"}
    assert [r.status for r in run] == ["ok", "failed", "ok"]
    assert "more than 1 value per channel" in str(run[1].error)


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
        ({"clip": 1.0, "prox": 0.1}, "without clip, prox"),
        ({"schedule": Cosine()}, "without schedule"),
        ({"augment": lambda x, draws: x, "precision": "bfloat16"}, "without augment, precision"),
        ({"metrics": ("accuracy",)}, "without metrics"),
        ({"step": lambda net, optimizer, x, y: 0.0}, "without step"),
    ],
)
def test_merged_refuses_what_it_would_leave_out(kwargs, named):
    with pytest.raises(ConfigError, match=named):
        train(model, [pair(), pair()], Recipe(batch_size=4, **kwargs), strategy="merged")


def test_merged_refuses_what_only_a_client_can_have():
    zeros = {name: torch.zeros_like(t) for name, t in model().named_parameters()}
    with pytest.raises(ConfigError, match="without corrections"):
        train(model, [pair(), pair()], RECIPE, strategy="merged", corrections=[zeros, zeros])


def test_labels_of_any_whole_type_are_labels():
    x, y = pair()
    whole = train(model, [(x, y)], RECIPE, strategy="serial")[0]
    rows = np.arange(9)
    for kind in (torch.int32, torch.uint8, torch.int16):
        for form in ((x, y.to(kind)), Rows(x, y.to(kind), rows)):
            for strategy in ("serial", "fused:2"):
                found = train(model, [form, form], RECIPE, strategy=strategy)[0]
                assert difference(found.state, whole.state) <= 1e-6


def test_the_models_and_the_callers_tensors_are_left_alone():
    net, (x, y) = model(), pair()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    kept = x.clone()
    train(net, [(x, y)] * 3, RECIPE, strategy="fused:2")
    assert difference(before, net.state_dict()) == 0
    assert torch.equal(x, kept)
    assert (
        train(net, [(x, y)], Recipe(schedule=Constant()), strategy="serial")[0].state["weight"].grad is None
    )


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
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path.home(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["inline/fused:16 True", "MissingExtra pip install 'evenload[torch]'"]


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


def own_loss(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("strategy", ["fused:2", "threads*2/fused:2"])
def test_what_ends_a_whole_strategy_loses_no_client(strategy):
    """A label that only the loss refuses, of a client that the check does not see."""
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, loss=own_loss)
    data = [pair(n, seed=n + i) for i, n in enumerate((12, 8, 8, 8, 8, 4))]
    healthy = train(model, data, recipe, strategy="serial")
    data[3] = (data[3][0], data[3][1] + 1000)
    run = train(model, data, recipe, strategy=strategy, on_error="return")
    assert [r.status for r in run] == ["ok", "ok", "ok", "failed", "ok", "ok"]
    assert "the other clients were trained serially" in run.plan.explain()
    assert max(difference(run[i].state, healthy[i].state) for i in (0, 1, 2, 4, 5)) <= 1e-6


@pytest.mark.parametrize(
    "strategy", ["threads*2/fused:2", pytest.param("processes*2/fused:2", marks=pytest.mark.slow)]
)
def test_one_workers_trouble_costs_no_other_worker_what_it_finished(monkeypatch, strategy):
    runs, real = [], ClientDispatcher.run

    def run(self, strategy, traits, tasks, n_workers):
        runs.append((str(strategy), {task.client for task in tasks}))
        yield from real(self, strategy, traits, tasks, n_workers)

    monkeypatch.setattr(ClientDispatcher, "run", run)
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, loss=own_loss)
    data = [pair(n, seed=n + i) for i, n in enumerate((16, 8, 8, 8, 8, 8, 8, 8, 4))]
    data[3] = (data[3][0], data[3][1] + 1000)
    found = train(model, data, recipe, strategy=strategy, on_error="return")
    assert [r.client for r in found.not_ok] == [3]
    again = [clients for name, clients in runs if name == "inline/eager" and clients]
    in_one_group = 2 if strategy.startswith("threads") else 3  # the step's rows; what a group had left
    assert len(again) == 1
    assert 3 in again[0]
    assert len(again[0]) <= in_one_group


@pytest.mark.slow
def test_a_client_that_ends_its_process_fails_alone():
    """It must not be trained here either: that would end everything."""

    def step(net, optimizer, x, y):
        if float(x.max()) > 100:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, step=step)
    data = [pair(8, seed=i) for i in range(7)]
    serial = train(model, data, recipe, strategy="serial")
    data[2] = (data[2][0] + 1000, data[2][1])
    found = train(model, data, recipe, strategy="processes*2/eager", on_error="return")
    assert [r.client for r in found.not_ok] == [2]
    assert isinstance(found[2].error, WorkerLost)
    assert not found.plan.reasons
    assert max(difference(found[i].state, serial[i].state) for i in (0, 1, 3, 4, 5, 6)) == 0


def test_a_group_in_another_process_sends_back_who_ended_before_the_trouble():
    recipe = Recipe(optimizer=SGD(0.1), batch_size=4, loss=own_loss)
    net, data = with_keyed_dropout(model()), [pair(8, seed=i) for i in range(3)]
    data[1] = (data[1][0], data[1][1] + 1000)
    wanted = ClientInputs(data, [recipe] * 3, range(3), [net.state_dict()] * 3, [None] * 3, [None] * 3)
    tasks = load_tasks(DatasetReader(net), wanted, 0, 0).tasks
    worker = RemoteClientWorker(
        CurrentDevice("cpu:0", "cpu", 1),
        model=SentModel(net),
        strategy=Strategy(inner="fused", chunk=1),
        traits=find_traits(net, tasks[0]),
        threads=1,
    )
    ended, trouble = worker([sent_task(task, sent_recipe(task.recipe)) for task in tasks])
    assert [received(*one).client for one in ended] == [0]
    assert "out of bounds" in str(trouble)
    with pytest.raises(RuntimeError, match="out of bounds"):  # nobody ended: it is the executor's to tell
        worker([sent_task(tasks[1], sent_recipe(tasks[1].recipe))])


def test_devices_that_are_not_there_are_not_trained_around():
    with pytest.raises(EvenloadError, match="cuda:77"):
        train(model, [pair()], RECIPE, strategy="devices/eager", devices="cuda:77")


def test_bfloat16_travels_to_other_processes():
    state = {
        "w": torch.randn(3, 4).to(torch.bfloat16),
        "n": torch.tensor(3),
        "b": torch.tensor(1.5).bfloat16(),
    }
    there = pickle.loads(pickle.dumps(_arrays(state)))
    back = _tensors(there)
    assert back is not None
    assert all(torch.equal(back[n], state[n]) and back[n].dtype == state[n].dtype for n in state)


def test_groups_in_another_process_share_an_engine_for_a_loss_that_cannot_be_imported():
    """A lambda would arrive as another one with every group, and each would need an engine of its own."""
    recipe = Recipe(
        optimizer=SGD(0.1), batch_size=4, loss=lambda o, y: F.cross_entropy(o, y, reduction="none")
    )
    slower = dataclasses.replace(recipe, optimizer=SGD(0.05))
    net = with_keyed_dropout(model())
    data = [pair(8, seed=i) for i in range(4)]
    recipes = [recipe, recipe, slower, slower]
    wanted = ClientInputs(data, recipes, range(4), [net.state_dict()] * 4, [None] * 4, [None] * 4)
    tasks = load_tasks(DatasetReader(net), wanted, 0, 0).tasks
    strategy, traits = Strategy(inner="fused", chunk=2), find_traits(net, tasks[0])
    worker = RemoteClientWorker(
        CurrentDevice("cpu:0", "cpu", 1), model=SentModel(net), strategy=strategy, traits=traits, threads=1
    )
    groups = [[sent_task(task, sent_recipe(task.recipe)) for task in part] for part in (tasks[:2], tasks[2:])]
    found = [received(*r) for group in groups for r in worker(cloudpickle.loads(cloudpickle.dumps(group)))[0]]
    truth = train(net, data, recipes, strategy="serial")
    assert [r.client for r in found] == [0, 1, 2, 3]
    assert max(difference(a.state, b.state) for a, b in zip(found, truth, strict=True)) <= 1e-6
    assert len(worker._worker._engines) == 1


@pytest.mark.slow
def test_own_functions_reach_other_processes():
    recipe = Recipe(
        optimizer=SGD(0.1),
        batch_size=4,
        loss=lambda o, y: F.cross_entropy(o, y, reduction="none"),
        augment=lambda x, draws: x + 0.1 * draws.uniform(*x.shape),
    )
    data = [pair(8 + i, seed=i) for i in range(5)]
    serial, spread = (train(model, data, recipe, strategy=s) for s in ("serial", "processes*2/eager"))
    assert not spread.plan.reasons
    assert max(difference(a.state, b.state) for a, b in zip(serial, spread, strict=True)) == 0
