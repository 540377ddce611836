"""Copies by weights: a slow twin, and what no batch may break."""

import numpy as np
import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from evenload.errors import ConfigError
from evenload.moe import WeightedCopies
from evenload.moe.routing.weighted_copies import (
    GOLDEN,
    MOST_TOKENS,
    ONE,
    RELIEF_ONE,
    LayerWeights,
    choose_slots,
)

N_EXPERTS, N_GPUS, N_SLOTS = 8, 4, 16


def random_placement(random, n_layers=1):
    """[layers, slots] each expert at least once, some slots empty, some experts twice on a GPU."""
    rows = [np.concatenate([np.arange(N_EXPERTS), random.integers(-1, N_EXPERTS, N_SLOTS - N_EXPERTS)])]
    return np.stack([random.permutation(rows[0]) for _ in range(n_layers)])


def twin(ids, weights, counts, mask, rank, n_ranks, sweeps):
    """``choose_slots`` as its docstrings say it, one number at a time."""
    expert, share, relief = (one.tolist() for one in (weights.expert, weights.share, weights.relief))
    n_gpus, n_slots = weights.n_gpus, len(expert)
    width = n_slots // n_gpus
    own = [
        sum(1 for e, counted in zip(ids, mask, strict=True) if e == i and counted) for i in range(N_EXPERTS)
    ]
    total = [max(0, one) for one in (*(own if counts is None else counts), 0)]
    total = [one // (max(total) // MOST_TOKENS + 1) for one in total]
    tokens = [total[e] * s for e, s in zip(expert, share, strict=True)]
    for _ in range(sweeps):
        load = [sum(tokens[g * width : (g + 1) * width]) for g in range(n_gpus)]
        excess = [(one - sum(load) // n_gpus) // 256 for one in load]
        moved = [
            sum(r * x for r, x in zip(row, excess, strict=True)) // (RELIEF_ONE // 256) for row in relief
        ]
        tokens = [max(0, t - m) for t, m in zip(tokens, moved, strict=True)]
        sums = [
            max(1, sum(t for t, e in zip(tokens, expert, strict=True) if e == i)) for i in range(N_EXPERTS)
        ]
        tokens = [
            t * (total[e] * (ONE << 12) // sums[e]) >> 12 if e < N_EXPERTS else 0
            for t, e in zip(tokens, expert, strict=True)
        ]
    left = [sum(t for t, e in zip(tokens, expert, strict=True) if e == i) for i in range(N_EXPERTS + 1)]
    tokens = [t if left[e] > 0 else s for t, e, s in zip(tokens, expert, share, strict=True)]
    out = []
    for at, e in enumerate(ids):
        if not 0 <= e < N_EXPERTS:
            out.append(-1)
            continue
        slots = [slot for slot in range(n_slots) if expert[slot] == e]
        if not mask[at]:
            out.append(slots[at % len(slots)])
            continue
        before = sum(1 for j in range(at) if ids[j] == e and mask[j])
        if rank is None:
            first = next(j for j in range(len(ids)) if ids[j] == e and mask[j])
            threshold = ((first + 1) * GOLDEN + e * 26545) % ONE
        else:
            threshold = (2 * ((rank + e * GOLDEN) % n_ranks) + 1) * ONE // (2 * n_ranks)
        whole = sum(tokens[slot] for slot in slots)
        below = 0
        for slot in slots:
            below += tokens[slot]
            if (below * own[e] + (threshold * whole >> 16)) // max(whole, 1) > before:
                out.append(slot)
                break
    return out


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 60), st.booleans(), st.booleans(), st.booleans())
def test_the_slots_are_the_twins(seed, n_ids, is_masked, is_counted, is_ranked):
    random = np.random.default_rng(seed)
    phy2log = random_placement(random)[0]
    lonely = {e for e in range(N_EXPERTS) if set(np.flatnonzero(phy2log == e) // 4) == {1}}
    copies = WeightedCopies(phy2log, N_EXPERTS, N_GPUS, dead=() if lonely else (1,))
    copies.refresh(random.lognormal(3, 1, (1, N_EXPERTS)) * random.integers(0, 2, N_EXPERTS))
    ids = random.choice(N_EXPERTS + 2, n_ids) - 1
    mask = random.random(n_ids) < 0.7 if is_masked else np.ones(n_ids, bool)
    counts = None
    if is_counted:
        counts = np.bincount(ids[(ids >= 0) & (ids < N_EXPERTS)], minlength=N_EXPERTS)
        counts += counts_of_others(random)
    rank, n_ranks = (int(random.integers(3)), 3) if is_ranked else (None, 1)
    sweeps = int(random.integers(4))
    slots = copies.map(
        torch.from_numpy(ids), rank=rank, n_ranks=n_ranks, sweeps=sweeps,
        mask=torch.from_numpy(mask) if is_masked else None,
        counts=None if counts is None else torch.from_numpy(counts),
    )  # fmt: skip
    expected = twin(
        ids.tolist(),
        copies.layer(0),
        None if counts is None else counts.tolist(),
        mask,
        rank,
        n_ranks,
        sweeps,
    )
    assert slots.tolist() == expected
    is_expert = (ids >= 0) & (ids < N_EXPERTS)
    assert (phy2log[slots[is_expert]] == ids[is_expert]).all()
    assert lonely or not (slots[is_expert] // 4 == 1).any()


def counts_of_others(random):
    """[experts] few, many, very different, or wrong: what others say is not ours to trust."""
    most = random.choice([9, 10**6, 2**33, 2**62])
    return np.rint(most ** random.random(N_EXPERTS)).astype(np.int64) * random.integers(-1, 2, N_EXPERTS)


def test_rounding_of_ranks_cancels():
    """Each of 16 ranks has two ids of each expert: no rank can follow the shares, all together can."""
    random = np.random.default_rng(3)
    copies = WeightedCopies(random_placement(random), N_EXPERTS, N_GPUS)
    copies.refresh(random.lognormal(3, 1, (1, N_EXPERTS)))
    ids = torch.arange(N_EXPERTS).repeat(2)
    got = sum(
        np.bincount(copies.map(ids, rank=rank, n_ranks=16, sweeps=0).numpy(), minlength=N_SLOTS)
        for rank in range(16)
    )
    assert np.abs(got - copies.layer(0).share.numpy() / ONE * 32).max() <= 1.01


@pytest.mark.parametrize("n_ids", [64, 4096])
def test_a_sweep_evens_out_what_the_window_did_not_foresee(n_ids):
    random = np.random.default_rng(1)
    slots = np.concatenate([np.arange(64).reshape(16, 4), (np.arange(16)[:, None] * 4 + 4) % 64], axis=1)
    copies = WeightedCopies(slots.reshape(-1), 64, 16)
    copies.refresh(np.ones((1, 64)))
    ids = torch.from_numpy(random.choice(64, n_ids * 8))

    def peak(sweeps):
        found = np.bincount(copies.map(ids, sweeps=sweeps).numpy() // 5, minlength=16)
        return found.max() / found.mean()

    assert peak(2) < 1 + 0.35 * (peak(0) - 1)


def test_nothing_waits_for_a_device():
    """A fake tensor has no values: whatever would read one on the host raises."""
    copies = WeightedCopies(random_placement(np.random.default_rng(0)), N_EXPERTS, N_GPUS)
    layer, ids = copies.layer(0), torch.zeros((6, 2), dtype=torch.int32)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [
            mode.from_tensor(getattr(layer, name)) for name in ("expert", "order", "first", "share", "relief")
        ]
        weights = LayerWeights(*fake, n_gpus=N_GPUS)
        for counts, mask, rank in (
            (None, None, None),
            (fake[2][:-1], mode.from_tensor(ids > 0), 1),
        ):
            slots = choose_slots(
                mode.from_tensor(ids), weights, counts=counts, mask=mask, rank=rank, n_ranks=2, sweeps=2
            )
            assert (slots.shape, slots.dtype) == (ids.shape, torch.int32)


@pytest.mark.slow
def test_it_can_be_compiled_and_refreshed_afterwards():
    random = np.random.default_rng(2)
    copies = WeightedCopies(random_placement(random), N_EXPERTS, N_GPUS)
    compiled = torch.compile(lambda ids: copies.map(ids, sweeps=2), backend="eager", fullgraph=True)
    for _ in range(3):
        ids = torch.from_numpy(random.integers(-1, N_EXPERTS, (20, 2)))
        assert (compiled(ids) == copies.map(ids)).all()
        copies.refresh(random.lognormal(3, 1, (1, N_EXPERTS)), random_placement(random))


def test_a_refresh_is_in_place_and_may_be_of_some_layers():
    random = np.random.default_rng(4)
    placed, moved = random_placement(random, 3), random_placement(random, 3)
    loads = random.lognormal(3, 1, (3, N_EXPERTS))
    copies = WeightedCopies(placed, N_EXPERTS, N_GPUS)
    layers = [copies.layer(i) for i in range(3)]
    where = [one.share.data_ptr() for one in layers]
    before = [[t.clone() for t in (one.expert, one.share, one.relief)] for one in layers]
    copies.refresh(loads, moved, layers=[2])
    assert [copies.layer(i).share.data_ptr() for i in range(3)] == where
    whole = WeightedCopies(moved, N_EXPERTS, N_GPUS)
    whole.refresh(loads)
    for i, layer in enumerate(layers):
        kept = [
            torch.equal(a, b)
            for a, b in zip(before[i], (layer.expert, layer.share, layer.relief), strict=True)
        ]
        assert all(kept) if i < 2 else not all(kept)
    for name in ("expert", "order", "first", "share", "relief"):
        assert torch.equal(getattr(layers[2], name), getattr(whole.layer(2), name))
    copies.refresh(loads)  # each layer where it is now
    assert torch.equal(copies.layer(2).share, whole.layer(2).share)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint32, torch.int32])
def test_slots_that_the_ids_dtype_cannot_hold_are_held(dtype):
    phy2log = np.arange(320) % 100
    ids = torch.arange(100).repeat(4)
    slots = WeightedCopies(phy2log, 100, 8).map(torch.cat([ids, torch.tensor([120])]).to(dtype))
    assert slots[-1] == -1
    assert slots.max() > 255
    assert (phy2log[slots[:-1].numpy()] == ids.numpy()).all()


def test_loads_of_any_size_are_weights():
    placed = random_placement(np.random.default_rng(0))
    shares = []
    for scale in (1.0, 1e12, 1e300, 1e-7, 1e-200):
        copies = WeightedCopies(placed, N_EXPERTS, N_GPUS)
        copies.refresh(np.arange(1.0, N_EXPERTS + 1)[None] * 1000 * scale)
        shares.append(copies.layer(0).share / ONE)
        sums = torch.zeros(N_EXPERTS + 1).scatter_add_(0, copies.layer(0).expert, shares[-1])
        assert sums[:-1].tolist() == [1.0] * N_EXPERTS
    loads = [np.bincount(np.arange(16) // 4, (s * 1).numpy()) for s in shares]
    for of_scale in loads:
        assert np.allclose(of_scale, loads[1], atol=2e-2)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"phy2log": np.arange(7)}, "as many slots"),
        ({"n_experts": 9}, "expert"),
        ({"dead": [1]}, "expert 2 on dead GPUs only"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, why):
    with pytest.raises(ConfigError, match=why):
        WeightedCopies(**{"phy2log": np.arange(8), "n_experts": 8, "n_gpus": 4} | arguments)


def test_loads_and_ids_that_do_not_fit_are_refused():
    copies = WeightedCopies(np.arange(8), 8, 4)
    with pytest.raises(ConfigError, match="finite loads"):
        copies.refresh(-np.ones((1, 8)))
    with pytest.raises(ConfigError, match="make new weights"):
        copies.refresh(np.ones((1, 8)), np.arange(12) % 8)
    with pytest.raises(ConfigError, match="mask"):
        copies.map(torch.ones(3, dtype=torch.int64), mask=torch.ones(2, dtype=torch.bool))
