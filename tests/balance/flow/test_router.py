"""The router against a linear program, brute force, and its own certificates."""

import itertools
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.router_program import least_peak

from evenload.balance.flow import ReplicaGraph, Router, route
from evenload.balance.flow.kernels import current
from evenload.errors import ConfigError


@st.composite
def placements(draw, most_gpus=10, most_experts=16):
    """(phy2log, slot2gpu, n_gpus, n_experts): any graph, doubles on a GPU and empty slots included."""
    n_gpus = draw(st.integers(1, most_gpus))
    n_experts = draw(st.integers(1, most_experts))
    extra = draw(st.lists(st.integers(-1, n_experts - 1), max_size=20))
    phy2log = np.array(draw(st.permutations([*range(n_experts), *extra])))
    slot2gpu = np.array(
        draw(st.lists(st.integers(0, n_gpus - 1), min_size=len(phy2log), max_size=len(phy2log)))
    )
    return phy2log, slot2gpu, n_gpus, n_experts


def demands_for(n_experts):
    amounts = st.one_of(st.integers(0, 5), st.integers(0, 3000), st.integers(0, 2**20))
    return st.lists(amounts, min_size=n_experts, max_size=n_experts).map(
        lambda x: np.array([x], dtype=np.int64)
    )


def whole(least):
    """The linear program's optimum, rounded up over its own rounding errors."""
    return math.ceil(least - 1e-4)


def realised(routing, graph, layer=0, fixed=0):
    return np.bincount(graph.slot2gpu, routing.quotas[layer], graph.n_gpus).astype(np.int64) + fixed


def assert_serves_all(routing, graph, demand):
    quotas = routing.quotas[0]
    used = graph.phy2log[0] >= 0
    assert (quotas >= 0).all()
    assert not quotas[~used].any()
    np.testing.assert_array_equal(np.bincount(graph.phy2log[0, used], quotas[used], graph.n_experts), demand)


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_peak_is_the_rounded_up_optimum_of_the_linear_program(data):
    phy2log, slot2gpu, n_gpus, n_experts = data.draw(placements())
    demands = data.draw(demands_for(n_experts))
    graph = ReplicaGraph.from_slots(phy2log, n_experts, n_gpus, slot2gpu=slot2gpu)

    routing = Router(graph).solve(demands)

    assert_serves_all(routing, graph, demands[0])
    np.testing.assert_array_equal(realised(routing, graph), routing.loads[0])
    least = least_peak(graph, 0, demands[0])
    assert routing.loads.max() == whole(least)
    assert routing.bounds[0] <= least + 1e-4
    assert routing.certificate().proves(graph, 0, demands[0])


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_speeds_fixed_loads_capacities_and_dead_gpus_are_proved_optimal(data):
    phy2log, slot2gpu, n_gpus, n_experts = data.draw(placements())
    demands = data.draw(demands_for(n_experts))
    dead = data.draw(st.sets(st.integers(0, n_gpus - 1), max_size=n_gpus - 1))
    graph = ReplicaGraph.from_slots(phy2log, n_experts, n_gpus, slot2gpu=slot2gpu, dead=dead)
    demands[0, graph.unplaced()] = 0
    each = {"min_size": n_gpus, "max_size": n_gpus}
    speeds = np.array(data.draw(st.lists(st.integers(1, 9), **each))) * graph.alive
    fixed = np.array(data.draw(st.lists(st.integers(0, 500), **each))) * graph.alive
    capacities = None
    if data.draw(st.booleans()):
        capacities = np.array(
            data.draw(st.lists(st.integers(0, 3000), min_size=len(phy2log), max_size=len(phy2log)))
        )
        first = {}
        for slot, expert in enumerate(
            graph.phy2log[0].tolist()
        ):  # one replica that could serve all: feasible
            if expert >= 0 and expert not in first:
                first[expert] = capacities[slot] = demands[0, expert]
        _, kept = np.unique(graph.phy2log[0] * n_gpus + graph.slot2gpu, return_index=True)
        for slot in kept:
            if graph.phy2log[0, slot] >= 0:
                capacities[slot] = max(capacities[slot], demands[0, graph.phy2log[0, slot]] // 2)
    routing_or_error = _solve(graph, speeds, demands, fixed, capacities)
    if routing_or_error is None:
        with pytest.raises(ValueError, match="nfeasible"):
            least_peak(graph, 0, demands[0], speeds=speeds / speeds.max(), fixed=fixed, capacities=capacities)
        return
    routing = routing_or_error
    assert_serves_all(routing, graph, demands[0])
    np.testing.assert_array_equal(realised(routing, graph, fixed=fixed), routing.loads[0])
    assert capacities is None or (routing.quotas[0] <= capacities).all()
    certificate = routing.certificate()
    assert certificate.proves(graph, 0, demands[0], speeds, fixed, capacities)
    relative = [Fraction(int(speed), int(speeds.max())) for speed in speeds if speed]
    above = min((math.floor(certificate.peak * speed) + 1) / speed for speed in relative)
    with_dead = tuple(sorted({*certificate.gpus, *np.flatnonzero(speeds == 0).tolist()}))
    for gpus in (certificate.gpus, with_dead):
        forged = replace(certificate, peak=above, gpus=gpus)
        assert not forged.proves(graph, 0, demands[0], speeds, fixed, capacities)
    assert float(certificate.peak) == pytest.approx(routing.peaks[0])
    least = least_peak(graph, 0, demands[0], speeds=speeds / speeds.max(), fixed=fixed, capacities=capacities)
    assert float(certificate.bound) <= least + 1e-4
    assert routing.peaks[0] >= least - 1e-4


def _solve(graph, speeds, demands, fixed, capacities):
    try:
        return Router(graph, speeds=speeds).solve(demands, fixed=fixed, capacities=capacities)
    except ConfigError as error:
        assert "capacity" in str(error) or "room" in str(error)  # noqa: PT017
        return None


def all_loads(graph, demand):
    """Every load vector that whole tokens can give, by brute force."""
    slots = [np.flatnonzero(graph.phy2log[0] == e) for e in range(graph.n_experts)]
    choices = []
    for expert, hosts in enumerate(slots):
        cuts = itertools.combinations_with_replacement(range(len(hosts)), int(demand[expert]))
        choices.append({tuple(sorted(graph.slot2gpu[hosts[list(cut)]].tolist())) for cut in cuts})
    return {
        tuple(np.bincount([gpu for part in parts for gpu in part], minlength=graph.n_gpus).tolist())
        for parts in itertools.product(*choices)
    }


@settings(max_examples=examples(40), deadline=None)
@given(placements(most_gpus=4, most_experts=3), st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_even_loads_are_least_majorised(placement, amounts):
    phy2log, slot2gpu, n_gpus, n_experts = placement
    graph = ReplicaGraph.from_slots(phy2log, n_experts, n_gpus, slot2gpu=slot2gpu)
    demand = np.array(amounts[:n_experts])
    routing = Router(graph, even=True).solve(demand)
    assert_serves_all(routing, graph, demand)
    np.testing.assert_array_equal(realised(routing, graph), routing.loads[0])
    best = min(tuple(sorted(load, reverse=True)) for load in all_loads(graph, demand))
    assert tuple(sorted(routing.loads[0].tolist(), reverse=True)) == best


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_unit_demand_serves_each_expert_once_on_the_fewest_per_gpu(data):
    phy2log, slot2gpu, n_gpus, n_experts = data.draw(placements())
    demands = data.draw(demands_for(n_experts))
    graph = ReplicaGraph.from_slots(phy2log, n_experts, n_gpus, slot2gpu=slot2gpu)
    routing = Router(graph, cost="experts").solve(demands)
    assert_serves_all(routing, graph, demands[0])
    served = routing.quotas[0] > 0
    np.testing.assert_array_equal(np.bincount(graph.slot2gpu[served], minlength=n_gpus), routing.loads[0])
    assert served.sum() == (demands > 0).sum()
    assert routing.loads.max() == whole(least_peak(graph, 0, np.minimum(demands[0], 1)))


@settings(max_examples=examples(40), deadline=None)
@given(st.data(), st.sampled_from([1, 2, 16, 128]))
def test_tiles_are_cut_whole(data, tile):
    phy2log, slot2gpu, n_gpus, n_experts = data.draw(placements())
    demands = data.draw(demands_for(n_experts))
    graph = ReplicaGraph.from_slots(phy2log, n_experts, n_gpus, slot2gpu=slot2gpu)
    routing = Router(graph, cost=tile).solve(demands)
    assert_serves_all(routing, graph, demands[0])
    tiles = np.bincount(graph.slot2gpu, -(-routing.quotas[0] // tile), n_gpus)
    assert tiles.max() == routing.loads.max()
    assert routing.loads.max() == whole(least_peak(graph, 0, -(-demands[0] // tile)))


def layers_of(seed, n_layers=5, n_experts=32, n_slots=48):
    rng = np.random.default_rng(seed)
    copies = rng.integers(0, n_experts, (n_layers, n_slots - n_experts))
    phy2log = rng.permuted(np.hstack([np.tile(np.arange(n_experts), (n_layers, 1)), copies]), axis=1)
    return phy2log, rng.integers(0, 1000, (n_layers, n_experts))


def test_layers_are_independent_and_parts_do_not_matter():
    phy2log, demands = layers_of(1)
    graph = ReplicaGraph.from_slots(phy2log, 32, 8)
    together = Router(graph).solve(demands)
    for layer in range(5):
        alone = route(phy2log[layer], demands[layer], 8)
        np.testing.assert_array_equal(alone.quotas[0], together.quotas[layer])
    with ThreadPoolExecutor(3) as pool:
        parts = Router(graph, parts=3).solve(demands, pool=pool)
    np.testing.assert_array_equal(parts.quotas, together.quotas)
    np.testing.assert_array_equal(parts.loads, together.loads)


def test_a_warm_start_has_the_same_peak():
    phy2log, demands = layers_of(2)
    graph = ReplicaGraph.from_slots(phy2log, 32, 8)
    warm, cold = Router(graph, warm=True), Router(graph)
    rng = np.random.default_rng(3)
    for _ in range(10):
        batch = rng.poisson(demands)
        routing = warm.solve(batch)
        np.testing.assert_array_equal(routing.loads.max(1), cold.solve(batch).loads.max(1))
        assert all(routing.certificate(layer).proves(graph, layer, batch[layer]) for layer in range(5))


def test_the_routing_is_overwritten_and_its_copy_is_not():
    router = Router(ReplicaGraph.from_slots([0, 1, 0, 1], 2, 2))
    first = router.solve([10, 0])
    kept = first.copy()
    second = router.solve([0, 4])
    assert second is first
    assert kept.quotas.sum() == 10
    assert kept.certificate().load == 10
    assert second.quotas.sum() == 4


def test_the_hot_path_leaves_no_arrays_behind():
    phy2log, demands = layers_of(5)
    router = Router(ReplicaGraph.from_slots(phy2log, 32, 8))
    before = [getattr(router.solve(demands), name) for name in ("quotas", "loads", "cuts", "summary")]
    after = [getattr(router.solve(demands), name) for name in ("quotas", "loads", "cuts", "summary")]
    assert all(a is b for a, b in zip(before, after, strict=True))


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_a_spread_start_has_the_same_peak(data):
    phy2log, slot2gpu, n_gpus, n_experts = data.draw(placements())
    demands = data.draw(demands_for(n_experts))
    graph = ReplicaGraph.from_slots(phy2log, n_experts, n_gpus, slot2gpu=slot2gpu)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(current, "FEWEST_GPUS", 0)
        patch.setattr(current, "FEWEST_EDGES", 0)
        router = Router(graph)
    assert router._arrays["pivots"].size >= n_gpus

    routing = router.solve(demands)

    assert_serves_all(routing, graph, demands[0])
    assert routing.loads.max() == Router(graph).solve(demands).loads.max()
    assert routing.certificate().proves(graph, 0, demands[0])


def test_no_load_is_perfect_balance():
    routing = route([0, 1, 0, 1], [0, 0], 2)
    assert routing.imbalance[0] == 1
    assert routing.certificate().bound == 0
    assert not routing.quotas.any()


@pytest.mark.parametrize(
    ("phy2log", "options", "says"),
    [
        ([0, 1, 2], {}, "do not divide"),
        ([0, 1, 2, 5], {}, "names expert 5"),
        ([0, 1, 2, -2], {}, "phy2log is"),
        ([0, 1, 2, 2**32], {}, "phy2log is .*4294967296"),
        ([0, 1, 2, 0], {"slot2gpu": [0, 0, 1, 2**32]}, "slot2gpu is"),
        ([0, 1, 1, 0], {}, "no slot"),
        ([-1, -1, -1, -1], {}, "no slot"),
        ([0.0, 1.0, 2.0, 0.0], {}, "phy2log is"),
        (np.zeros((1, 1, 4), int), {}, "shape"),
        ([0, 1, 2, 0], {"slot2gpu": [0, 0, 1]}, "slot2gpu"),
        ([0, 1, 2, 0], {"slot2gpu": [0, 0, 1, 2]}, "GPU 2"),
        ([0, 1, 2, 0], {"dead": [2]}, "dead GPU 2"),
        ([0, 1, 2, 0], {"dead": [0, 1]}, "all 2 GPUs"),
    ],
)
def test_bad_placements_are_refused(phy2log, options, says):
    with pytest.raises(ConfigError, match=says):
        ReplicaGraph.from_slots(phy2log, 3, 2, **options)


@pytest.mark.parametrize(
    ("demands", "options", "says"),
    [
        ([1, -3, 2], {}, "demand -3 of expert 1"),
        ([1, -3, 2], {"cost": 4}, "demand -3"),
        ([1.0, 2.0, 3.0], {}, "dtype"),
        ([1, 2], {}, "shape"),
        ([[1, 2, 3]] * 2, {}, "shape"),
        ([1, 2, 3], {"speeds": [1, 0]}, "speed 0"),
        ([1, 2, 3], {"speeds": [1, float("nan")]}, "speeds"),
        ([1, 2, 3], {"cost": "time"}, "cost"),
        ([1, 2, 3], {"cost": 0}, "cost"),
        ([2**39, 2, 3], {}, "too many"),
        ([2**62, 2**62, 2**62], {}, "too many"),
        ([2**63 - 1, 2**63 - 1, 2], {}, "too many"),  # a sum that wraps round to 0
    ],
)
def test_bad_demands_are_refused(demands, options, says):
    graph = ReplicaGraph.from_slots([0, 1, 2, 0], 3, 2)
    with pytest.raises(ConfigError, match=says):
        Router(graph, **options).solve(demands)


def test_demand_that_only_a_dead_gpu_could_serve_is_refused():
    graph = ReplicaGraph.from_slots([0, 1, 2, 0], 3, 2, dead=[1])
    router = Router(graph)
    assert router.solve([4, 3, 0]).loads.tolist() == [[7, 0]]
    with pytest.raises(ConfigError, match=r"experts \[2\] of layer 0"):
        router.solve([4, 3, 1])
    with pytest.raises(ConfigError, match="dead GPU"):
        router.solve([4, 3, 0], fixed=[0, 1])


def test_capacities_too_small_are_refused():
    graph = ReplicaGraph.from_slots([0, 1, 2, 0], 3, 2)
    with pytest.raises(ConfigError, match="less capacity together"):
        Router(graph).solve([9, 1, 1], capacities=[4, 9, 9, 4])
    with pytest.raises(ConfigError, match="one slot has less room"):
        Router(graph).solve([1, 5, 1], capacities=[4, 4, 9, 4])
    with pytest.raises(ConfigError, match="count tokens"):
        Router(graph, cost=8).solve([1, 5, 1], capacities=[4, 4, 9, 4])


def test_importing_the_package_compiles_and_imports_nothing_heavy():
    code = "import sys, evenload.balance.flow; print(sorted({'numba', 'scipy', 'torch'} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=550
        ).stdout.strip()
        == "[]"
    )


@pytest.mark.parametrize("trace", ["intent", "law"])
def test_real_batches_are_routed_to_the_optimum(trace):
    file = Path(__file__).parents[2] / "data" / "routing" / f"routing_{trace}.npz"
    ids = np.load(file)["experts"].astype(np.int64)
    rng = np.random.default_rng(1)
    phy2log = np.stack([rng.permutation(np.append(np.arange(64), rng.choice(64, 16, False))) for _ in ids])
    graph = ReplicaGraph.from_slots(phy2log, 64, 16)
    router = Router(graph)
    for start in (0, 4096):
        batch = np.stack([np.bincount(layer[start : start + 512].ravel(), minlength=64) for layer in ids])
        routing = router.solve(batch)
        for layer in range(0, 26, 5):
            assert routing.loads[layer].max() == whole(least_peak(graph, layer, batch[layer]))
            assert routing.certificate(layer).proves(graph, layer, batch[layer])
