import importlib.util
from pathlib import Path

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.moe import Placement, rebalance_experts
from evenload.moe.placement.bound import equal_split_imbalance, placement_bound
from evenload.moe.placement.rebalance import logical_maps

_spec = importlib.util.spec_from_file_location(
    "eplb_twin", Path(__file__).parents[2] / "reference" / "eplb_twin.py"
)
assert _spec
assert _spec.loader
twin = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(twin)

# The example in EPLB's README: the loads, and the ids its reference gives.
README_LOADS = [
    [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
    [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
]
README_IDS = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]


@st.composite
def instances(draw):
    """Loads of one layer [1, experts], slots, groups, nodes, GPUs: all that the policy takes."""
    n_nodes = draw(st.sampled_from([1, 1, 2, 4]))
    n_groups = n_nodes * draw(st.integers(1, 3))
    n_experts = n_groups * draw(st.integers(1, 8))
    n_gpus = n_nodes * draw(st.integers(1, 8))
    slots_a_gpu = -(-n_experts // n_gpus) + draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["counts", "few counts", "log-normal"]))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    if kind == "log-normal":
        loads = random.lognormal(5, draw(st.sampled_from([0.3, 0.7, 1.5])), (1, n_experts))
    else:
        loads = random.integers(0, 1000 if kind == "counts" else 10, (1, n_experts))
    return loads, slots_a_gpu * n_gpus, n_groups, n_nodes, n_gpus


def test_ids_are_the_references_on_its_readme_example():
    phy2log, log2phy, logcnt = rebalance_experts(README_LOADS, 16, 4, 2, 8)
    assert phy2log.tolist() == README_IDS
    assert logcnt[0].tolist() == [1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1]
    assert log2phy[0, 5].tolist() == [0, 2]
    assert log2phy[0, 0].tolist() == [12, -1]


@settings(max_examples=examples(250), deadline=None)
@given(instances())
def test_a_plan_of_any_shape_is_eplbs_or_has_fewer_twins_and_is_as_even(instance):
    """The three maps agree, groups stay on their node, and no placement is below its bound."""
    loads, n_slots, n_groups, n_nodes, n_gpus = instance
    theirs, ranks, copies = twin.rebalance_layer(loads[0], n_slots, n_groups, n_nodes, n_gpus)
    placement = rebalance_experts(loads, n_slots, n_groups, n_nodes, n_gpus)
    (phy2log,), (log2phy,), (logcnt,) = placement
    n_experts = loads.shape[1]
    twins_are_avoidable = n_slots // n_gpus <= n_experts // (n_nodes if n_groups % n_nodes == 0 else 1)
    if twin.twins(theirs, n_gpus) and twins_are_avoidable and phy2log.tolist() != theirs:
        assert twin.twins(phy2log, n_gpus) < twin.twins(theirs, n_gpus)
    else:
        assert (phy2log.tolist(), logcnt.tolist()) == (theirs, copies)
        assert all(log2phy[e, rank] == slot for slot, (e, rank) in enumerate(zip(theirs, ranks, strict=True)))
    limit = twin.gpu_loads(theirs, loads[0], n_gpus).max()
    assert twin.gpu_loads(phy2log, loads[0], n_gpus).max() <= limit * (1 + 2e-6)
    assert {one.dtype for one in placement} == {np.dtype(np.int64)}
    assert (np.bincount(phy2log, minlength=n_experts) == logcnt).all()
    assert log2phy.shape == (n_experts, logcnt.max())
    for expert, slots in enumerate(log2phy.tolist()):
        assert sorted(s for s in slots if s >= 0) == np.flatnonzero(phy2log == expert).tolist() != []
    node, group = np.arange(n_slots) // (n_slots // n_nodes), phy2log // (n_experts // n_groups)
    assert all(len(set(node[group == g])) == 1 for g in range(n_groups))
    assert (placement.bound <= placement.imbalance * (1 + 1e-9)).all()


@pytest.mark.parametrize("sigma", [0.4, 1.2])
@pytest.mark.parametrize(
    ("n_experts", "n_slots", "n_groups", "n_nodes", "n_gpus"),
    [(64, 80, 1, 1, 16), (64, 80, 2, 2, 16), (64, 72, 1, 1, 8), (256, 288, 8, 4, 32), (128, 160, 4, 4, 32)],
)
def test_balance_is_never_worse_at_real_sizes(n_experts, n_slots, n_groups, n_nodes, n_gpus, sigma):
    loads = np.random.default_rng(1).lognormal(6, sigma, (6, n_experts))
    placement = rebalance_experts(loads, n_slots, n_groups, n_nodes, n_gpus)
    for layer in range(6):
        theirs = twin.rebalance_layer(loads[layer], n_slots, n_groups, n_nodes, n_gpus)[0]
        worst = twin.gpu_loads(theirs, loads[layer], n_gpus).max()
        ours = twin.gpu_loads(placement.phy2log[layer], loads[layer], n_gpus).max()
        assert ours <= worst * (1 + 2e-6)
        assert twin.twins(placement.phy2log[layer], n_gpus) == 0


def test_groups_that_do_not_divide_over_nodes_are_ignored():
    loads = np.random.default_rng(0).integers(1, 100, (2, 12))
    a = rebalance_experts(loads, 16, 3, 2, 8).phy2log
    b = rebalance_experts(loads, 16, 1, 1, 8).phy2log
    assert (a == b).all()


def test_a_gpu_with_more_slots_than_experts_keeps_its_twins():
    phy2log = rebalance_experts([[5, 3]], 6, 1, 1, 2).phy2log
    assert twin.twins(phy2log[0], 2) == 2


def test_tensors_come_back_as_tensors():
    torch = pytest.importorskip("torch")
    loads = torch.tensor(README_LOADS, dtype=torch.bfloat16)
    maps = rebalance_experts(loads.float().to(torch.int32), 16, 4, 2, 8)
    assert all(isinstance(one, torch.Tensor) and one.dtype == torch.int64 for one in maps)
    assert maps.phy2log.tolist() == README_IDS
    assert rebalance_experts(loads, 16, 4, 2, 8)[0].shape == (2, 16)


def test_zeros_negative_zero_and_huge_loads():
    loads = np.array([[0.0, -0.0, 0.0, 0.0], [1e38, 2e38, 5.0, 0.0]])
    placement = rebalance_experts(loads, 8, 1, 1, 4)
    assert placement.imbalance[0] == 1
    assert sorted(set(placement.phy2log[0].tolist())) == [0, 1, 2, 3]
    assert np.isfinite(placement.imbalance).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[1, 2, 3, 4]], 7, 1, 1, 4), "7 slots do not divide over 4 GPUs"),
        (([[1, 2, 3, 4]], 3, 1, 1, 3), "3 slots are too few for 4 experts"),
        (([[1, 2, 3, 4]], 6, 2, 2, 3), "3 GPUs do not divide over 2 nodes"),
        (([[1, 2, 3, 4]], 8, 3, 1, 4), "4 experts do not divide over 3 groups"),
        (([[1, 2, 3, 4]], 8, 1, 1, 0), "0 GPUs"),
        (([[1, -2, 3, 4]], 8, 1, 1, 4), "load -2 of expert 1, layer 0"),
        (([[1, 2, 3, float("nan")]], 8, 1, 1, 4), "load nan of expert 3"),
    ],
)
def test_bad_input_is_refused(arguments, words):
    with pytest.raises(ConfigError) as caught:
        rebalance_experts(*arguments)
    assert words in caught.value.message
    assert caught.value.hint


def test_the_answer_is_a_tuple_with_its_bound():
    import pickle

    placement = rebalance_experts(README_LOADS, 16, 4, 2, 8)
    assert isinstance(placement, tuple)
    assert len(placement) == 3
    again = pickle.loads(pickle.dumps(placement))
    assert isinstance(again, Placement)
    assert (again.phy2log == placement.phy2log).all()
    assert (again.bound <= again.imbalance).all()


def test_the_bound_by_hand():
    # 4 GPUs, 5 slots: the expert of 8 of 10 gets 2 copies at most, so 4 on one GPU; the mean is 2.5.
    assert placement_bound(np.array([[8, 1, 0.5, 0.5]]), 5, 4)[0] == pytest.approx(4 / 2.5)
    assert placement_bound(np.array([[8, 1, 0.5, 0.5]]), 8, 4)[0] == pytest.approx(1.0)
    # A GPU three times as fast takes it alone: 8/3 for each unit of speed; mean 10/6.
    unequal = placement_bound(np.array([[8, 1, 0.5, 0.5]]), 4, 4, np.array([1, 1, 3, 1.0]))
    assert unequal[0] == pytest.approx((8 / 3) / (10 / 6))
    assert np.isinf(placement_bound(np.array([[1, 1]]), 1, 1)[0])
    assert placement_bound(np.zeros((1, 2)), 2, 2)[0] == 1


def test_imbalance_skips_empty_slots():
    phy2log = np.array([[0, -1, 1, 0]])
    assert equal_split_imbalance(phy2log, np.array([[4, 2]]), 2)[0] == pytest.approx(4 / 3)


def test_logical_maps_of_uneven_placements():
    log2phy, logcnt = logical_maps(np.array([[2, -1, 0, 2], [1, 1, 0, -1]]), 3)
    assert logcnt.tolist() == [[1, 0, 2], [1, 2, 0]]
    assert log2phy.tolist() == [[[2, -1], [-1, -1], [0, 3]], [[2, -1], [0, 1], [-1, -1]]]
