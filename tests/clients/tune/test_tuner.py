"""The tuner, on work whose times are known: a clock that only engines move."""

import dataclasses
import gc
import json
import weakref
from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from evenload.clients import SGD, Recipe, Trainer, train
from evenload.clients.fused.memory import bytes_per_client, most_clients
from evenload.clients.fused.slots import SlotRun
from evenload.clients.load.load import ClientInputs, DatasetReader, load_tasks
from evenload.clients.spread.dispatch_clients import ClientDispatcher
from evenload.clients.spread.equivalence_check import CheckResult
from evenload.clients.spread.streams import Streams
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.step.model_traits import find_traits
from evenload.clients.tune.engine_checks import EngineChecks, why_not_compiled
from evenload.clients.tune.probe_timer import MOST_STEPS, STEPS, SURE, Probe
from evenload.clients.tune.tuner import LIGHT_S, MOST_COMPILED, START_S, Tuner
from evenload.clients.values.strategy import Strategy

RECIPE = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, steps=10)


def tasks_of(n, model=None):
    model = model or with_keyed_dropout(nn.Linear(3, 2))
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 3, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(n)]
    start = model.state_dict()
    wanted = ClientInputs(data, [RECIPE] * n, range(n), [start] * n, [None] * n, [None] * n)
    return model, load_tasks(DatasetReader(model), wanted, 0, 0).tasks


COLD_S = 0.002  # of what runs for the first time, on top


class Modelled:
    """Stands where the workers stand; a step takes what ``cost`` says: (launch_s, per_client_s).

    Threads share what is compiled: once for so many rows.
    """

    def __init__(self, model, cost, compile_s=0.0):
        self.model, self.threads, self.now, self._cost, self._compile_s = model, 1, 0.0, cost, compile_s
        self.ran, self.cold, self.sizes, self.compiled = [], set(), defaultdict(list), set()
        self.streams = Streams("cuda:0")

    def clock(self):
        return self.now

    def run(self, strategy, traits, tasks, workers):
        self.ran.append(str(strategy))
        launch_s, per_client_s = self._cost(strategy)
        if strategy not in self.cold:  # the first call of anything is slow, and must not be believed
            self.cold.add(strategy)
            self.now += COLD_S
        shape = strategy.inner, strategy.rows
        if strategy.is_compiled and shape not in self.compiled:
            self.compiled.add(shape)
            self.now += self._compile_s
        n_steps = tasks[0].batches.n_steps
        launches = -(-len(tasks) // (strategy.rows * workers))
        self.sizes[str(strategy)].append((len(tasks), n_steps))
        self.now += n_steps * (launches * launch_s + len(tasks) * per_client_s / workers)
        yield []


class ModelledChecks:
    """Engine checks whose results are given: inner strategies to refuse, and operations of a step."""

    def __init__(self, traits, refuse, n_ops):
        self._traits, self._refuse, self._n_ops = traits, refuse, n_ops

    def traits(self, tasks):
        return self._traits

    def check(self, strategy, tasks):
        return CheckResult("it cannot" if strategy.inner in self._refuse else None, 0.0)

    def n_operations(self, strategy, tasks):
        return self._n_ops


def tuner(cost, n=64, rounds=100, compile_s=0.0, refuse=(), n_ops=100, model=None):
    model, tasks = tasks_of(n, model)
    spread = Modelled(model, cost, compile_s)

    checks = ModelledChecks(find_traits(model, tasks[0]), refuse, n_ops)
    return Tuner(spread, checks, tasks, rounds, spread.clock, spread.clock), spread


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})


def launch_bound(strategy):
    return (1e-3, 1e-6) if not strategy.is_fused else (2e-3, 1e-5)


def test_chunks_grow_while_they_gain():
    made, _ = tuner(launch_bound, rounds=10_000, refuse=("fused-compiled",))
    verdict = made.decide()
    assert verdict.strategy.is_fused
    inline = [p.strategy.chunk for p in made.timer.probes if p.strategy.outer == "inline"]
    assert inline[1:] == [4, 16, 64, 32]
    assert verdict.reasons["fused-compiled"] == "it cannot"
    assert [row["picked"] for row in verdict.probes].count("<-") == 1


def test_the_search_turns_round_where_the_cache_ends():
    """Per-client time grows beyond sixteen clients: the chunks around that are looked at."""

    def cost(strategy):
        if not strategy.is_fused:
            return 1e-3, 1e-6
        return 2e-3, 1e-5 if strategy.chunk <= 16 else 4e-4

    made, _ = tuner(cost, rounds=1000, refuse=("fused-compiled",))
    verdict = made.decide()
    assert verdict.strategy.chunk <= 16
    assert [p.strategy.chunk for p in made.timer.probes if p.strategy.is_fused][:5] == [4, 16, 64, 8, 32]


@pytest.mark.parametrize(("rounds", "compiles"), [(50, False), (500, False), (1500, True)])
def test_compiling_must_be_repaid_by_the_rounds_to_come(rounds, compiles):
    def cost(strategy):
        return (1e-4, 1e-7) if strategy.is_compiled else launch_bound(strategy)

    made, spread = tuner(cost, rounds=rounds, compile_s=3.0)
    verdict = made.decide()
    assert verdict.strategy.is_compiled == compiles
    assert any("compiled" in name for name in spread.ran) == compiles
    assert compiles or any(
        "compiled" in name and "would take" in why for name, why in verdict.reasons.items()
    )


def test_serial_stays_where_fusing_does_not_pay_and_where_it_cannot():
    for cost, refuse in ((lambda s: (1e-4, 1e-3), ()), (launch_bound, ("fused", "compiled"))):
        made, _ = tuner(lambda s, cost=cost: tuple(v * (1 + s.is_fused) for v in cost(s)), refuse=refuse)
        assert made.decide().strategy.inner == "eager"


def test_too_little_work_is_not_measured():
    made, spread = tuner(lambda s: (1e-6, 1e-7), rounds=1)
    assert "nothing to gain" in made.decide().why
    assert set(spread.ran) == {"inline/eager"}


@pytest.mark.parametrize(("rounds", "share"), [(20, 0.08), (100, 0.05), (1000, 0.05)])
@pytest.mark.parametrize("cost", [launch_bound, lambda s: (1e-4, 1e-3 * (1 + s.is_fused))])
def test_all_measuring_together_takes_its_share_of_the_job_at_most(rounds, share, cost):
    made, spread = tuner(cost, rounds=rounds, compile_s=3.0, n_ops=10)
    made.decide()
    best = made.timer.best()
    assert len(made.timer.probes) > 2
    assert 0 < spread.now - best.first_s <= share * made.timer.job_s()


def test_what_was_compiled_in_vain_is_little_of_what_it_could_have_saved():
    """A hundred operations are most of these steps, but compiling them gains nothing."""
    for rounds in (20, 100, 500):
        made, spread = tuner(launch_bound, rounds=rounds, compile_s=4.0)
        made.decide()
        assert spread.now <= (0.6 / SURE + 0.08) * made.timer.job_s()


def test_what_was_compiled_in_vain_leaves_enough_for_samples(two_cores):
    """What is near is still compared in whole rounds afterwards."""

    def cost(strategy):
        return launch_bound(strategy) if strategy.outer == "inline" else (1e-3, 1e-3)

    made, spread = tuner(cost, rounds=1700, compile_s=6.0)
    best = made.decide().strategy
    assert spread.compiled
    assert not best.is_compiled
    assert made.timer.left_s() < 0 < made.timer.left_s(is_sample=True)
    assert (64, 10) in spread.sizes[str(best)]


def test_what_is_near_is_compared_in_whole_rounds_if_the_job_is_long():
    def cost(strategy):
        return 1e-4, 1e-4 * (1 + 2 * (strategy.outer != "inline"))

    for rounds, whole in ((100, False), (20_000, True)):
        made, spread = tuner(cost, rounds=rounds, refuse=("fused-compiled",))
        best = made.decide().strategy
        assert ((64, 10) in spread.sizes[str(best)]) == whole
        cold, warm = [n_steps for _, n_steps in spread.sizes[str(best)][:2]]
        assert (cold, warm) == (1, MOST_STEPS if whole else STEPS)


def test_threads_that_others_disturbed_are_compared_again(two_cores, monkeypatch):
    """Their sample is timed by the clock, that of one thread by what it computed."""
    real = Modelled.run

    def run(self, strategy, traits, tasks, workers):
        began = self.now
        yield from real(self, strategy, traits, tasks, workers)
        if strategy.outer == "threads" and tasks[0].batches.n_steps < RECIPE.steps:
            self.now += 2 * (self.now - began)

    monkeypatch.setattr(Modelled, "run", run)
    made, _ = tuner(lambda s: (0.0, 1e-3 * (1 + s.is_fused)), rounds=500, refuse=("fused",))
    verdict = made.decide()
    assert str(verdict.strategy) == "threads*2/eager"


def test_a_long_job_pays_for_more_samples():
    """Of the fastest so far. Threads then fill their rows several times; what is far slower, once."""
    for rounds, fused, turns in ((30, 1, 1), (5000, 4, 16)):
        made, spread = tuner(
            lambda s: (1e-3, 1e-3) if s.is_fused else (0.0, 1e-2),
            n=16,
            rounds=rounds,
            refuse=("fused-compiled",),
        )
        made.timer.probe(Strategy())
        serial = len(spread.sizes["inline/eager"])
        made.timer.probe(Strategy(inner="fused", chunk=16))
        assert len(spread.sizes["inline/fused:16"]) == 1 + fused
        made.timer.probe(Strategy("threads", "eager", workers=1))
        cold, *samples = (n_clients for n_clients, _ in spread.sizes["threads*1/eager"])
        assert (cold, samples) == (1, [turns])
        assert serial <= 1 + 4


def test_a_first_chunk_that_is_slow_does_not_end_the_search():
    """What the first call of a small chunk happens to take says little of large ones."""

    def cost(strategy):
        return (5e-3, 1e-6) if strategy.chunk == 4 else launch_bound(strategy)

    made, _ = tuner(cost, rounds=10_000, refuse=("fused-compiled",))
    assert made.decide().strategy.chunk >= 32


def with_convolution():
    return with_keyed_dropout(nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 1, 1), nn.Flatten()))


def test_what_gains_most_from_cores_need_not_be_the_fastest_in_one_thread(two_cores):
    """Chunks gain a tenth in one thread, and nothing more from two; plain steps take half of their time."""

    def cost(strategy):
        each_s = 1e-3 if strategy.inner == "eager" else 9e-4
        return 0.0, each_s * (2 if strategy.outer == "threads" and strategy.is_fused else 1)

    made, _ = tuner(cost, rounds=2000, refuse=("fused-compiled",))
    assert str(made.decide().strategy) == "threads*2/eager"


def test_what_is_compiled_serves_all_threads(two_cores):
    """A step that is more than dispatch: the first chunk that is compiled is one that both cores can use."""

    def cost(strategy):
        if strategy.inner == "eager":
            return 0.0, 1e-2
        return 5e-3, 8e-3 - 5e-3 * strategy.is_compiled

    made, spread = tuner(cost, n=20, rounds=1000, compile_s=50.0, n_ops=1500)
    verdict = made.decide()
    assert spread.compiled == {("fused-compiled", 10)}
    assert str(verdict.strategy) == "threads*2/fused-compiled:10"
    assert made.timer.best().first_s == pytest.approx(50, rel=0.01)
    assert made.timer.left_s() < 0.05 * made.timer.job_s()  # it is not given back twice


def test_a_shape_that_threads_would_have_to_compile_must_be_repaid(two_cores):
    """Starting operations is most of the step, so all clients at once are compiled first."""

    def cost(strategy):
        return (1e-2 if strategy.inner == "eager" else 2e-2 / (1 + 9 * strategy.is_compiled)), 1e-4

    made, spread = tuner(cost, n=20, rounds=1000, compile_s=5.0, n_ops=1000)
    verdict = made.decide()
    assert spread.compiled == {("fused-compiled", 20)}
    assert "would take 5" in verdict.reasons["threads*2/fused-compiled:10"]


@pytest.mark.parametrize("best", [1, 2, 8])
def test_small_chunks_are_found(best):
    """As of rules that work on one client after the other: only what they keep in the cache counts."""

    def cost(strategy):
        if strategy.inner != "rules":
            return 0.0, 2e-3 + 2e-3 * strategy.is_fused
        return 0.0, 1e-3 * (1 + 0.2 * abs(strategy.chunk.bit_length() - best.bit_length()))

    made, _ = tuner(
        cost, n=64, rounds=200, refuse=("rules-compiled", "fused-compiled"), model=with_convolution()
    )
    verdict = made.decide()
    assert (verdict.strategy.inner, verdict.strategy.chunk) == ("rules", best)
    fused = [p.strategy.chunk for p in made.timer.probes if p.strategy.inner == "fused"]
    assert fused == [best]  # far slower there: no other chunk is looked at


def test_compiled_chunks_are_followed_to_the_best():
    """Eagerly sixteen clients are best; compiled, the more the better."""

    def cost(strategy):
        if strategy.is_compiled:
            return 1e-3, 1e-7
        return launch_bound(strategy) if strategy.chunk <= 16 else (2e-3, 1e-3)

    made, _ = tuner(cost, rounds=100_000, compile_s=0.5)
    made.decide()
    compiled = [p for p in made.timer.probes if p.strategy.is_compiled and p.strategy.outer == "inline"]
    assert max(p.strategy.chunk for p in compiled) == 64
    assert len(compiled) <= MOST_COMPILED


def test_small_chunks_of_light_steps_are_not_measured():
    """Where a step is starting operations, more clients are better: the first chunk is not the smallest."""
    made, _ = tuner(lambda s: tuple(t / 20 for t in launch_bound(s)), n=100, rounds=2000)
    made.decide()
    assert made.timer.probes[0].step_s < LIGHT_S
    chunks = [p.strategy.chunk for p in made.timer.probes if p.strategy.inner == "fused"]
    assert chunks[0] == 20


def test_threads_go_on_to_smaller_chunks_while_these_are_about_as_fast(two_cores):
    """Two threads share a cache that holds five clients each; halves on the way gain little."""

    def cost(strategy):
        is_small = strategy.outer == "threads" and strategy.chunk <= 5
        return 1e-6, (5e-4 if is_small else 1e-3) / (2 if strategy.outer == "threads" else 1)

    made, _ = tuner(cost, n=100, rounds=20_000, refuse=("fused-compiled",))
    assert str(made.decide().strategy) in ("threads*2/fused:5", "threads*2/fused:2", "threads*2/fused:1")


def test_rows_divide_clients_of_equal_length():
    made, _ = tuner(launch_bound, n=100, rounds=2000)
    made.decide()
    chunks = [p.strategy.chunk for p in made.timer.probes if str(p.strategy).startswith("inline/fused:")]
    assert chunks == [4, 20, 50, 100]


@pytest.mark.parametrize(
    ("share", "refused", "picked"),
    [
        (8, "fused-compiled", "streams*8/fused:8"),
        (1, "fused-compiled", "streams*1/fused:64"),
        (4, "fused", "streams*4/eager"),
    ],
)
def test_streams_are_measured_where_there_is_a_gpu(monkeypatch, share, refused, picked):
    """The GPU starts steps as fast as the CPU, and works ten times as fast; streams share it or do not."""
    monkeypatch.setattr("evenload.clients.tune.tuner.why_no_streams", lambda: None)
    monkeypatch.setattr("evenload.clients.tune.tuner.n_gpus", lambda: 1)
    monkeypatch.setattr("evenload.clients.tune.tuner.free_bytes", lambda device: 1 << 30)

    def cost(strategy):
        launch_s, per_client_s = launch_bound(strategy)
        if strategy.outer != "streams":
            return launch_s, per_client_s * 10
        return launch_s * strategy.workers / min(strategy.workers, share), per_client_s

    made, _ = tuner(cost, rounds=4000, refuse=(refused,))
    assert str(made.decide().strategy) == picked


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


def test_the_tuner_says_that_there_is_no_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})  # nothing to spread over
    with Trainer(nn.Linear(3, 2), rounds=100_000) as trainer:
        plan = trainer.train(linear_clients(8), RECIPE).plan
    assert "not fused-compiled: torch.compile needs a C++ compiler" in plan.explain()
    assert not any("compiled" in str(row["strategy"]) for row in plan.probes)


def test_out_of_memory_halves_the_chunk_and_changes_nothing(monkeypatch):
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
        if self.n_slots > 2 and len(self._clients.params["weight"]) == 8:
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
        if strategy.outer != "inline" or (strategy.is_fused and strategy.chunk in (8, 16)):
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
    made.timer.probes = [
        Probe(Strategy("inline", "fused-compiled", 4), 1e-3, 50.0),
        Probe(Strategy("inline", "fused", 4), 2e-3, 0.0),
    ]
    made._try_processes()
    assert f"would take {START_S + 50:.2g} s" in " ".join(made.timer.reasons.values())


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
    assert outer == "processes" or any(name.startswith("processes") for name in verdict.reasons)


def linear_clients(n, width=3):
    g = torch.Generator().manual_seed(n)
    return [(torch.randn(8, width, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(n)]


def test_auto_is_tuned_once_for_cohorts_of_about_one_size(monkeypatch):
    tuned, real = [], Tuner.decide
    monkeypatch.setattr(Tuner, "decide", lambda self: tuned.append(len(self.timer.tasks)) or real(self))
    with Trainer(nn.Linear(3, 2)) as trainer:
        for n in (4, 5, 7, 6, 9):
            trainer.train(linear_clients(n), RECIPE)
    assert tuned == [4, 9]


def test_a_choice_for_a_small_job_is_made_anew_for_a_far_larger_one(monkeypatch):
    tuned, real = [], Tuner.decide
    monkeypatch.setattr(Tuner, "decide", lambda self: tuned.append(self.timer.job_steps) or real(self))
    recipe = dataclasses.replace(RECIPE, batch_size=4, steps=None, epochs=1)
    with Trainer(nn.Linear(3, 2)) as trainer:
        for times in (1, 8, 9, 1, 70, 73):
            data = [(x.repeat(times, 1), y.repeat(times)) for x, y in linear_clients(4)]
            trainer.train(data, recipe)
    assert tuned == [8, 72, 584]


@pytest.mark.parametrize("entry", [5, {}, {"strategy": "fused-by-hand:3", "why": "", "probes": []}])
def test_a_damaged_entry_is_measured_anew(tmp_path, entry):
    cache = tmp_path / "tuning.json"
    train(nn.Linear(3, 2), linear_clients(4), RECIPE, cache=cache)
    page = json.loads(cache.read_text())
    cache.write_text(json.dumps(dict.fromkeys(page, entry)))
    assert "before" not in train(nn.Linear(3, 2), linear_clients(4), RECIPE, cache=cache).plan.why
    assert json.loads(cache.read_text()).keys() == page.keys()
    assert "before" in train(nn.Linear(3, 2), linear_clients(4), RECIPE, cache=cache).plan.why


def test_training_goes_on_where_the_cache_cannot_be_written(tmp_path, caplog):
    cache = tmp_path / "tuning.json"
    cache.mkdir()
    run = train(nn.Linear(3, 2), linear_clients(4), RECIPE, cache=cache)
    assert [r.status for r in run] == ["ok"] * 4
    assert "measured anew next time" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["tuning.json"]


def test_auto_is_tuned_once_for_recipes_that_cost_the_same(monkeypatch):
    tuned, real = [], Tuner.decide
    monkeypatch.setattr(Tuner, "decide", lambda self: tuned.append(1) or real(self))
    with Trainer(nn.Linear(3, 2)) as trainer:
        for rate in (0.1, 0.05, 0.01):
            recipe = dataclasses.replace(RECIPE, optimizer=SGD(rate, momentum=0.5 + rate))
            trainer.train(linear_clients(4), recipe)
        assert len(tuned) == 1
        for dear in ({"prox": 0.1}, {"clip": 1.0}, {"optimizer": SGD(0.1)}, {"batch_size": 2}, {"steps": 90}):
            trainer.train(linear_clients(4), dataclasses.replace(RECIPE, **dear))
        assert len(tuned) == 6


def test_a_strategy_that_failed_is_not_tried_again(monkeypatch):
    calls = []

    def broken(self, *_):
        calls.append(1)
        raise RuntimeError("boom")
        yield

    monkeypatch.setattr(ClientDispatcher, "_in_threads", broken)
    serial = train(nn.Linear(3, 2), linear_clients(4), RECIPE, strategy="serial", seed=1)
    with Trainer(nn.Linear(3, 2), strategy="threads*2/eager", seed=1) as trainer:
        first, second = (trainer.train(linear_clients(4), RECIPE, start=serial[0].state) for _ in "12")
    assert len(calls) == 1
    assert "it ended with RuntimeError: boom" in first.plan.explain()
    assert str(second.plan.strategy) == "inline/eager"
    assert "boom" in second.plan.why
    assert [r.status for r in first] == [r.status for r in second] == ["ok"] * 4


def test_what_is_a_clients_fault_is_not_held_against_the_strategy():
    """A label that only the loss refuses, of a client that the check does not see."""
    recipe = dataclasses.replace(
        RECIPE, loss=lambda out, y: F.cross_entropy(out, y, reduction="none"), steps=None, epochs=1
    )
    good = [linear_clients(1)[0] for _ in range(4)]
    bad = [good[0], (good[1][0], good[1][1] + 1000), *good[2:]]
    with Trainer(nn.Linear(3, 2), strategy="fused:4") as trainer:
        trainer.train(good, recipe)
        assert [r.status for r in trainer.train(bad, recipe, on_error="return")].count("failed") == 1
        assert str(trainer.train(good, recipe).plan.strategy) == "inline/fused:4"


def test_the_next_best_is_taken_for_one_that_failed(tmp_path):
    cache = tmp_path / "tuning.json"
    with Trainer(nn.Linear(3, 2), cache=cache) as trainer:
        tasks = tasks_of(4, trainer.model)[1]
        selector = trainer._selector
        selector.plan(tasks)
        took = {"inline/eager": 3, "inline/fused:4": 2}
        rows = [{"strategy": name, "ms per client-step": ms} for name, ms in took.items()]
        key = next(iter(selector._plans))
        selector._plans[key] = dataclasses.replace(selector._plans[key], probes=tuple(rows))
        selector.replace(tasks, Strategy.parse("threads*2/eager"), "it broke")
        assert str(selector.plan(tasks).strategy) == "inline/fused:4"
        selector.replace(tasks, Strategy.parse("fused:4"), "it broke, too")
        assert selector.plan(tasks).strategy == Strategy()
        assert "not threads*2/eager: it broke" in selector.plan(tasks).explain()
    with Trainer(nn.Linear(3, 2), cache=cache) as later:
        assert later._selector.plan(tasks_of(4, later.model)[1]).strategy == Strategy()


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


def test_operations_of_a_step_are_counted():
    counts = []
    for deep in (1, 2):
        net = nn.Sequential(*[nn.Linear(3, 3) for _ in range(deep)], nn.Linear(3, 2))
        model, tasks = tasks_of(5, with_keyed_dropout(net))
        checks = EngineChecks(model, ClientDispatcher(model))
        counts += [checks.n_operations(Strategy(inner="fused", chunk=c), tasks) for c in (2, 5)]
    assert counts[0] == pytest.approx(counts[1], rel=0.1)  # whatever the chunk
    assert counts[2] > 1.1 * counts[0] > 20
