"""A layer with redundant experts learns what it would learn without."""

import numpy as np
import pytest
import torch

from evenload.moe import Planner, create_redundant_mapping
from evenload.moe.adapters.layer import MoELayer

N_EXPERTS, N_SLOTS, WIDTH = 8, 12, 16


@pytest.fixture
def layers():
    torch.manual_seed(0)
    planner = Planner(create_redundant_mapping(N_EXPERTS, N_SLOTS), N_SLOTS, N_EXPERTS)
    routed = MoELayer(WIDTH, 24, N_EXPERTS, 2, planner, seed=5).double()
    plain = MoELayer(WIDTH, 24, N_EXPERTS, 2, seed=5).double()
    return routed, plain


def batch(seed):
    return torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_same_outputs(layers):
    routed, plain = layers
    torch.testing.assert_close(routed(batch(1)), plain(batch(1)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(plain(batch(1)[:0]), torch.empty(0, WIDTH, dtype=torch.float64))


def test_ids_go_where_the_planner_sends_them_and_ranks_are_even(layers):
    routed, plain = layers
    routed(batch(1))
    plain(batch(1))
    assert (routed.phy2log[routed.slots] == plain.slots).all()
    assert routed.loads().max() == routed.planner.loads.max()
    assert routed.loads().sum() == plain.loads().sum() == 128


def train(layer, n_steps, optimizer, rearrange_at=()):
    losses = []
    for step in range(n_steps):
        x = batch(step)
        loss = (layer(x) - x.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step in rearrange_at:
            load = np.bincount(layer.phy2log[layer.slots].reshape(-1), minlength=N_EXPERTS)
            moments = [
                optimizer.state[w][key] for w in (layer.w1, layer.w2) for key in ("exp_avg", "exp_avg_sq")
            ]
            layer.rearrange(load, *moments)
    return losses


@pytest.mark.parametrize("rearrange_at", [(), (3, 7)])
def test_training_loses_nothing_even_when_experts_move(layers, rearrange_at):
    routed, plain = layers
    ours = train(routed, 12, torch.optim.Adam(routed.parameters(), 1e-2), rearrange_at)
    theirs = train(plain, 12, torch.optim.Adam(plain.parameters(), 1e-2))
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert ours[-1] < ours[0]
    for weight, whole in ((routed.w1, plain.w1), (routed.w2, plain.w2)):
        torch.testing.assert_close(weight, whole[routed.phy2log], rtol=1e-7, atol=1e-9)


def test_copies_stay_alike(layers):
    routed, _ = layers
    train(routed, 6, torch.optim.SGD(routed.parameters(), 0.1))
    for expert in range(N_EXPERTS):
        copies = routed.w1[routed.phy2log == expert]
        assert (copies == copies[0]).all()
