"""Plans are measured once for work of one kind, remembered, and replaced where a strategy fails."""

import dataclasses
import json

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, Trainer, train
from evenload.clients.spread.dispatch_clients import ClientDispatcher
from evenload.clients.tune.strategy_selector import StrategySelector
from evenload.clients.tune.tuner import Tuner
from evenload.clients.values.strategy import ClientPlan, Strategy

RECIPE = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, steps=10)


def test_auto_is_the_serial_result_and_remembers_what_it_measured(tmp_path):
    cache = tmp_path / "tuning.json"
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(40, 6, generator=g), torch.randint(0, 2, (40,), generator=g)) for _ in range(24)]
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    serial = train(net, data, RECIPE, strategy="serial")
    with Trainer(net, strategy="measured", rounds=5, cache=cache) as trainer:
        first = trainer.train(data, RECIPE)
        again = trainer.train(data, RECIPE)
    assert again.plan == first.plan
    assert str(first.plan.strategy) in first.plan.explain()
    assert first.plan.probes[0]["strategy"] == "inline/eager"
    assert (
        max(
            float((a.state[k] - b.state[k]).abs().max())
            for a, b in zip(serial, first, strict=True)
            for k in a.state
        )
        < 1e-6
    )
    assert len(json.loads(cache.read_text())) == 1
    later = train(net, data, RECIPE, strategy="measured", rounds=5, cache=cache)
    assert str(later.plan.strategy) == str(first.plan.strategy)
    assert later.plan.probes == first.plan.probes
    assert "before" in later.plan.why
    cache.write_text("{not json")
    anew = train(net, data, RECIPE, strategy="measured", rounds=5, cache=cache)
    assert "before" not in anew.plan.why
    assert [entry["why"] for entry in json.loads(cache.read_text()).values()] == [anew.plan.why]


@pytest.fixture
def tuned(monkeypatch):
    """What was measured: clients, and steps of all."""
    found, real = [], Tuner.decide

    def decide(self):
        found.append((len(self._tasks), sum(t.batches.n_steps for t in self._tasks)))
        return real(self)

    monkeypatch.setattr(Tuner, "decide", decide)
    return found


def test_auto_is_tuned_once_for_cohorts_of_about_one_size(tuned, linear_clients):
    with Trainer(nn.Linear(3, 2), strategy="measured") as trainer:
        for n in (4, 5, 7, 6, 9):
            trainer.train(linear_clients(n), RECIPE)
    assert [n for n, _ in tuned] == [4, 9]


def test_a_choice_for_a_small_job_is_made_anew_for_a_far_larger_one(tuned, linear_clients):
    recipe = dataclasses.replace(RECIPE, batch_size=4, steps=None, epochs=1)
    with Trainer(nn.Linear(3, 2), strategy="measured") as trainer:
        for times in (1, 8, 9, 1, 70, 73):
            data = [(x.repeat(times, 1), y.repeat(times)) for x, y in linear_clients(4)]
            trainer.train(data, recipe)
    assert [n_steps for _, n_steps in tuned] == [8, 72, 584]


def test_auto_is_tuned_once_for_recipes_that_cost_the_same(tuned, linear_clients):
    with Trainer(nn.Linear(3, 2), strategy="measured") as trainer:
        for rate in (0.1, 0.05, 0.01):
            recipe = dataclasses.replace(RECIPE, optimizer=SGD(rate, momentum=0.5 + rate))
            trainer.train(linear_clients(4), recipe)
        assert len(tuned) == 1
        for dear in ({"prox": 0.1}, {"clip": 1.0}, {"optimizer": SGD(0.1)}, {"batch_size": 2}, {"steps": 90}):
            trainer.train(linear_clients(4), dataclasses.replace(RECIPE, **dear))
        assert len(tuned) == 6


def test_the_next_best_is_taken_for_one_that_failed(tmp_path, monkeypatch, tasks_of):
    cache, broken = tmp_path / "tuning.json", Strategy.parse("threads*2/eager")
    took = {"inline/eager": 3, "inline/fused:4": 2, str(broken): 1}
    rows = tuple({"strategy": name, "ms per client-step": ms} for name, ms in took.items())
    monkeypatch.setattr(Tuner, "decide", lambda self: ClientPlan(broken, "the fastest", {}, rows))
    model, tasks = tasks_of(4)
    selector, later = (
        StrategySelector(model, ClientDispatcher(model), None, 1, cache, measures=True) for _ in range(2)
    )
    assert selector.plan(tasks).strategy == broken
    selector.replace(tasks, broken, "it broke")
    assert str(selector.plan(tasks).strategy) == "inline/fused:4"
    selector.replace(tasks, Strategy.parse("fused:4"), "it broke, too")
    assert selector.plan(tasks).strategy == Strategy()
    assert "not threads*2/eager: it broke" in selector.plan(tasks).explain()
    assert later.plan(tasks).strategy == Strategy()


def test_the_tuner_says_that_there_is_no_compiler(monkeypatch, linear_clients):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})  # nothing to spread over
    with Trainer(nn.Linear(3, 2), rounds=100_000) as trainer:
        plan = trainer.train(linear_clients(8), RECIPE).plan
    assert "not fused-compiled: torch.compile needs a C++ compiler" in plan.explain()
    assert not any("compiled" in str(row["strategy"]) for row in plan.probes)


@pytest.mark.parametrize("entry", [5, {}, {"strategy": "fused-by-hand:3", "why": "", "probes": []}])
def test_a_damaged_entry_is_measured_anew(tmp_path, entry, linear_clients):
    cache = tmp_path / "tuning.json"
    train(nn.Linear(3, 2), linear_clients(4), RECIPE, strategy="measured", cache=cache)
    page = json.loads(cache.read_text())
    cache.write_text(json.dumps(dict.fromkeys(page, entry)))
    assert (
        "before"
        not in train(nn.Linear(3, 2), linear_clients(4), RECIPE, strategy="measured", cache=cache).plan.why
    )
    assert json.loads(cache.read_text()).keys() == page.keys()
    assert (
        "before"
        in train(nn.Linear(3, 2), linear_clients(4), RECIPE, strategy="measured", cache=cache).plan.why
    )


def test_training_goes_on_where_the_cache_cannot_be_written(tmp_path, caplog, linear_clients):
    cache = tmp_path / "tuning.json"
    cache.mkdir()
    run = train(nn.Linear(3, 2), linear_clients(4), RECIPE, strategy="measured", cache=cache)
    assert [r.status for r in run] == ["ok"] * 4
    assert "measured anew next time" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["tuning.json"]
