"""The search for the fastest strategy, on work whose times are known: a clock that only engines move.

That what is found is near the best, whatever way the search takes, is held by test_tuner_on_machines.
"""

import random

import pytest


def launch_bound(strategy):
    return (1e-3, 1e-6) if not strategy.is_fused else (2e-3, 1e-5)


@pytest.mark.parametrize(("rounds", "compiles"), [(50, False), (500, False), (1500, True)])
def test_compiling_must_be_repaid_by_the_rounds_to_come(rounds, compiles, tuner):
    def cost(strategy):
        return (1e-4, 1e-7) if strategy.is_compiled else launch_bound(strategy)

    made, spread = tuner(cost, rounds=rounds, compile_s=3.0)
    verdict = made.decide()
    assert verdict.strategy.is_compiled == compiles
    assert any("compiled" in name for name in spread.ran) == compiles
    assert compiles or any(
        "compiled" in name and "would take" in why for name, why in verdict.reasons.items()
    )


def test_serial_stays_where_fusing_does_not_pay_and_where_it_cannot(tuner):
    for cost, refuse in ((lambda s: (1e-4, 1e-3), ()), (launch_bound, ("fused", "compiled"))):
        made, _ = tuner(lambda s, cost=cost: tuple(v * (1 + s.is_fused) for v in cost(s)), refuse=refuse)
        assert made.decide().strategy.inner == "eager"


def test_what_gains_most_from_cores_need_not_be_the_fastest_in_one_thread(two_cores, tuner):
    """Chunks gain a tenth in one thread, and nothing more from two; plain steps take half of their time."""

    def cost(strategy):
        each_s = 1e-3 if strategy.inner == "eager" else 9e-4
        return 0.0, each_s * (2 if strategy.outer != "inline" and strategy.is_fused else 1)

    made, _ = tuner(cost, rounds=2000, refuse=("fused-compiled",))
    assert str(made.decide().strategy) == "threads*2/eager"


@pytest.mark.parametrize(
    ("share", "refused", "picked"),
    [
        (8, "fused-compiled", "streams*8/fused:8"),
        (1, "fused-compiled", "streams*1/fused:64"),
        (4, "fused", "streams*4/eager"),
    ],
)
def test_streams_are_measured_where_there_is_a_gpu(monkeypatch, share, refused, picked, tuner):
    """The GPU starts steps as fast as the CPU, and works ten times as fast; streams share it or do not."""
    monkeypatch.setattr("evenload.clients.tune.tuner.why_no_streams", lambda: None)
    monkeypatch.setattr("evenload.clients.tune.tuner.n_gpus", lambda: 1)
    monkeypatch.setattr("evenload.clients.tune.tuner.free_bytes", lambda device: 1 << 30)

    def cost(strategy):
        launch_s, per_client_s = launch_bound(strategy)
        if strategy.outer != "streams":
            return launch_s, per_client_s * 10
        return launch_s * strategy.workers / min(strategy.workers, share), per_client_s

    made, _ = tuner(cost, rounds=20_000, refuse=(refused,))
    assert str(made.decide().strategy) == picked


@pytest.mark.parametrize(("rounds", "outer"), [(3, "inline"), (4000, "processes")])
def test_processes_are_tried_where_threads_share_a_lock_and_starting_is_repaid(rounds, outer, tuner):
    """Threads gain nothing here, as where the interpreter's lock is held; processes halve the time."""

    def cost(strategy):
        launch_s, per_client_s = (1e-4, 1e-3) if not strategy.is_fused else (1e-2, 1e-2)
        return (launch_s, per_client_s * (2.5 if strategy.outer == "threads" else 1))

    made, spread = tuner(cost, rounds=rounds)
    verdict = made.decide()
    assert (verdict.strategy.outer, verdict.strategy.inner) == (outer, "eager")
    assert any(name.startswith("processes") for name in spread.ran) == (outer == "processes")
    assert outer == "processes" or any(name.startswith("processes") for name in verdict.reasons)


@pytest.mark.parametrize(
    ("times", "outer"), [(1.07, "inline"), (1.3, "inline"), (1.6, "threads"), (1.95, "threads")]
)
def test_a_second_core_is_taken_where_it_saves_about_a_third_of_the_time(times, outer, two_cores, tuner):
    def cost(strategy):
        each_s = 6e-4 if strategy.is_fused else 1e-3
        return 0.0, each_s * (1 if strategy.outer == "inline" else 2 / times)

    made, _ = tuner(cost, rounds=2000, refuse=("fused-compiled",))
    verdict = made.decide()
    assert verdict.strategy.outer == outer
    told = [why for name, why in verdict.reasons.items() if name.startswith("threads*2/fused")]
    assert any("times the CPU time" in why for why in told) == (outer == "inline")


@pytest.mark.parametrize(("cores", "times", "outer"), [(2, 1.5, "inline"), (16, 10.0, "threads")])
def test_a_few_cores_take_no_more_cpu_time_than_serial_training(cores, times, outer, monkeypatch, tuner):
    """Fused steps save a tenth in one thread: two threads may take no more than that; many end far sooner."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))

    def cost(strategy):
        each_s = 0.9e-3 if strategy.is_fused else 1e-3
        return 0.0, each_s * (1 if strategy.outer == "inline" else cores / times)

    made, _ = tuner(cost, rounds=2000, refuse=("fused-compiled",))
    assert made.decide().strategy.outer == outer


def slowed(spread, monkeypatch, most, begin_s=0.0, seed=0):
    """Let samples take up to ``most`` times as long, and each client (or fused run) ``begin_s`` more."""
    real, numbers = spread.dispatch, random.Random(seed)

    def run(strategy, traits, tasks, workers):
        began = spread.now
        yield from real(strategy, traits, tasks, workers)
        spread.now += begin_s * (1 if strategy.is_fused else len(tasks))
        spread.now += (spread.now - began) * (most - 1) * numbers.random()

    monkeypatch.setattr(spread, "dispatch", run)


@pytest.mark.parametrize("begin_s", [0.0, 2e-3])
@pytest.mark.parametrize("rounds", [50, 1000])
def test_serial_training_is_not_taken_for_slow_because_a_client_has_to_begin(
    rounds, begin_s, one_core, monkeypatch, tuner
):
    """A transformer's layer: five clients in a step take 10 % longer. First steps say otherwise."""

    def cost(strategy):
        return 0.0, 3.0e-3 * (1.1 if strategy.is_fused else 1.0)

    made, spread = tuner(cost, n=5, rounds=rounds, refuse=("fused-compiled",))
    slowed(spread, monkeypatch, 1.0, begin_s)
    assert str(made.decide().strategy) == "inline/eager"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rounds", [50, 500])
def test_serial_training_stays_where_only_noise_is_against_it(rounds, seed, one_core, monkeypatch, tuner):
    def cost(strategy):
        return 0.0, 3.0e-3 * (1.06 if strategy.is_fused else 1.0)

    made, spread = tuner(cost, n=5, rounds=rounds, refuse=("fused-compiled",))
    slowed(spread, monkeypatch, 1.15, seed=seed)
    assert str(made.decide().strategy) == "inline/eager"


@pytest.mark.parametrize("seed", range(4))
def test_noise_does_not_decide_whether_twenty_tiny_clients_are_compiled(seed, one_core, monkeypatch, tuner):
    """Of 3,000 rounds: 8 ms each eagerly, 1.8 ms compiled, which takes about five seconds."""

    def cost(strategy):
        if not strategy.is_fused:
            return 0.0, 1.3e-4
        return (8.0e-4, 1e-6) if not strategy.is_compiled else (1e-4, 4e-6)

    made, spread = tuner(cost, n=20, rounds=3000, compile_s=4.6, n_ops=39)
    slowed(spread, monkeypatch, 1.3, seed=seed)
    assert str(made.decide().strategy) == "inline/fused-compiled:20"


def test_a_small_gain_that_is_not_expected_is_named_and_not_taken(one_core, tuner):
    def cost(strategy):
        return 0.0, 3.0e-3 * (0.96 if strategy.is_fused else 1.0)

    made, _ = tuner(cost, n=5, rounds=100, refuse=("fused-compiled",))
    plan = made.decide()
    assert str(plan.strategy) == "inline/eager"
    assert "beyond doubt" in plan.why
    assert "1.04 times as fast" in plan.reasons["inline/fused:5"]


def test_too_little_work_is_not_measured(tuner):
    made, spread = tuner(lambda s: (1e-6, 1e-7), rounds=1)
    assert "nothing to gain" in made.decide().why
    assert set(spread.ran) == {"inline/eager"}


@pytest.mark.parametrize(("rounds", "share"), [(20, 0.08), (100, 0.05), (1000, 0.05)])
@pytest.mark.parametrize("cost", [launch_bound, lambda s: (1e-4, 1e-3 * (1 + s.is_fused))])
def test_all_measuring_together_takes_its_share_of_the_job_at_most(rounds, share, cost, tuner):
    made, spread = tuner(cost, rounds=rounds, refuse=("fused-compiled",))
    made.decide()
    assert len(made.probes) >= 2
    assert 0 < spread.now <= share * made.job_s()


def test_a_strategy_that_fails_is_a_reason_and_not_the_end(tuner):
    def cost(strategy):
        if strategy.outer != "inline" or (strategy.is_fused and strategy.chunk in (8, 16)):
            raise TypeError("Got unsupported ScalarType")
        return launch_bound(strategy)

    made, spread = tuner(cost, rounds=2000, refuse=("fused-compiled",))
    verdict = made.decide()
    assert verdict.strategy.is_fused
    assert verdict.reasons["inline/fused:8"] == "it fails: TypeError: Got unsupported ScalarType"
    assert any(name.startswith("threads") for name in verdict.reasons)
    assert max(spread.ran.count(name) for name in verdict.reasons if "/" in name) <= 1


def test_what_was_measured_in_the_end_is_not_said_to_be_too_dear(tuner):
    for rounds in (20, 100, 1000):
        made, _ = tuner(launch_bound, rounds=rounds, refuse=("fused-compiled",))
        plan = made.decide()
        dear = {name for name, why in plan.reasons.items() if "would take" in why}
        assert not dear & {row["strategy"] for row in plan.probes}
