"""Ids to slots: all ranks together fill the quotas, each id goes to a replica of its expert."""

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.balance.flow import ReplicaGraph, Router
from evenload.errors import ConfigError
from evenload.moe.routing.dispatch import Dispatcher


@st.composite
def fleets(draw):
    """(graph, counts [ranks, experts]): rank r is GPU r."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    n_gpus, n_experts = draw(st.integers(1, 8)), draw(st.integers(1, 24))
    n_slots = -(-(n_experts + draw(st.integers(0, 24))) // n_gpus) * n_gpus
    phy2log = rng.permutation(
        np.append(np.arange(n_experts), rng.integers(-1, n_experts, n_slots - n_experts))
    )
    counts = rng.poisson(rng.lognormal(1, 1, n_experts), (n_gpus, n_experts))
    counts[rng.random(n_gpus) < 0.2] = 0
    return ReplicaGraph.from_slots(phy2log, n_experts, n_gpus), counts.astype(np.int64)


def ids_of(counts, rng):
    ids = np.repeat(np.arange(len(counts)), counts)
    return rng.permutation(np.append(ids, [-1, -1]))


@settings(max_examples=examples(80), deadline=None)
@given(fleets(), st.booleans())
def test_all_ranks_together_fill_the_quotas_and_so_realise_the_optimum(fleet, with_nodes):
    graph, counts = fleet
    routing = Router(graph).solve(counts.sum(axis=0))
    quotas = routing.quotas[0]
    nodes = np.arange(graph.n_gpus) // 2 if with_nodes else None
    dispatcher = Dispatcher(graph, nodes=nodes)
    rng = np.random.default_rng(0)
    received = np.zeros(graph.n_slots, np.int64)
    for rank in range(graph.n_gpus):
        ids = ids_of(counts[rank], rng)
        np.testing.assert_array_equal(dispatcher.count(ids), counts[rank])
        slots = dispatcher.map(ids, dispatcher.exact_shares(quotas, counts, rank))
        np.testing.assert_array_equal(slots == -1, ids == -1)
        np.testing.assert_array_equal(graph.phy2log[0, slots[slots >= 0]], ids[ids >= 0])
        received += np.bincount(slots[slots >= 0], minlength=graph.n_slots)
    np.testing.assert_array_equal(received, quotas)
    assert np.bincount(graph.slot2gpu, received, graph.n_gpus).max() == routing.loads.max()


def staying(graph, counts, quotas, dispatcher, nodes):
    """(ids that stay on their GPU, ids that stay in their node)."""
    shares = np.stack([dispatcher.exact_shares(quotas, counts, rank) for rank in range(graph.n_gpus)])
    ranks, gpus = np.arange(graph.n_gpus)[:, None], graph.slot2gpu[None]
    return shares[ranks == gpus].sum(), shares[nodes[ranks] == nodes[gpus]].sum()


@settings(max_examples=examples(40), deadline=None)
@given(fleets())
def test_as_many_ids_stay_near_as_any_dispatch_could_keep(fleet):
    graph, counts = fleet
    quotas = Router(graph).solve(counts.sum(axis=0)).quotas[0].copy()
    nodes = np.arange(graph.n_gpus) // 2
    here, near = staying(graph, counts, quotas, Dispatcher(graph, nodes=nodes), nodes)
    most_here = most_near = 0
    for expert in range(graph.n_experts):
        slots = np.flatnonzero(graph.phy2log[0] == expert)
        room = np.bincount(graph.slot2gpu[slots], quotas[slots], graph.n_gpus)
        most_here += np.minimum(room, counts[:, expert]).sum()
        most_near += np.minimum(np.bincount(nodes, room), np.bincount(nodes, counts[:, expert])).sum()
    assert here == most_here
    assert near == most_near


@settings(max_examples=examples(40), deadline=None)
@given(fleets())
def test_dithered_shares_serve_every_id_and_miss_quotas_by_little(fleet):
    graph, counts = fleet
    totals = counts.sum(axis=0)
    quotas = Router(graph).solve(totals).quotas[0]
    dispatcher = Dispatcher(graph)
    shares = np.stack(
        [dispatcher.dithered_shares(quotas, totals, counts[r], r, graph.n_gpus) for r in range(graph.n_gpus)]
    )
    assert (shares >= 0).all()
    for rank, row in enumerate(shares):
        used = graph.phy2log[0] >= 0
        np.testing.assert_array_equal(
            np.bincount(graph.phy2log[0, used], row[used], graph.n_experts), counts[rank]
        )
    assert np.abs(shares.sum(axis=0) - quotas).max() <= graph.n_gpus


def test_dithered_shares_serve_experts_that_the_quotas_did_not_know():
    graph = ReplicaGraph.from_slots([0, 1, 0, 1], 2, 2)
    shares = Dispatcher(graph).dithered_shares(np.array([4, 0, 4, 0]), [8, 0], [3, 6], 0, 2)
    assert shares.tolist() in ([2, 3, 1, 3], [1, 3, 2, 3])


def test_bad_ids_and_shares_are_refused():
    graph = ReplicaGraph.from_slots([0, 1, 2, 0], 3, 2)
    dispatcher = Dispatcher(graph)
    counts = np.array([[2, 1, 0], [1, 0, 1]])
    quotas = Router(graph).solve(counts.sum(axis=0)).quotas[0]
    for wrong in (3, -2):
        with pytest.raises(ConfigError, match=f"expert id {wrong} of 3"):
            dispatcher.count([0, wrong])
        with pytest.raises(ConfigError, match=f"expert id {wrong} of 3"):
            dispatcher.map([0, wrong], quotas)
    with pytest.raises(ConfigError, match="more ids"):
        dispatcher.map([1, 1, 1], dispatcher.exact_shares(quotas, counts, 0))
    with pytest.raises(ConfigError, match="do not sum"):
        dispatcher.exact_shares(quotas, counts + 1, 0)
    with pytest.raises(ConfigError, match="rank 2 of 2"):
        dispatcher.exact_shares(quotas, counts, 2)
    with pytest.raises(ConfigError, match="rank2gpu"):
        Dispatcher(graph, rank2gpu=[0, 2])
    with pytest.raises(ConfigError, match="nodes"):
        Dispatcher(graph, nodes=[0])
