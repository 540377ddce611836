"""Plans for engines. Oracles: EPLB in plain Python, and each engine's contract as written here."""

import importlib.util
import logging
import sys
import types
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from examples_count import examples
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from evenload.errors import EvenloadError
from evenload.moe import Fleet
from evenload.moe.adapters import engine_plan, sglang, vllm
from evenload.moe.adapters.engine_plan import EnginePlanner, fault_of
from evenload.moe.search.layer_search import Effort
from evenload.moe.search.plan import EFFORTS

torch = pytest.importorskip("torch")
_spec = importlib.util.spec_from_file_location(
    "eplb_twin", Path(__file__).parents[2] / "reference" / "eplb_twin.py"
)
twin = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(twin)


class Eager(vllm.SearchPolicy):
    """The search where moves cost nothing."""

    fetch_tokens = None


def peak(row, loads, gpus):
    """The busiest GPU's load when each expert's is split equally over its slots, by hand."""
    held = [expert for expert in row if expert >= 0]
    return max(
        sum(loads[e] / held.count(e) for e in part if e >= 0) for part in np.split(np.array(row), gpus)
    )


def in_use_by_chance(rng, width, loads, n_slots):
    """[layers, slots] a map with twins, maybe with empty slots of a GPU that has just joined."""
    n_experts = loads.shape[1]
    rows = [np.r_[np.arange(n_experts), rng.integers(0, n_experts, n_slots - n_experts)] for _ in loads]
    old = np.stack([rng.permutation(row) for row in rows])
    if rng.random() < 0.3:
        old[:, -width:] = -1
    return old


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(0, 10**9), st.sampled_from([vllm.EplbPolicy, vllm.SearchPolicy, vllm.WeightedPolicy, Eager])
)
@example(370, Eager)  # empty slots, and filling them made a GPU busier
@example(1048575, vllm.EplbPolicy)
def test_vllms_maps_are_whole_and_no_layer_is_less_even_than_by_eplb_or_moves_for_nothing(seed, policy):
    """vLLM: int64 [layers, slots], an expert in each slot; experts that stay on a GPU keep their slots.

    Maps in use by chance, also of another width, or none; loads by chance, with idle layers.
    """
    rng = np.random.default_rng(seed)
    n_gpus, width, n_layers = int(rng.integers(1, 6)), int(rng.integers(1, 6)), 2
    n_slots = n_gpus * width
    n_experts = int(rng.integers(1, n_slots + 1))
    loads = np.round(rng.lognormal(3, 1, (n_layers, n_experts)) * (rng.random((n_layers, 1)) > 0.2))
    old = in_use_by_chance(rng, width, loads, n_slots)
    given_map = rng.choice([0, 1, 2, 3])  # none, of another width, twice this one
    asked = None if given_map == 0 else torch.from_numpy(old[:, : n_slots - (given_map == 1)])
    arguments = (torch.from_numpy(loads), n_slots, 1, 1, n_gpus)
    found = policy.rebalance_experts(*arguments, asked).numpy()
    assert (found.dtype, found.shape) == (np.int64, (n_layers, n_slots))
    assert all(set(row.tolist()) == set(range(n_experts)) for row in found)
    fresh = policy.rebalance_experts(*arguments).numpy()
    for layer, (load, before, after) in enumerate(zip(loads, old.tolist(), found.tolist(), strict=True)):
        own = peak(twin.rebalance_layer(load, n_slots, 1, 1, n_gpus)[0], load, n_gpus)
        if given_map < 2:
            assert policy is vllm.WeightedPolicy or peak(after, load, n_gpus) <= own * (1 + 1e-5)
            continue
        most = max(own, load.sum() / n_gpus * (policy.target or 0))
        was_whole = set(before) == set(range(n_experts))
        if policy in (vllm.EplbPolicy, Eager):
            assert peak(after, load, n_gpus) <= most * (1 + 1e-5)
            assert not was_whole or after == before or peak(after, load, n_gpus) < peak(before, load, n_gpus)
        assert not was_whole or load.any() or after == before
        for there, here in zip(np.split(old[layer], n_gpus), np.split(found[layer], n_gpus), strict=True):
            n_both = sum(min((there == e).sum(), (here == e).sum()) for e in set(here.tolist()))
            assert ((there == here) & (here >= 0)).sum() == n_both
        if policy is vllm.EplbPolicy and load.any() and after != before:
            assert (
                np.sort(fresh[layer].reshape(n_gpus, -1)) == np.sort(found[layer].reshape(n_gpus, -1))
            ).all()


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["eplb", "search"]))
def test_sglangs_maps_lead_to_every_expert_and_to_no_dead_rank(seed, policy):
    rng = np.random.default_rng(seed)
    n_ranks, width = int(rng.integers(2, 6)), int(rng.integers(1, 5))
    alive = rng.random(n_ranks) < 0.7
    alive[rng.integers(n_ranks)] = True
    n_experts = int(rng.integers(1, alive.sum() * width + 1))
    loads = rng.lognormal(3, 1, (int(rng.integers(1, 4)), 2, n_experts)) * (rng.random((1, 2, 1)) > 0.2)
    phy2log, log2phy, logcnt = sglang.rebalance_experts(
        torch.from_numpy(loads), n_ranks * width, width, None, 1, "elasticity_aware",
        policy=policy, active_ranks=alive.tolist(),
    )  # fmt: skip
    assert (phy2log.shape, phy2log.dtype) == ((2, n_ranks * width), torch.int64)
    for layer in range(2):
        led_to = set()
        for expert in range(n_experts):
            slots = [slot for slot in log2phy[layer, expert].tolist() if slot >= 0]
            assert slots
            assert len(slots) == logcnt[layer, expert]
            assert all(phy2log[layer, slot] == expert and alive[slot // width] for slot in slots)
            led_to |= set(slots)
        assert led_to == {slot for slot in range(n_ranks * width) if alive[slot // width]}
    if alive.all():  # without a solver it splits tokens equally
        for row, load in zip(
            phy2log.tolist(), loads.sum(axis=0) if policy == "eplb" else loads[0], strict=True
        ):
            theirs = twin.rebalance_layer(load, n_ranks * width, 1, 1, n_ranks)[0]
            is_of_one = policy == "eplb" or len(loads) == 1
            assert not is_of_one or peak(row, load, n_ranks) <= peak(theirs, load, n_ranks) * (1 + 1e-5)


@pytest.mark.parametrize(
    "broken",
    [
        np.array([[0, 1, 2, 3, 0, 0, 0, 0, 1]]),  # a slot too many
        np.array([[0, 1, 2, 2, 0, 0, 0, 0]]),  # no expert 3
        np.array([[0, 1, 2, 4, 0, 0, 0, 0]]),  # no such expert
    ],
)
def test_a_plan_that_breaks_the_contract_gives_way_to_the_engines_own(monkeypatch, caplog, broken):
    loads = np.array([[[9.0, 5.0, 3.0, 1.0]]])
    own = twin.rebalance_layer(loads[0, 0], 8, 1, 1, 4)[0]
    monkeypatch.setattr(EnginePlanner, "_searched", lambda *_: broken)
    planner = EnginePlanner("search", "equal", f"some.engine.{broken.sum()}")
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        maps = [planner.plan(loads, Fleet.even(4, 8), None) for _ in range(3)]
    assert all(peak(one[0].tolist(), loads[0, 0], 4) <= peak(own, loads[0, 0], 4) for one in maps)
    assert [record.name for record in caplog.records] == [planner.logger]
    monkeypatch.setattr(EnginePlanner, "_own", lambda *_: broken)
    with pytest.raises(EvenloadError, match="no map for the engine"):
        planner.plan(loads, Fleet.even(4, 8), None)


def test_what_an_engine_would_not_bear_is_named():
    fleet, good = Fleet.even(2, 4), np.array([[0, 1, 2, 0]])
    assert fault_of(good, 3, fleet) is None
    for wrong, planned, old, words in (
        (np.array([[0, 1, 2, -1]]), None, None, "experts -1 to 2 of 3"),
        (np.array([[0, 1, 1, 0]]), None, None, "nowhere in layer 0"),
        (good.astype(np.int32), None, None, "int32"),
        (good, np.array([[0, 2, 1, 0]]), None, "other experts"),
        (good, good, np.array([[1, 2, 0, 2]]), "another slot"),
    ):
        assert words in fault_of(wrong, 3, fleet, planned, old)
    dead = Fleet.even(3, 6, dead=[2])
    assert fault_of(np.array([[0, 1, 2, 0, -1, -1]]), 3, dead) is None
    assert "dead slot" in fault_of(np.array([[0, 1, 2, 0, 0, 0]]), 3, dead)


def test_a_group_that_does_not_exist_yet_asks_nobody(monkeypatch):
    asked = types.ModuleType("some_engine")
    monkeypatch.setitem(engine_plan.sys.modules, "some_engine", asked)
    planner = EnginePlanner("search", "equal", "some.engine", ("some_engine", "get_group"))
    assert planner.plan(np.ones((1, 1, 4)), Fleet.even(2, 4), None).shape == (1, 4)


def routed_peak(row, loads, gpus):
    """The busiest GPU's load in the best routing over the slots, by SciPy's HiGHS."""
    held = np.array(row).reshape(gpus, -1)
    ways = [(e, g) for g in range(gpus) for e in set(held[g].tolist()) if e >= 0]
    whole = np.array([[float(way[0] == e) for way in ways] + [0.0] for e in range(len(loads))])
    busy = np.array([[float(way[1] == g) for way in ways] + [-1.0] for g in range(gpus)])
    found = linprog([0.0] * len(ways) + [1.0], busy, np.zeros(gpus), whole, loads)
    return found.fun


def planned_by_vllm(price, loads, old):
    policy = type("Priced", (vllm.SearchPolicy,), {"fetch_tokens": price})
    return policy.rebalance_experts(torch.from_numpy(loads), 12, 1, 1, 4, torch.from_numpy(old)).numpy()


def planned_by_sglang(price, loads, old, dispatch="lp"):
    """As its manager asks: the map in use, and how tokens are divided, are where SGLang keeps them."""
    location = types.ModuleType(sglang.LOCATION)
    execution = types.SimpleNamespace(moe=types.SimpleNamespace(ep_dispatch_algorithm=dispatch))
    location.get_exec = lambda: execution
    in_use = types.SimpleNamespace(physical_to_logical_map_cpu=torch.from_numpy(old))
    location.get_global_expert_location_metadata = lambda: in_use

    def compute(manager, counts, *, broadcast_over_world):
        return sglang.rebalance_experts(
            counts, 12, 3, None, 1, "deepseek", policy="search", fetch_tokens=price
        )[0].numpy()

    with mock.patch.dict(sys.modules, {sglang.LOCATION: location}):
        return sglang.by_one_or_all(compute, None, torch.from_numpy(loads)[None], broadcast_over_world=False)


def planned_for_an_equal_split(price, loads, old):
    return planned_by_sglang(price, loads, old, "dynamic")


@pytest.mark.parametrize(
    ("planned", "peak_of"),
    [(planned_by_vllm, peak), (planned_by_sglang, routed_peak), (planned_for_an_equal_split, peak)],
)
@settings(max_examples=examples(6), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_an_engine_that_is_served_for_long_pays_little_more_than_if_nothing_had_moved(planned, peak_of, seed):
    """Loads in two moods, by chance; idle windows. Oracle: the costs of the maps, added up by hand."""
    rng = np.random.default_rng(seed)
    moods = np.sort(rng.lognormal(5, 1, (2, 2, 8)).round(), axis=2)
    moods[1] = moods[1, :, ::-1]
    price = float(rng.choice([1, 30, 1000, 1e6]))
    home = old = np.stack([rng.permutation(np.r_[np.arange(8), rng.integers(0, 8, 4)]) for _ in range(2)])
    spent = never = worst = 0.0
    n_moved = 0
    brief = Effort(n_windows=2, n_made_up=6, n_rounds=2, n_tries=20)  # the claim is for any candidates
    for _ in range(16):
        loads = moods[int(rng.random() < 0.2)] * (rng.random() > 0.3)
        served, stayed = (sum(peak_of(m[i].tolist(), loads[i], 4) for i in range(2)) for m in (old, home))
        with mock.patch.dict(EFFORTS, online=brief):
            new = planned(price, loads, old)
        assert fault_of(new, 8, Fleet.even(4, 12), new, old) is None
        fetched = [
            max(len({*new[i, g : g + 3]} - {*old[i, g : g + 3]}) for g in range(0, 12, 3)) for i in range(2)
        ]
        assert loads.any() or new.tolist() == old.tolist()
        spent += served + sum(fetched) * price
        never, worst = never + stayed, max(worst, served - 1.02 * stayed)
        old, n_moved = new, n_moved + sum(map(bool, fetched))
    assert spent <= 1.02 * never + worst + 1e-3
    assert price < 1e6 or not n_moved
    event(f"layers moved: {n_moved > 0}")


def test_a_gain_that_lasts_is_taken_in_an_engine():
    loads = torch.tensor([[900.0, 5, 5, 5, 900, 5, 5, 5]])
    old = torch.tensor([[0, 4, 1, 2, 3, 5, 6, 7, 1, 2]])  # both of the heavy ones on the first GPU
    for price in (1.0, 1e6):
        policy = type("Priced", (vllm.SearchPolicy,), {"fetch_tokens": price})
        maps = [old]
        for _ in range(6):
            maps.append(policy.rebalance_experts(loads, 10, 1, 1, 5, maps[-1]))
        peaks = [peak(one[0].tolist(), loads[0].numpy(), 5) for one in maps]
        assert bool(peaks[-1] < 0.6 * peaks[0]) is (price == 1)
        assert peaks == sorted(peaks, reverse=True)


def test_a_target_that_cannot_be_met_is_told_once_and_by_the_engines_logger(caplog, recwarn):
    loads, old = torch.tensor([[97.0] + [1.0] * 6]), torch.arange(7)[None]
    for _ in range(3):
        vllm.SearchPolicy.rebalance_experts(loads, 7, 1, 1, 7, old)
    said = [one for one in caplog.records if "num_redundant_experts" in one.getMessage()]
    assert [one.name for one in said] == ["vllm.evenload"]
    assert not list(recwarn)


def test_a_mapping_function_that_was_imported_before_is_replaced_too(monkeypatch):
    router, user = types.ModuleType("the_router"), types.ModuleType("its_user")

    def eplb_map_to_physical_and_record(**named) -> str:
        return "vLLM's own"

    router.eplb_map_to_physical_and_record = eplb_map_to_physical_and_record
    user.mapped = eplb_map_to_physical_and_record
    for module in (router, user):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vllm.hook_router(router)
    assert user.mapped is router.eplb_map_to_physical_and_record is not eplb_map_to_physical_and_record
