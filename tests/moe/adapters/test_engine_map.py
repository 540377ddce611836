"""What leaves an adapter for an engine. The oracle is the engine's contract, as it stands in the test."""

import copy
import pickle
import sys
import types

import numpy as np
import pytest
from examples_count import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.moe import Cloner, Planner, create_redundant_mapping
from evenload.moe.adapters import vllm
from evenload.moe.adapters.vllm import WeightedPolicy, hook_router

torch = pytest.importorskip("torch")
POLICIES = [vllm.EplbPolicy, vllm.SearchPolicy, WeightedPolicy]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(POLICIES))
@example(1048575, vllm.EplbPolicy)
def test_each_slot_has_an_expert_and_each_expert_a_slot(seed: int, policy: type) -> None:
    """vLLM: int64 [layers, slots], an expert in each slot; experts that stay on a GPU keep their slots.

    Maps in use by chance: with twins, with empty slots of GPUs that have joined, of another width, of none.
    """
    rng = np.random.default_rng(seed)
    n_gpus, width, n_layers = int(rng.integers(1, 6)), int(rng.integers(1, 6)), int(rng.integers(1, 3))
    n_slots = n_gpus * width
    n_experts = int(rng.integers(1, n_slots + 1))
    loads = torch.from_numpy(rng.lognormal(3, 1, (n_layers, n_experts)) * (rng.random((n_layers, 1)) > 0.2))
    rows = [np.r_[np.arange(n_experts), rng.integers(0, n_experts, n_slots - n_experts)] for _ in loads]
    old = np.stack([rng.permutation(row) for row in rows])
    if rng.random() < 0.3:  # the last GPU has just joined
        old[:, -width:] = -1
    old = old[:, : n_slots - 1] if rng.random() < 0.1 else old
    given_map = None if rng.random() < 0.2 else torch.from_numpy(old)
    found = policy.rebalance_experts(loads, n_slots, 1, 1, n_gpus, given_map).numpy()
    assert found.dtype == np.int64
    assert found.shape == (n_layers, n_slots)
    assert all(set(row.tolist()) == set(range(n_experts)) for row in found)
    if given_map is None or old.shape != found.shape:
        return
    for layer in range(n_layers):
        if not loads[layer].any() and set(old[layer].tolist()) == set(range(n_experts)):
            assert (found[layer] == old[layer]).all()
        pairs = zip(old[layer].reshape(n_gpus, -1), found[layer].reshape(n_gpus, -1), strict=True)
        for before, after in pairs:
            n_both = {e: min((before == e).sum(), (after == e).sum()) for e in set(after.tolist())}
            assert ((before == after) & (after >= 0)).sum() == sum(n_both.values())
    if policy is vllm.EplbPolicy and loads.any(dim=1).all():
        fresh = policy.rebalance_experts(loads, n_slots, 1, 1, n_gpus).numpy()
        for layer, load in enumerate(loads.numpy()):
            if (found[layer] == old[layer]).all():  # nothing was to be gained
                assert busiest(load, found[layer], width) <= busiest(load, fresh[layer], width) * (1 + 1e-6)
            else:
                assert (
                    np.sort(fresh[layer].reshape(-1, width)) == np.sort(found[layer].reshape(-1, width))
                ).all()


def busiest(load: np.ndarray, slots: np.ndarray, width: int) -> float:
    """The load of the busiest GPU, each expert's split equally over its copies."""
    copies = np.bincount(slots, minlength=len(load))
    return float((load[slots] / copies[slots]).reshape(-1, width).sum(axis=1).max())


@pytest.mark.parametrize("policy", POLICIES)
def test_slots_that_do_not_divide_are_refused(policy: type) -> None:
    with pytest.raises(ConfigError, match="10 slots do not divide over 4 GPUs"):
        policy.rebalance_experts(torch.ones(1, 8), 10, 1, 1, 4)


def test_a_target_that_cannot_be_met_is_told_once_and_by_the_engines_logger(caplog, recwarn) -> None:
    loads, old = torch.tensor([[97.0] + [1.0] * 6]), torch.arange(7)[None]
    for _ in range(3):
        vllm.SearchPolicy.rebalance_experts(loads, 7, 1, 1, 7, old)
    said = [one for one in caplog.records if "num_redundant_experts" in one.getMessage()]
    assert [one.name for one in said] == ["vllm.evenload"]
    assert not list(recwarn)


def test_a_mapping_function_that_was_imported_before_is_replaced_too(monkeypatch) -> None:
    router, user = types.ModuleType("the_router"), types.ModuleType("its_user")

    def eplb_map_to_physical_and_record(**named: object) -> str:
        return "vLLM's own"

    router.eplb_map_to_physical_and_record = eplb_map_to_physical_and_record
    user.mapped = eplb_map_to_physical_and_record
    for module in (router, user):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    hook_router(router)
    assert user.mapped is router.eplb_map_to_physical_and_record is not eplb_map_to_physical_and_record


@settings(max_examples=examples(20), deadline=None)
@given(
    st.integers(0, 10**9),
    st.sampled_from([copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]),
)
def test_a_copy_routes_and_clones_as_the_original_and_by_itself(seed: int, copied) -> None:
    rng = np.random.default_rng(seed)
    planner = Planner(create_redundant_mapping(8, 12), 12, 8)
    planner.update_redundancy_mapping(rng.lognormal(2, 1, 8))
    cloner = Cloner(rng.permutation(np.arange(8) % 4), 2)
    others = copied(planner), copied(cloner)
    for _ in range(3):
        ids, counts = torch.from_numpy(rng.integers(-1, 8, (20, 2))), rng.integers(0, 99, 8)
        assert (others[0].run(ids) == planner.run(ids)).all()
        assert (others[0].phy2log == planner.phy2log).all()
        mine, its = cloner.plan(counts), others[1].plan(counts)
        assert (mine.peak, mine.experts.tolist()) == (its.peak, its.experts.tolist())
