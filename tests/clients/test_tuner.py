"""The tuner, on work whose times are known: a clock that only engines move."""

import dataclasses
import gc
import json
import weakref
from collections import defaultdict

import pytest
import torch
from torch import nn

from evenload.clients import SGD, Recipe, Trainer, train
from evenload.clients.choose import why_not_compiled
from evenload.clients.dropout import with_keyed_dropout
from evenload.clients.load import Reader, Wanted, load_tasks
from evenload.clients.memory import bytes_per_client, most_clients
from evenload.clients.slots import SlotRun
from evenload.clients.strategy import Strategy
from evenload.clients.survey import survey_model
from evenload.clients.trial import Trial
from evenload.clients.tuner import REPEATS, SHARE, WORTH_S, Tuner, _Probe

RECIPE = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, steps=10)


def tasks_of(n, model=None):
    model = model or with_keyed_dropout(nn.Linear(3, 2))
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 3, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(n)]
    start = model.state_dict()
    wanted = Wanted(data, [RECIPE] * n, range(n), [start] * n, [None] * n, [None] * n)
    return model, load_tasks(Reader(model), wanted, 0, 0).tasks


class Modelled:
    """Stands where the workers stand; a step takes what ``cost`` says: (launch_s, per_client_s)."""

    def __init__(self, model, cost, compile_s=0.0):
        self.model, self.threads, self.now, self._cost, self._compile_s = model, 1, 0.0, cost, compile_s
        self.ran, self.cold, self.took = [], set(), defaultdict(list)

    def clock(self):
        return self.now

    def run(self, strategy, survey, tasks, workers):
        self.ran.append(str(strategy))
        launch_s, per_client_s = self._cost(strategy)
        if strategy not in self.cold:  # the first call of anything is slow, and must not be believed
            self.cold.add(strategy)
            self.now += 5 + self._compile_s * strategy.is_compiled
        n_steps = tasks[0].batches.n_steps
        launches = -(-len(tasks) // (strategy.rows * workers))
        self.took[strategy].append(n_steps * (launches * launch_s + len(tasks) * per_client_s / workers))
        self.now += self.took[strategy][-1]
        yield []


def tuner(cost, n=64, rounds=100, compile_s=0.0, refuse=()):
    model, tasks = tasks_of(n)
    spread = Modelled(model, cost, compile_s)

    def trial(strategy, _):
        reason = "it cannot" if strategy.inner in refuse else None
        return Trial(reason, 0.0)

    return Tuner(spread, survey_model(model, tasks[0]), trial, tasks, rounds, spread.clock), spread


def launch_bound(strategy):
    return (1e-3, 1e-6) if not strategy.is_fused else (2e-3, 1e-5)


def test_chunks_double_while_they_gain():
    made, _ = tuner(launch_bound, rounds=2000, refuse=("fused-compiled",))
    verdict = made.decide()
    assert verdict.strategy.is_fused
    assert [p.strategy.chunk for p in made.probes if p.strategy.outer == "inline"][1:] == [4, 8, 16, 32, 64]
    assert verdict.reasons["fused-compiled"] == "it cannot"
    assert [row["picked"] for row in verdict.probes].count("<-") == 1


def test_the_search_turns_round_where_the_cache_ends():
    """Per-client time grows beyond sixteen clients: two worse chunks are looked at, and left."""

    def cost(strategy):
        if not strategy.is_fused:
            return 1e-3, 1e-6
        return 2e-3, 1e-5 if strategy.chunk <= 16 else 4e-4

    made, _ = tuner(cost, refuse=("fused-compiled",))
    verdict = made.decide()
    assert verdict.strategy.chunk <= 16
    assert max(p.strategy.chunk for p in made.probes) == 64


@pytest.mark.parametrize(("rounds", "compiles"), [(1, False), (2000, True)])
def test_compiling_must_be_repaid_by_the_rounds_to_come(rounds, compiles):
    def cost(strategy):
        return (1e-4, 1e-7) if strategy.is_compiled else launch_bound(strategy)

    made, spread = tuner(cost, rounds=rounds, compile_s=20.0)
    verdict = made.decide()
    assert verdict.strategy.is_compiled == compiles
    assert any("compiled" in name for name in spread.ran) == compiles
    assert compiles or "compiling takes about 6.0 s" in " ".join(verdict.reasons.values())


def test_serial_stays_where_fusing_does_not_pay_and_where_it_cannot():
    for cost, refuse in ((lambda s: (1e-4, 1e-3), ()), (launch_bound, ("fused", "compiled"))):
        made, _ = tuner(lambda s, cost=cost: tuple(v * (1 + s.is_fused) for v in cost(s)), refuse=refuse)
        assert made.decide().strategy.inner == "eager"


def test_too_little_work_is_not_measured():
    made, spread = tuner(lambda s: (1e-6, 1e-7), rounds=1)
    assert "nothing to gain" in made.decide().why
    assert set(spread.ran) == {"inline/eager"}


@pytest.mark.parametrize("rounds", [20, 100, 1000])
def test_a_probe_takes_its_share_of_the_job_at_most(rounds):
    """Without the cold samples that this model adds, and compiling left out."""
    made, spread = tuner(launch_bound, rounds=rounds, refuse=("fused-compiled",))
    made.decide()
    left_s = made.probes[0].step_s * rounds * 64 * 10
    assert len(made.probes) > 2
    for probe in made.probes[1:]:
        assert 0 < sum(spread.took[probe.strategy][: 1 + REPEATS]) <= max(SHARE * left_s, WORTH_S)
        left_s = min(left_s, probe.step_s * rounds * 64 * 10)
    if rounds == 1000:
        assert spread.now - 5 * len(spread.cold) <= SHARE * left_s  # all of them together


def test_memory_is_counted_per_client_and_limits_the_chunk():
    model, tasks = tasks_of(
        1, with_keyed_dropout(nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Linear(50, 2)))
    )
    need = bytes_per_client(model, tasks[0])
    params = sum(p.numel() * 4 for p in model.parameters())
    assert 2 * 3 * params < need < 2 * 3 * params + 20_000
    assert most_clients(model, tasks[0], free_bytes=need * 20) == 10
    assert most_clients(model, tasks[0], free_bytes=0) == 1


def test_auto_is_the_serial_result_and_remembers_what_it_measured(tmp_path):
    cache = tmp_path / "tuning.json"
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(40, 6, generator=g), torch.randint(0, 2, (40,), generator=g)) for _ in range(24)]
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    serial = train(net, data, RECIPE, strategy="serial")
    with Trainer(net, rounds=5, cache=cache) as trainer:
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
    later = train(net, data, RECIPE, rounds=5, cache=cache)
    assert str(later.plan.strategy) == str(first.plan.strategy)
    assert later.plan.probes == first.plan.probes
    assert "before" in later.plan.why
    cache.write_text("{not json")
    anew = train(net, data, RECIPE, rounds=5, cache=cache)
    assert "before" not in anew.plan.why
    assert [entry["why"] for entry in json.loads(cache.read_text()).values()] == [anew.plan.why]


def test_no_compiler_is_a_reason(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "C++ compiler" in str(why_not_compiled())
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 3, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(2)]
    run = train(nn.Linear(3, 2), data, RECIPE, strategy="fused-compiled:2")
    assert run.plan.strategy == Strategy("inline", "fused", 2)
    assert "C++ compiler" in run.plan.explain()


def test_out_of_memory_halves_the_chunk_and_changes_nothing(monkeypatch):
    from evenload.clients.slots import SlotRun

    real, sizes = SlotRun._run_segment, []

    def small(self):
        sizes.append(self.n_slots)
        if self.n_slots > 2 and len(sizes) > 4:  # the trial passes
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate")
        return real(self)

    _, tasks = tasks_of(7)
    data = [(t.rows.x, t.rows.y) for t in tasks]
    net = nn.Linear(3, 2)
    whole = train(net, data, RECIPE, strategy="fused:7", seed=1)
    monkeypatch.setattr(SlotRun, "_run_segment", small)
    split = train(net, [*data, *data, *data], RECIPE, strategy="fused:7", seed=1)
    assert 2 in sizes
    assert [r.client for r in split] == list(range(21))
    first = train(net, data[:1], RECIPE, strategy="fused:2", seed=1)
    assert float((split[0].state["weight"] - first[0].state["weight"]).abs().max()) < 1e-6
    assert whole.plan.strategy.chunk == 7


def test_a_chunk_that_found_no_memory_is_freed_before_the_next_is_tried(monkeypatch):
    real, failed = SlotRun._run_segment, []

    def small(self):
        assert all(run() is None for run in failed)
        if self.n_slots > 2 and len(self._lane.params["weight"]) == 8:
            failed.append(weakref.ref(self))
            raise MemoryError
        return real(self)

    monkeypatch.setattr(SlotRun, "_run_segment", small)
    _, tasks = tasks_of(16)
    gc.disable()
    try:
        run = train(nn.Linear(3, 2), [(t.rows.x, t.rows.y) for t in tasks], RECIPE, strategy="fused:8")
    finally:
        gc.enable()
    assert len(failed) == 1
    assert len(run) == 16


def test_a_strategy_that_fails_is_a_reason_and_not_the_end():
    def cost(strategy):
        if strategy.outer != "inline" or strategy.chunk == 8:
            raise TypeError("Got unsupported ScalarType")
        return launch_bound(strategy)

    made, _ = tuner(cost, rounds=2000, refuse=("fused-compiled",))
    verdict = made.decide()
    assert str(verdict.strategy) == "inline/fused:4"
    assert verdict.reasons["inline/fused:8"] == "it fails: TypeError: Got unsupported ScalarType"
    assert any(name.startswith("threads") for name in verdict.reasons)


def test_starting_processes_counts_what_the_best_strategy_took_to_compile():
    """Not what the last one did that was measured."""
    made, _ = tuner(lambda s: (1e-4, 1e-3), rounds=1)
    made.probes = [
        _Probe(Strategy("inline", "fused-compiled", 4), 1e-3, 50.0),
        _Probe(Strategy("inline", "fused", 4), 2e-3, 0.0),
    ]
    made._try_processes()
    assert "about 53.0 s" in " ".join(made._reasons.values())


@pytest.mark.parametrize(("rounds", "outer"), [(3, "inline"), (4000, "processes")])
def test_processes_are_tried_where_threads_share_a_lock_and_starting_is_repaid(rounds, outer):
    """Threads gain nothing here, as where the interpreter's lock is held; processes halve the time."""

    def cost(strategy):
        launch_s, per_client_s = (1e-4, 1e-3) if not strategy.is_fused else (1e-2, 1e-2)
        return (launch_s, per_client_s * (2.5 if strategy.outer == "threads" else 1))

    made, spread = tuner(cost, rounds=rounds)
    verdict = made.decide()
    assert (verdict.strategy.outer, verdict.strategy.inner) == (outer, "eager")
    assert any(name.startswith("processes") for name in spread.ran) == (outer == "processes")
    assert outer == "processes" or "starting workers" in " ".join(verdict.reasons.values())


def linear_clients(n, width=3):
    g = torch.Generator().manual_seed(n)
    return [(torch.randn(8, width, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(n)]


def test_auto_is_tuned_once_for_cohorts_of_about_one_size(monkeypatch):
    tuned, real = [], Tuner.decide
    monkeypatch.setattr(Tuner, "decide", lambda self: tuned.append(len(self._tasks)) or real(self))
    with Trainer(nn.Linear(3, 2)) as trainer:
        for n in (4, 5, 7, 6, 9):
            trainer.train(linear_clients(n), RECIPE)
    assert tuned == [4, 9]


def test_one_odd_client_in_front_does_not_make_the_others_odd():
    net = nn.Sequential(nn.AdaptiveAvgPool1d(3), nn.Linear(3, 2))
    data = [linear_clients(1, width=6)[0], *linear_clients(4)]
    run = train(net, data, RECIPE, strategy="fused:4")
    assert set(run.plan.solo) == {0}
    assert run.plan.strategy.inner == "fused"


def test_an_augmentation_is_surveyed_for_itself():
    """The first recipe shows that no number is drawn from torch's generator; the second one draws."""
    with Trainer(nn.Linear(3, 2), strategy="fused:4") as trainer:
        assert trainer.train(linear_clients(4), RECIPE).plan.strategy.inner == "fused"
        noisy = dataclasses.replace(RECIPE, augment=lambda x, draws: x + torch.rand_like(x))
        run = trainer.train(linear_clients(4), noisy)
    assert "random numbers" in run.plan.why
