"""Tests the budget for measuring, and when samples are repeated, mostly through the tuner."""

import pytest

from evenload.clients import SGD, Recipe
from evenload.clients.tune.probe_timer import MOST_STEPS, STEPS, SURE
from evenload.clients.values.strategy import Strategy

RECIPE = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, steps=10)


def launch_bound(strategy):
    return (1e-3, 1e-6) if not strategy.is_fused else (2e-3, 1e-5)


def test_too_little_work_is_not_measured(tuner):
    made, spread = tuner(lambda s: (1e-6, 1e-7), rounds=1)
    assert "nothing to gain" in made.decide().why
    assert set(spread.ran) == {"inline/eager"}


@pytest.mark.parametrize(("rounds", "share"), [(20, 0.08), (100, 0.05), (1000, 0.05)])
@pytest.mark.parametrize("cost", [launch_bound, lambda s: (1e-4, 1e-3 * (1 + s.is_fused))])
def test_all_measuring_together_takes_its_share_of_the_job_at_most(rounds, share, cost, tuner):
    made, spread = tuner(cost, rounds=rounds, compile_s=3.0, n_ops=10)
    made.decide()
    best = made.timer.best()
    assert len(made.timer.probes) > 2
    assert 0 < spread.now - best.first_s <= share * made.timer.job_s()


def test_what_was_compiled_in_vain_is_little_of_what_it_could_have_saved(tuner):
    """A hundred operations are most of these steps, but compiling them gains nothing."""
    for rounds in (20, 100, 500):
        made, spread = tuner(launch_bound, rounds=rounds, compile_s=4.0)
        made.decide()
        assert spread.now <= (0.6 / SURE + 0.08) * made.timer.job_s()


def test_what_was_compiled_in_vain_leaves_enough_for_samples(two_cores, tuner):
    """What is near is still compared in whole rounds afterwards."""

    def cost(strategy):
        return launch_bound(strategy) if strategy.outer == "inline" else (1e-3, 1e-3)

    made, spread = tuner(cost, rounds=1700, compile_s=6.0)
    best = made.decide().strategy
    assert spread.compiled
    assert not best.is_compiled
    assert made.timer.left_s() < 0 < made.timer.left_s(is_sample=True)
    assert (64, 10) in spread.sizes[str(best)]


def test_what_is_near_is_compared_in_whole_rounds_if_the_job_is_long(tuner):
    def cost(strategy):
        return 1e-4, 1e-4 * (1 + 2 * (strategy.outer != "inline"))

    for rounds, whole in ((100, False), (20_000, True)):
        made, spread = tuner(cost, rounds=rounds, refuse=("fused-compiled",))
        best = made.decide().strategy
        assert ((64, 10) in spread.sizes[str(best)]) == whole
        cold, warm = [n_steps for _, n_steps in spread.sizes[str(best)][:2]]
        assert (cold, warm) == (1, MOST_STEPS if whole else STEPS)


def test_threads_that_others_disturbed_are_compared_again(two_cores, monkeypatch, tuner):
    """Their sample is timed by the clock, that of one thread by what it computed."""
    made, spread = tuner(lambda s: (0.0, 1e-3 * (1 + s.is_fused)), rounds=500, refuse=("fused",))
    real = spread.run

    def run(strategy, traits, tasks, workers):
        began = spread.now
        yield from real(strategy, traits, tasks, workers)
        if strategy.outer == "threads" and tasks[0].batches.n_steps < RECIPE.steps:
            spread.now += 2 * (spread.now - began)

    monkeypatch.setattr(spread, "run", run)
    verdict = made.decide()
    assert str(verdict.strategy) == "threads*2/eager"


def test_a_long_job_pays_for_more_samples(tuner):
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


def test_a_strategy_that_fails_is_a_reason_and_not_the_end(tuner):
    def cost(strategy):
        if strategy.outer != "inline" or (strategy.is_fused and strategy.chunk in (8, 16)):
            raise TypeError("Got unsupported ScalarType")
        return launch_bound(strategy)

    made, _ = tuner(cost, rounds=2000, refuse=("fused-compiled",))
    verdict = made.decide()
    assert str(verdict.strategy) == "inline/fused:4"
    assert verdict.reasons["inline/fused:8"] == "it fails: TypeError: Got unsupported ScalarType"
    assert any(name.startswith("threads") for name in verdict.reasons)
