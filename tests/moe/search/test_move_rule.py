"""When to move. Oracles: the best schedule in hindsight, of all schedules; and a ledger kept by hand."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.moe import Fleet
from evenload.moe.search.move_rule import MoveCosts, MoveRule, Window

SEEDS = st.integers(0, 10**9)


@dataclass(frozen=True)
class Table:
    """Costs by hand: a placement is a number, a window's loads are its cost in each placement."""

    moves: tuple  # [layers][from][to]

    def serving(self, phy2log, windows):
        return np.array([[w[layer, m] for layer, (m,) in enumerate(phy2log)] for w in windows])

    def moving(self, old, new):
        return np.array([self.moves[i][a][b] for i, ((a,), (b,)) in enumerate(zip(old, new, strict=True))])


def best_of_all(serving, moves):
    """The least cost of any schedule that begins in placement 0, by trying all of them, on plain lists."""

    @cache
    def least(window, at):
        if window == len(serving):
            return 0.0
        return min(moves[at][to] + serving[window][to] + least(window + 1, to) for to in range(len(moves)))

    return least(0, 0)


def stream(rng, n_layers, n_maps):
    """Costs [windows, layers, placements]: noise, idle windows, and phases in which one placement is good."""
    n = int(rng.integers(1, 60))
    costs = rng.uniform(0, rng.choice([0.05, 0.5, 5]), (n, n_layers, n_maps))
    costs *= rng.random((n, n_layers, 1)) > 0.2
    if rng.random() < 0.5:
        good = (rng.random((n, n_layers)) < 0.1).cumsum(axis=0) % n_maps
        np.put_along_axis(costs, good[:, :, None], 0, axis=2)
    return costs


def serve(rule, costs, candidate_of, is_hostile=False):
    """Serve a stream, and keep the account of it by hand: (state, spent, costs as they were served)."""
    n_layers, spent = costs.shape[1], 0.0
    state, costs = rule.init(np.zeros((n_layers, 1), np.int64)), costs.copy()
    for window in costs:
        before = [int(one) for (one,) in state.in_use]
        if is_hostile:  # only the placement in use is bad
            for layer, one in enumerate(before):
                window[layer, np.arange(window.shape[1]) != one] = 0
        spent += sum(window[layer, one] for layer, one in enumerate(before))
        was = replace(state)
        state, moves = rule.step(state, Window(window, candidate_of(state.in_use)))
        assert was.spent <= state.spent  # the state that was is as it was
        after = [int(one) for (one,) in state.in_use]
        spent += sum(rule.costs.moves[i][a][b] for i, (a, b) in enumerate(zip(before, after, strict=True)))
        assert moves.tolist() == [a != b for a, b in zip(before, after, strict=True)]
        assert window.any() or not moves.any()
    assert spent == pytest.approx(state.spent)
    return state, spent, costs


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS)
def test_between_two_placements_it_is_as_good_as_the_bound_says(seed):
    rng = np.random.default_rng(seed)
    n_layers, far = int(rng.integers(1, 4)), float(rng.uniform(0.1, 5))
    rule = MoveRule(Table(((((0, far), (far, 0)),)) * n_layers), tolerance=1e9)
    costs = stream(rng, n_layers, 2)
    _, spent, costs = serve(rule, costs, lambda in_use: 1 - in_use, is_hostile=rng.random() < 0.5)
    beyond = costs - costs.min(axis=2, keepdims=True)
    most = 0.0
    for layer in range(n_layers):
        differ = beyond[:, layer].max()
        best = best_of_all(beyond[:, layer].tolist(), rule.costs.moves[layer])
        most += (3 + differ / far) * best + far + differ
    assert spent - costs.min(axis=2).sum() <= most * (1 + 1e-9)


@settings(max_examples=examples(200), deadline=None)
@given(SEEDS)
def test_no_stream_costs_more_than_the_tolerance_beyond_never_moving(seed):
    """Three placements, moves of any cost each way, candidates by chance, loads that are against it."""
    rng = np.random.default_rng(seed)
    n_layers, n_maps = int(rng.integers(1, 4)), 3
    moves = rng.uniform(0, rng.choice([0.01, 1]), (n_layers, n_maps, n_maps))
    moves[:, range(n_maps), range(n_maps)] = 0
    tolerance = float(rng.choice([0.0, 0.02, 0.2]))
    costs = stream(rng, n_layers, n_maps)
    rule = MoveRule(Table(tuple(map(tuple, moves.tolist()))), tolerance)
    is_hostile = rng.random() < 0.5

    def by_chance(in_use):
        return rng.integers(0, n_maps, in_use.shape)

    state, spent, served = serve(rule, costs, by_chance, is_hostile)
    never = served[:, :, 0].sum()
    assert spent <= (1 + tolerance) * never + state.worst + 1e-9
    assert state.worst <= max(0.0, *served.max(axis=2).sum(axis=1))  # of one window
    safe = replace(rule, reserve=float(costs.max() * n_layers))
    _, spent, served = serve(safe, costs, by_chance, is_hostile)
    assert spent <= (1 + tolerance) * served[:, :, 0].sum() + 1e-9


def test_costs_are_tokens_of_the_busiest_gpu_and_of_batches_of_fetches():
    fleet, windows = Fleet.even(2, 4), np.array([[[6, 4, 2]], [[0, 0, 0]]])
    here, there = np.array([[0, 1, 0, 2]]), np.array([[0, 1, 1, 2]])
    equal = MoveCosts(fleet, is_routed=False, fetch_tokens=10)
    assert equal.serving(here, windows).tolist() == [[7], [0]]  # 3 + 4 on the first
    assert MoveCosts(fleet).serving(here, windows).tolist() == pytest.approx(np.array([[6], [0]]))
    assert equal.moving(here, there).tolist() == [10]
    assert equal.moving(here, here).tolist() == [0]
    slow = MoveCosts(Fleet.even(2, 4, speeds=[1, 0.5]), is_routed=False)
    assert slow.serving(here, windows).tolist() == [[10], [0]]  # 5 tokens at half the speed
    with pytest.raises(ConfigError, match="fetch_tokens"):
        MoveCosts(fleet, fetch_tokens=-1)
    with pytest.raises(ConfigError, match="tolerance"):
        MoveRule(equal, tolerance=float("nan"))
