"""The search for the fastest strategy, on work whose times are known: a clock that only engines move.

That what is found is near the best, whatever way the search takes, is held by test_tuner_on_machines.
"""

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
def test_all_measuring_together_takes_its_share_of_the_job_and_is_told_as_it_was(rounds, share, tuner):
    made, spread = tuner(launch_bound, rounds=rounds, refuse=("fused-compiled",))
    plan = made.decide()
    assert len(made.probes) >= 2
    assert 0 < spread.now <= share * made.job_s()
    dear = {name for name, why in plan.reasons.items() if "would take" in why}
    assert not dear & {row["strategy"] for row in plan.probes}


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
