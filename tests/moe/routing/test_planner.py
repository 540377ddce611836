"""The Planner: every id served, loads equal to the certificate."""

import copy
import pickle

import numpy as np
import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.moe import Cloner, renumber
from evenload.moe.routing.planner import Planner
from evenload.moe.topology import create_redundant_mapping, cube

SHAPES = [(8, 12, 512), (16, 24, 1024), (32, 48, 2048)]


def gate(n_experts, n_tokens, top_k=2, seed=0):
    rng = np.random.default_rng(seed)
    odds = rng.dirichlet(np.full(n_experts, 0.7))
    return torch.from_numpy(rng.choice(n_experts, (n_tokens, top_k), p=odds))


def received(planner, slots):
    return np.bincount(slots[slots >= 0].numpy().reshape(-1), minlength=planner.n_routed_experts)


def rank_loads(planner, slots):
    return received(planner, slots).reshape(planner.ep_size, -1).sum(axis=1)


@pytest.mark.parametrize(("n_logical", "n_physical", "n_tokens"), SHAPES)
def test_realised_loads_are_the_certificate(n_logical, n_physical, n_tokens):
    planner = Planner(create_redundant_mapping(n_logical, n_physical), n_physical, n_logical)
    for seed in range(5):
        idx = gate(n_logical, n_tokens, seed=seed)
        counter = torch.zeros(n_physical)
        slots = planner.run(idx, counter)
        assert slots.dtype == idx.dtype
        assert torch.equal(planner.phy2log[slots], idx)
        loads = rank_loads(planner, slots)
        np.testing.assert_array_equal(loads, planner.loads)
        np.testing.assert_array_equal(counter.numpy(), received(planner, slots))
        certificate = planner.certificate()
        counts = np.bincount(idx.numpy().reshape(-1), minlength=n_logical)
        assert certificate.peak == loads.max()
        assert certificate.proves(planner.graph, 0, counts)


def test_the_interface_of_lplb_as_its_readme_uses_it():
    r2o = torch.from_numpy(cube())
    planner = Planner(r2o, 256 + 2 * 32, 256, ep_size=32)
    load = torch.randint(1, 1000, (256,))
    phy2log, log2phy, logcnt = planner.update_redundancy_mapping(load)
    assert phy2log.shape == (320,)
    assert log2phy.shape == (256, 2)
    assert logcnt.sum() == 320
    for expert in (0, 77, 255):
        mine = log2phy[expert][log2phy[expert] >= 0]
        assert len(mine) == logcnt[expert]
        assert (phy2log[mine] == expert).all()
    copied = load[logcnt == 2].float().mean()
    assert copied > load[logcnt == 1].float().mean()
    counter = torch.zeros(1, dtype=torch.int64)
    idx = torch.randint(-1, 256, (4096, 8))
    slots = planner.run(idx, counter, 100)
    assert counter.item() == planner.n_group == 4
    assert torch.equal(slots == -1, idx == -1)
    assert torch.equal(phy2log[slots[slots >= 0]], idx[idx >= 0])


def test_speeds_and_dead_ranks():
    planner = Planner([0, 1, 0, 2, 0, 1], 6, 3, ep_size=3, speeds=[1, 1, 2])
    planner.run(torch.tensor([0] * 80))
    assert planner.loads.tolist() == [20, 20, 40]
    planner = Planner([0, 1, 0, 2, 0, 1], 6, 3, ep_size=3, dead=[1])
    out = planner.run(torch.tensor([0] * 80))
    assert planner.loads.tolist() == [40, 0, 40]
    assert not ((out == 2) | (out == 3)).any()
    with pytest.raises(ConfigError, match=r"experts \[2\]"):
        planner.run(torch.tensor([2]))


def test_known_counts_route_without_an_exchange():
    planner = Planner(create_redundant_mapping(8, 12), 12, 8)
    idx = gate(8, 512)
    counts = torch.bincount(idx.view(-1), minlength=8)
    plan = planner.run_with_stats(counts)
    slots = plan.apply(idx)
    assert torch.equal(planner.phy2log[slots], idx)
    np.testing.assert_array_equal(received(planner, slots), plan.quotas)
    assert plan.certificate.peak == rank_loads(planner, slots).max()
    by_rank = torch.stack([counts, *([torch.zeros_like(counts)] * 3)])
    np.testing.assert_array_equal(received(planner, planner.run_with_stats(by_rank).apply(idx)), plan.quotas)
    later = gate(8, 512, seed=1)  # an older batch's plan still serves every id of a new one
    assert torch.equal(planner.phy2log[plan.apply(later)], later)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Planner(create_redundant_mapping(8, 12), 13, 8), "do not suit"),
        (lambda: Planner([0, 1, 2, 0], 4, 3), "how many ranks"),
        (lambda: Planner([0, 1, 2], 4, 3, ep_size=2), "redundant_to_original has shape"),
        (lambda: Planner([0, 1, 1, 0], 4, 3, ep_size=2), "no slot"),
        (lambda: Planner([0, 1, 2, 3], 4, 3, ep_size=2), "names expert 3"),
        (lambda: Planner([0, 1, 2, 0], 4, 3, ep_size=3), "do not divide"),
        (lambda: small().run(torch.tensor([3])), "expert id 3 of 3"),
        (lambda: small().run(torch.tensor([0]), torch.zeros(3)), "avail_counter"),
        (lambda: small().run_with_stats([1, 2, -1]), "demand -1"),
        (lambda: small().update_redundancy_mapping([1.0, -2.0, 1.0]), "load"),
        (lambda: small().run_with_stats(np.full(3, 2**62)), "a count of"),
        (lambda: small().run_with_stats(np.full((4, 3), 2**62)), "a count of"),
    ],
)
def test_what_does_not_fit_is_refused(call, says):
    with pytest.raises(ConfigError, match=says):
        call()


def small():
    return Planner([0, 1, 2, 0], 4, 3, ep_size=2)


class Buffer:
    """What of a DeepEP buffer is read."""

    def __init__(self, group):
        self.group = group


def test_a_buffer_without_a_group_is_refused():
    for call in (small().init_from_deep_ep, lambda buffer: Planner.from_deep_ep(buffer, 3)):
        for buffer in (object(), Buffer(None)):
            with pytest.raises(ConfigError, match="without a group"):
                call(buffer)


@pytest.fixture
def buffer(tmp_path):
    """A buffer over a group of this process alone."""
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield Buffer(dist.group.WORLD)
    dist.destroy_process_group()


def test_a_planner_is_made_from_a_deep_ep_buffer_alone(buffer):
    planner = Planner.from_deep_ep(buffer, 3)
    plan = planner.run_with_stats(torch.tensor([5.0, 0.0, 3.0]))
    assert plan.loads.tolist() == [8]
    ids = torch.tensor([0] * 5 + [2] * 3)
    assert torch.equal(planner.phy2log[plan.apply(ids)], ids)
    assert torch.equal(planner.phy2log[planner.run(ids)], ids)


def test_a_deep_ep_buffer_with_sizes(buffer):
    planner = Planner.from_deep_ep(buffer, 3, 4, [0, 1, 2, 0])
    assert planner.run_with_stats([1, 2, 3]).loads.tolist() == [6]
    planner.init_from_deep_ep(buffer)
    assert planner.run(torch.tensor([1])).tolist() == [1]
    with pytest.raises(ConfigError, match="1 ranks in the group, 2 by ep_size"):
        small().init_from_deep_ep(buffer)


def test_a_planner_goes_on_over_another_fleet():
    planner = Planner([0, 1, 2, 3, 0, 1], 6, 4, 3, speeds=[1, 1, 2])
    ids = torch.arange(4).repeat(30)
    joined = renumber(planner.phy2log, [2, 0, -1, 1], 8, n_ranks=3)
    assert joined.tolist() == [[0, 1, 0, 1, -1, -1, 2, 3]]
    phy2log, log2phy, logcnt = planner.resize(np.where(joined[0] < 0, [0, 0, 0, 0, 2, 3, 0, 0], joined[0]), 4)
    assert (planner.ep_size, planner.n_routed_experts, len(log2phy), int(logcnt.sum())) == (4, 8, 4, 8)
    assert torch.equal(phy2log[planner.run(ids)], ids)
    assert planner.loads.tolist() == [30] * 4
    for wrong in ([0, 1, 2], [[1], [2, 3]], np.zeros(8, int), "slots"):
        with pytest.raises(ConfigError):
            planner.resize(wrong, 4)
        assert torch.equal(planner.phy2log[planner.run(ids)], ids)
    planner.resize([0, 1, 2, 3], 2, dead=())
    assert planner.loads.tolist() == [0, 0]
    assert torch.equal(planner.run(ids), ids)


@settings(max_examples=examples(20), deadline=None)
@given(
    st.integers(0, 10**9),
    st.sampled_from([copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]),
)
def test_a_copy_routes_and_clones_as_the_original_and_by_itself(seed, copied):
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
