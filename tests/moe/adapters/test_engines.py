"""Adapters keep their engines' contracts; where an engine's sources are at hand, it is asked itself."""

import importlib.util
import inspect
import sys
import types

import numpy as np
import pytest
import torch

from evenload.balance.flow import route
from evenload.errors import ConfigError, MissingExtra
from evenload.moe import rebalance_experts
from evenload.moe.adapters import lplb, sglang, vllm
from evenload.moe.placement.bound import equal_split_imbalance
from evenload.moe.topology import circulant, cube, hypercube, ring, torus

LOADS = np.random.default_rng(4).lognormal(5, 0.8, (4, 64)).round()
WEIGHT = torch.from_numpy(LOADS)
SGLANG_MODULES = ("eplb.eplb_algorithms", "eplb.eplb_manager", "distributed.parallel_state")
SGLANG = {
    "eplb/eplb_manager": """
class EPLBManager:
    def _compute_expert_location_metadata(self, arguments, *, broadcast_over_world):
        from sglang.srt.eplb import eplb_algorithms
        return eplb_algorithms.rebalance_experts(*arguments)
""",
    "distributed/parallel_state": """
asked = []
def get_world_group():
    asked.append(1)
    raise AssertionError("world group is not initialized")
""",
}


# vLLM


@pytest.mark.parametrize("policy", [vllm.EplbPolicy, vllm.SearchPolicy, vllm.WeightedPolicy])
def test_slots_that_do_not_divide_are_refused(policy):
    with pytest.raises(ConfigError, match="10 slots do not divide over 4 GPUs"):
        policy.rebalance_experts(torch.ones(1, 8), 10, 1, 1, 4)


def test_vllms_policy_class():
    names = {
        "weight": False, "num_replicas": False, "num_groups": False, "num_nodes": False, "num_ranks": False,
        "old_global_expert_indices": True,
    }  # fmt: skip
    for policy in (vllm.EplbPolicy, vllm.SearchPolicy):
        found = inspect.signature(policy.rebalance_experts).parameters
        assert {name: one.default is not one.empty for name, one in found.items()} == names
        phy2log = policy.rebalance_experts(WEIGHT, 80, 2, 2, 16)
        assert (phy2log.shape, phy2log.dtype, phy2log.device.type) == ((4, 80), torch.int64, "cpu")


def test_vllms_policy_class_is_the_real_one(peer_source, parameters_of):
    abstract = peer_source("vllm", "distributed/eplb/policy/abstract.py")
    real = parameters_of(abstract, "AbstractEplbPolicy.rebalance_experts")
    ours = inspect.signature(vllm.EplbPolicy.rebalance_experts).parameters
    assert real == {name: one.default is not one.empty for name, one in ours.items()}


@pytest.fixture
def real_default_policy(peer_source, monkeypatch):
    """vLLM's own class, from its two files, without the rest of vLLM."""
    folder = peer_source("vllm", "distributed/eplb/policy/default.py").parent
    package = types.ModuleType("vllm_policy")
    package.__path__ = [str(folder)]
    monkeypatch.setitem(sys.modules, "vllm_policy", package)
    for name in ("abstract", "default"):
        spec = importlib.util.spec_from_file_location(f"vllm_policy.{name}", folder / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module.DefaultEplbPolicy


def test_as_even_as_vllms_own_policy_and_slots_kept_as_it_keeps_them(real_default_policy):
    random = np.random.default_rng(1)
    for n_slots, n_groups, n_nodes, n_gpus in ((80, 1, 1, 16), (80, 4, 2, 16), (72, 3, 2, 8)):
        old = torch.from_numpy(random.permuted(np.tile(np.arange(n_slots) % 64, (4, 1)), axis=1))
        theirs = real_default_policy.rebalance_experts(WEIGHT, n_slots, n_groups, n_nodes, n_gpus, old)
        ours = vllm.EplbPolicy.rebalance_experts(WEIGHT, n_slots, n_groups, n_nodes, n_gpus, old)
        searched = vllm.SearchPolicy.rebalance_experts(WEIGHT, n_slots, n_groups, n_nodes, n_gpus)
        even = [equal_split_imbalance(m.numpy(), LOADS, n_gpus) for m in (theirs, ours, searched)]
        assert (even[1] <= even[0] + 1e-6).all()
        assert (even[2] <= even[1] + 1e-6).mean() > 0.5
        stays = [(m.numpy() == old.numpy()).sum() for m in (theirs, ours)]
        assert stays[1] >= 0.5 * stays[0]
        kept = real_default_policy.preserve_intragpu_slots(ours.numpy(), n_gpus, old.numpy())
        assert ((kept == old.numpy()).sum()) == stays[1]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_it_says_what_to_install():
    with pytest.raises(MissingExtra, match="pip install vllm"):
        vllm.install()


# SGLang


def test_sglangs_functions_are_the_real_ones(peer_source, parameters_of):
    file = peer_source("sglang", "srt/eplb/eplb_algorithms/__init__.py")
    real = list(parameters_of(file, "rebalance_experts"))
    ours = inspect.signature(sglang.rebalance_experts).parameters
    assert real == [name for name, one in ours.items() if one.kind is not one.KEYWORD_ONLY]
    solver = peer_source("sglang", "srt/eplb/lplb_solver.py")
    for method, one in (("__init__", sglang.LPLBSolver.__init__), ("solve", sglang.LPLBSolver.solve)):
        found = dict(list(inspect.signature(one).parameters.items())[1:])
        assert parameters_of(solver, f"LPLBSolver.{method}") == {
            name: p.default is not p.empty for name, p in found.items()
        }


def test_sglangs_own_placement_is_ours(peer_source):
    file = peer_source("sglang", "srt/eplb/eplb_algorithms/deepseek.py")
    spec = importlib.util.spec_from_file_location("sglang_deepseek", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for grouped, name in ((True, "deepseek_hierarchical"), (False, "deepseek")):
        theirs = module.rebalance_experts(WEIGHT, 80, 4, 2, 16, grouped)
        ours = sglang.rebalance_experts(WEIGHT[None], 80, 5, 4, 2, name)
        even = [equal_split_imbalance(maps[0].numpy(), LOADS, 16) for maps in (theirs, ours)]
        assert (even[1] <= even[0] + 1e-6).all()
        assert [one.shape[:2] for one in theirs] == [one.shape[:2] for one in ours]


@pytest.mark.parametrize("policy", ["eplb", "search"])
def test_sglangs_groups_stay_on_their_nodes(policy):
    windows, algorithm = WEIGHT[None].expand(3, -1, -1), types.SimpleNamespace(name="deepseek_hierarchical")
    phy2log, _, _ = sglang.rebalance_experts(windows, 80, 5, 4, 2, algorithm, policy=policy)
    for row in phy2log.reshape(4, 2, 40).tolist():
        homes = [set(group) <= set(node) for node in row for group in np.arange(64).reshape(4, 16).tolist()]
        assert sum(homes) >= 4  # each group is whole on a node


@pytest.mark.parametrize("is_imported", [True, False])
def test_sglang_by_hand_agrees_as_the_plugin_does(monkeypatch, tmp_path, is_imported):
    folder = tmp_path / "sglang" / "srt"
    for name in ("eplb/eplb_algorithms", "eplb/eplb_manager", "distributed/parallel_state"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).with_suffix(".py").write_text(SGLANG.get(name, ""))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    names = ["sglang", "sglang.srt", "sglang.srt.eplb", "sglang.srt.distributed"]
    names += [f"sglang.srt.{one}" for one in SGLANG_MODULES]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    try:
        state = importlib.import_module("sglang.srt.distributed.parallel_state")
        if is_imported:
            importlib.import_module("sglang.srt.eplb.eplb_manager")
        sglang.install("search")
        manager = importlib.import_module("sglang.srt.eplb.eplb_manager").EPLBManager()
        for algorithm, alone, asked in (("deepseek", True, 0), ("deepseek", False, 1)):
            state.asked.clear()
            found = manager._compute_expert_location_metadata(
                (WEIGHT[None], 80, 5, None, 1, algorithm), broadcast_over_world=alone
            )
            assert (found[0].shape, len(state.asked)) == ((4, 80), asked)
    finally:
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture
def solver_and_ids():
    placement = rebalance_experts(torch.from_numpy(LOADS[:1]), 80, 1, 1, 16)
    phy2log, log2phy, logcnt = (one[0] for one in placement)
    odds = torch.from_numpy(LOADS[0] / LOADS[0].sum())
    ids = torch.multinomial(odds, 4096, replacement=True, generator=torch.Generator().manual_seed(0))
    return sglang.LPLBSolver(phy2log, log2phy, 16, None, logcnt), ids.reshape(-1, 8).int(), phy2log, log2phy


def test_probabilities_are_the_exact_shares(solver_and_ids):
    solver, ids, phy2log, log2phy = solver_and_ids
    prob = solver.solve(ids)
    assert (prob.shape, prob.dtype) == (log2phy.shape, torch.float32)
    assert prob.sum(1).tolist() == pytest.approx([1.0] * 64)
    counts = np.bincount(ids.reshape(-1), minlength=64)
    held = log2phy >= 0
    load = np.zeros(16)
    np.add.at(load, (log2phy[held] // 5).numpy(), (prob * torch.from_numpy(counts)[:, None])[held].numpy())
    assert load.max() == pytest.approx(route(phy2log.numpy(), counts[None], 16).peaks[0], rel=1e-5)
    assert (prob[~held] == 0).all()


def test_the_group_adds_up_counts(solver_and_ids):
    solver, ids, phy2log, log2phy = solver_and_ids

    class Group:
        def all_reduce(self, tensor):
            return tensor * 2

    grouped = sglang.LPLBSolver(phy2log, log2phy, 16, Group())
    assert grouped.solve(ids).shape == log2phy.shape
    counts = np.bincount(ids.reshape(-1), minlength=64)
    assert (grouped.solve(ids).numpy() == solver.shares(2 * counts)).all()


def test_ranks_without_tokens_and_ids_that_are_none(solver_and_ids):
    solver, *_, log2phy = solver_and_ids
    idle = solver.solve(torch.empty((0, 8), dtype=torch.int32))
    assert idle.sum(1).tolist() == pytest.approx([1.0] * 64)
    copies = (log2phy >= 0).sum(1)
    assert (idle[:, 0] == 1 / copies).all()
    assert (solver.solve(torch.tensor([[-1, -1]])) == idle).all()
    with pytest.raises(ConfigError, match="id 64 of 64"):
        solver.solve(torch.tensor([[64, 0]]))


def test_maps_that_disagree_are_refused(solver_and_ids):
    _, _, phy2log, log2phy = solver_and_ids
    with pytest.raises(ConfigError, match="gives to other experts"):
        sglang.LPLBSolver(phy2log.roll(1), log2phy, 16)


# LPLB: the cases of its own tests, loads drawn and added up as there; what must come out is the optimum


@pytest.mark.parametrize(
    ("matrix", "ep_size", "n_redundant", "with_history"),
    [
        (cube(), 32, 2, True),
        (cube(), 32, 4, False),
        (cube(), 64, 2, True),
        (ring(8), 32, 1, True),
        (hypercube(16), 16, 2, True),
        (torus(8, 4), 32, 2, False),
    ],
)
def test_lplbs_own_cases(matrix, ep_size, n_redundant, with_history):
    for seed in range(4):
        check_lplb_draw(seed, matrix, ep_size, n_redundant, with_history)


def check_lplb_draw(seed, matrix, ep_size, n_redundant, with_history):
    """What LPLB's test makes of the shares must be the least that any routing can have."""
    random = torch.Generator().manual_seed(seed)
    planner = lplb.Planner(torch.from_numpy(matrix), 256 + n_redundant * ep_size, 256, ep_size)
    if with_history:
        history = torch.randn(256, generator=random) * 0.15 + 1
        planner.update_redundancy_mapping(history.clamp_min(0).mul(2**20).long())
    workload = (torch.randn(256, generator=random) * 0.3 + 1).clamp_min(0).mul(2**12).int()
    counter = torch.zeros((), dtype=torch.int)
    kept, total = planner.solve_probs(workload, counter)
    assert counter == planner.n_group
    assert (total == workload).all()

    n_columns = matrix.shape[1]
    slots = workload[planner.phy2log].double().reshape(planner.n_group, len(matrix), -1)
    copied = slots[:, :, :n_redundant].reshape(*slots.shape[:2], -1, n_columns).sum(2)
    there = torch.from_numpy(matrix).long().expand(*kept.shape)
    own = copied * kept + (copied * (1 - kept)).gather(1, there)
    fixed = slots[:, :, n_redundant : slots.shape[2] - n_redundant].sum(2)
    load = own.sum(2) + fixed
    exact = route(planner.phy2log.numpy(), workload.numpy()[None].astype(np.int64), ep_size)
    assert float(load.max()) == pytest.approx(exact.peaks[0], abs=1)


def test_lplbs_steps_one_by_one():
    planner = lplb.Planner(circulant(4, [1]), 12, 8, 4)
    ids = torch.randint(-1, 8, (300, 2), generator=torch.Generator().manual_seed(1))
    counts, blocks = planner.count_workload(ids, 7)
    assert (counts == torch.bincount(ids[ids >= 0], minlength=8)).all()
    assert blocks.sum(0).tolist() == counts.tolist()
    kept, _ = planner.solve_probs(counts, torch.zeros(1, dtype=torch.int32))
    slots = planner.weighted_select_target(ids, kept, blocks, 7)
    assert (slots.dtype, slots.shape) == (ids.dtype, ids.shape)
    assert (planner.phy2log[slots[ids >= 0]] == ids[ids >= 0]).all()
    assert (slots[ids < 0] == -1).all()
    loads = torch.bincount(slots[slots >= 0] // 3, minlength=4)
    exact = route(planner.phy2log.numpy(), counts.numpy()[None].astype(np.int64), 4).loads[0]
    assert loads.max() <= exact.max() + 2  # each rank rounds each expert's share
