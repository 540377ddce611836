"""Padding told by a mask is padding told by ids of -1, wherever ids are taken, whatever their dtype."""

import numpy as np
import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.balance.flow import ReplicaGraph
from evenload.errors import ConfigError
from evenload.moe import Dispatcher, Planner, WeightedCopies, clone_experts
from evenload.moe.adapters.layer import MoELayer

N_EXPERTS, N_SLOTS, N_RANKS = 8, 12, 4
SLOTS = np.concatenate([np.arange(8), np.arange(4)])
PLANNER = Planner(SLOTS, N_SLOTS, N_EXPERTS, N_RANKS)
COPIES = WeightedCopies(SLOTS, N_EXPERTS, N_RANKS)
NAMES = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def by_planner(ids, mask, counts):
    return PLANNER.run(ids, mask=mask)


def by_known_counts(ids, mask, counts):
    return PLANNER.run_with_stats(np.arange(1, 9) * 5).apply(ids, mask=mask)


def by_dispatcher(ids, mask, counts):
    dispatcher = Dispatcher(ReplicaGraph.from_slots(SLOTS, N_EXPERTS, N_RANKS))
    np.testing.assert_array_equal(dispatcher.count(ids, mask=mask), counts)
    quotas = np.concatenate([counts, np.zeros(4, np.int64)])
    return dispatcher.map(ids, dispatcher.dithered_shares(quotas, counts, counts, 0, 1), mask=mask)


def by_clones(ids, mask, counts):
    return clone_experts(counts, np.arange(8) // 2, 1).map(ids, mask=mask)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([(0,), (7,), (0, 2), (9, 2), (2, 3, 2)]),
    st.sampled_from(NAMES),
    st.booleans(),
    st.booleans(),
)
def test_a_mask_is_the_same_as_ids_of_none(seed, shape, dtype, is_tensor, is_by_row):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, N_EXPERTS, shape).astype(dtype)
    is_by_row = is_by_row and len(shape) > 1
    mask = rng.random(shape[:-1] if is_by_row else shape) < rng.choice([0.0, 0.6, 1.0])
    expected = np.where(mask[..., None] if is_by_row else mask, ids.astype(np.int64), -1)
    counts = np.bincount(expected[expected >= 0], minlength=N_EXPERTS)
    if is_tensor:
        ids, mask = torch.from_numpy(ids), torch.from_numpy(mask)
    for call in (by_planner, by_known_counts, by_dispatcher, by_clones):
        found = call(ids, mask, counts)
        assert isinstance(found, torch.Tensor) == is_tensor
        assert str(found.dtype).removeprefix("torch.") == ("int32" if dtype == "int32" else "int64")
        np.testing.assert_array_equal(np.asarray(found), call(expected, None, counts))
        plain = call(torch.from_numpy(expected).to(torch.int32), None, counts)
        np.testing.assert_array_equal(np.asarray(found), plain.numpy())


def test_rows_mask_weighted_copies_too():
    rng = np.random.default_rng(3)
    ids, rows = torch.from_numpy(rng.integers(0, 8, (40, 2))), torch.from_numpy(rng.random(40) < 0.5)
    slots = COPIES.map(ids, mask=rows)
    assert (slots == COPIES.map(ids, mask=rows[:, None].expand(40, 2))).all()
    assert (torch.from_numpy(SLOTS)[slots] == ids).all()  # padding has slots, too


@pytest.mark.parametrize("planner", [None, PLANNER])
def test_padding_passes_no_expert_of_a_layer(planner):
    layer, x = MoELayer(6, 5, N_EXPERTS, 2, planner), torch.randn(9, 6, requires_grad=True)
    mask = torch.arange(9) % 3 != 0
    alone = layer(x[mask])
    out = layer(x, mask)
    torch.testing.assert_close(out[mask], alone)
    assert not out[~mask].any()
    assert int(layer.loads().sum()) == 2 * int(mask.sum())
    out.sum().backward()
    assert not x.grad[~mask].any()
    x = torch.where(mask[:, None], x.detach(), torch.nan).requires_grad_()  # as memory nobody wrote may hold
    layer.zero_grad()
    layer(x, mask.tolist()).sum().backward()
    assert all(torch.isfinite(one).all() for one in (layer.gate.grad, layer.w1.grad, x.grad))
    for wrong in (mask[:3], mask.reshape(3, 3), mask.float(), "mask", 3):
        with pytest.raises(ConfigError, match="mask"):
            layer(x, wrong)
