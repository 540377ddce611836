import dataclasses
import importlib.util
import sys

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.moe import (
    Fleet,
    MigrationFlow,
    layer_chunks,
    migration_batches,
    place,
    renumber,
    schedule_transfers,
)
from evenload.moe.search.transfers import keep_slots


@st.composite
def changes(draw):
    """(old, new [layers, slots], fleet): placements without twins, old ones perhaps on GPUs that are dead
    now.
    """
    n_gpus, width = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    n_layers = draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    n_experts = int(random.integers(width, n_gpus * width + 1))
    dead = (
        frozenset(np.flatnonzero(random.random(n_gpus) < 0.15).tolist())
        if draw(st.booleans())
        else frozenset()
    )
    living = [g for g in range(n_gpus) if g not in dead]
    if len(living) * width < n_experts:
        dead, living = frozenset(), list(range(n_gpus))

    def placement(gpus):
        slots = np.full((n_gpus, width), -1)
        for expert in random.permutation(n_experts):  # a first copy each, then whatever fits
            free = [g for g in gpus if (slots[g] < 0).any()]
            gpu = free[random.integers(len(free))]
            slots[gpu, np.flatnonzero(slots[gpu] < 0)[0]] = expert
        for gpu in gpus:
            for j in np.flatnonzero(slots[gpu] < 0):
                rest = sorted(set(range(n_experts)) - set(slots[gpu].tolist()))
                if rest and random.random() < 0.8:
                    slots[gpu, j] = rest[random.integers(len(rest))]
        return slots.reshape(-1)

    old = np.stack([placement(list(range(n_gpus))) for _ in range(n_layers)])
    new = np.stack([placement(living) for _ in range(n_layers)])
    return old, new, Fleet.even(n_gpus, n_gpus * width, dead=tuple(dead))


def experts_by_gpu(phy2log, fleet):
    return [[set(gpu) - {-1} for gpu in row.reshape(fleet.n_gpus, -1).tolist()] for row in phy2log]


def carry_out(old, fleet, schedule):
    """Do what the schedule says, batch by batch, and hold every promise of the module's first lines."""
    held, goal = experts_by_gpu(old, fleet), experts_by_gpu(schedule.phy2log, fleet)
    for layer in held:
        for gpu in fleet.dead:
            layer[gpu] = set()
    for batch in schedule.batches:
        assert batch
        senders = [t.source for t in batch if t.source >= 0]
        receivers = [t.target for t in batch]
        assert len(set(senders)) == len(senders)
        assert len(set(receivers)) == len(receivers)
        for t in batch:
            if t.source >= 0:
                assert t.expert in held[t.layer][t.source]
            else:
                assert not any(t.expert in gpu for gpu in held[t.layer])
            assert schedule.phy2log[t.layer, t.slot] == t.expert
            assert t.slot // fleet.width == t.target
            assert t.target not in fleet.dead
        for t in batch:
            assert t.expert not in held[t.layer][t.target]
            held[t.layer][t.target].add(t.expert)
        drop_what_is_safe(held, goal)
        for layer in held:
            assert all(len(gpu) <= n for gpu, n in zip(layer, fleet.slots, strict=True))
    drop_what_is_safe(held, goal)
    assert held == goal


def drop_what_is_safe(held, goal):
    for layer, wanted in zip(held, goal, strict=True):
        for gpu, goal_of_gpu in zip(layer, wanted, strict=True):
            for expert in gpu - goal_of_gpu:
                at_home = any(
                    expert in have and expert in want for have, want in zip(layer, wanted, strict=True)
                )
                if at_home or not any(expert in want for want in wanted):
                    gpu.discard(expert)


@settings(max_examples=examples(200), deadline=None)
@given(changes())
def test_batches_carried_out_in_order_lead_to_the_new_placement(change):
    old, new, fleet = change
    schedule = schedule_transfers(old, new, fleet)
    assert experts_by_gpu(schedule.phy2log, fleet) == experts_by_gpu(new, fleet)
    carry_out(old, fleet, schedule)
    lacking = sum(
        len(goal - (set() if gpu in fleet.dead else has))
        for has_layer, goal_layer in zip(experts_by_gpu(old, fleet), experts_by_gpu(new, fleet), strict=True)
        for gpu, (has, goal) in enumerate(zip(has_layer, goal_layer, strict=True))
    )
    assert len(schedule.transfers) == lacking
    assert len(schedule.batches) >= schedule.fewest_batches


@settings(max_examples=examples(100), deadline=None)
@given(changes())
def test_experts_that_stay_keep_their_slots(change):
    old, new, fleet = change
    kept = keep_slots(old, new, fleet.n_gpus)
    for before, asked, after in zip(
        old.reshape(-1, fleet.width), new.reshape(-1, fleet.width), kept.reshape(-1, fleet.width), strict=True
    ):
        assert sorted(asked) == sorted(after)
        for j, expert in enumerate(before):
            if expert >= 0 and expert in asked:
                assert after[j] == expert


def test_bytes_and_seconds():
    fleet = Fleet.even(4, 4, n_nodes=2)
    options = {"expert_bytes": 1000, "bytes_per_s": 100.0, "node_bytes_per_s": 1000.0, "latency_s": 0.5}
    inside = schedule_transfers([[0, 1, 2, 3]], [[1, 0, 2, 3]], fleet, **options)
    assert (inside.bytes, inside.seconds) == (2000, 1.5)
    across = schedule_transfers([[0, 1, 2, 3]], [[2, 1, 0, 3]], fleet, **options)
    assert (across.bytes, across.seconds) == (2000, 10.5)
    assert across.moved_share == 0.5


def test_shapes_must_fit():
    with pytest.raises(ConfigError, match="for 3 GPUs of 1 slots"):
        schedule_transfers([[0, 1]], [[0, 1]], Fleet.even(3, 3))


# In the engines' forms


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32))
def test_batches_of_flows_move_what_the_schedule_moves(seed):
    random = np.random.default_rng(seed)
    old, new = (random.permuted(np.tile(np.arange(18) % 12, (3, 1)), axis=1) for _ in range(2))
    schedule = schedule_transfers(old, new, Fleet.even(6, 18))
    layers = migration_batches(old, new, Fleet.even(6, 18))
    moved = set()
    for layer, batches in enumerate(layers):
        for batch in batches:
            ends = [rank for flow in batch for rank in (flow.src_rank, flow.dst_rank)]
            assert len(ends) == len(set(ends))
            for flow in batch:
                for expert in flow.expert_ids:
                    moved.add((layer, expert, flow.dst_rank))
                    assert expert in old[layer].reshape(6, 3)[flow.src_rank]
    assert moved == {(t.layer, t.expert, t.target) for t in schedule.transfers}
    chunks = layer_chunks(schedule, 9)
    flat = [layer for chunk in chunks for layer in chunk]
    n = np.bincount([t.layer for t in schedule.transfers], minlength=3)
    assert flat == np.flatnonzero(n).tolist()
    assert all(n[chunk].sum() <= 9 or len(chunk) == 1 for chunk in chunks)


def test_vllm_has_the_same_forms(peer_source):
    """Its own scheduler, from its file: the same flows are needed, in about as many batches."""
    spec = importlib.util.spec_from_file_location(
        "vllm_migration", peer_source("vllm", "distributed/eplb/migration_scheduler.py")
    )
    theirs = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = theirs
    spec.loader.exec_module(theirs)
    names = {"src_rank", "dst_rank", "expert_ids"}
    assert {one.name for one in dataclasses.fields(theirs.MigrationFlow)} == names
    assert {one.name for one in dataclasses.fields(MigrationFlow)} == names
    random = np.random.default_rng(0)
    old, new = (random.permuted(np.tile(np.arange(80) % 64, (4, 1)), axis=1) for _ in range(2))
    mine = migration_batches(old, new, Fleet.even(16, 80))
    other = theirs.schedule_migration_batches_for_layers(5, old, new)
    assert sum(map(len, mine)) <= 1.25 * sum(map(len, other))


def test_a_rank_that_joins_is_planned_with_few_fetches():
    random = np.random.default_rng(0)
    loads = random.lognormal(3, 0.6, (8, 2, 12))
    old = place(loads, Fleet.even(4, 16)).phy2log
    seen = renumber(old, [0, 1, 2, 3, -1], 20, n_ranks=4)
    fleet = Fleet.even(5, 20)
    new = place(loads, fleet, old=seen, target=1.1)
    fresh = place(loads, fleet)
    fetched = [len(schedule_transfers(seen, plan.phy2log, fleet).transfers) for plan in (new, fresh)]
    assert fetched[0] <= fetched[1]
    assert fetched[0] < 20
    left = renumber(old, [3, 1, 0], 15, n_ranks=4)
    assert (left.reshape(2, 3, 5)[:, 0, :4] == old.reshape(2, 4, 4)[:, 3]).all()
    narrow = renumber(old, [0, 1, 2, 3, -1, -1], 18, n_ranks=4)
    for layer in range(2):
        assert set(narrow[layer]) - {-1} <= set(old[layer])


@pytest.mark.parametrize("ranks", [[0, 0], [4], [], [0.5], [-2]])
def test_ranks_that_cannot_be_are_refused(ranks):
    with pytest.raises(ConfigError):
        renumber(np.arange(8), ranks, 8, n_ranks=4)
