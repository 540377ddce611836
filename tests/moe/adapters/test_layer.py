"""A layer with redundant experts learns what it would learn without."""

import numpy as np
import pytest
import torch

from evenload.errors import ConfigError
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


def fresh(seed):
    planner = Planner(create_redundant_mapping(N_EXPERTS, N_SLOTS), N_SLOTS, N_EXPERTS)
    return MoELayer(WIDTH, 24, N_EXPERTS, 2, planner, seed=seed).double()


def assert_alike(routed, plain):
    """Every copy's gradient is the plain layer's; all have one."""
    torch.testing.assert_close(routed.gate.grad, plain.gate.grad, rtol=1e-9, atol=1e-12)
    for mine, whole in ((routed.w1, plain.w1), (routed.w2, plain.w2)):
        torch.testing.assert_close(mine.grad, whole.grad[routed.phy2log], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_any_course_of_training_is_the_plain_layers(layers, seed):
    """Random steps: backward passes that add up, shapes, empty batches, moves, checkpoints."""
    routed, plain = layers
    random = np.random.default_rng(seed)
    for step in range(12):
        for _ in range(random.integers(1, 4)):
            shape = [(7,), (3, 5), (0,), (2, 0), (2, 2, 3), (1,)][random.integers(6)]
            x = torch.from_numpy(random.normal(size=(*shape, WIDTH)))
            ours, theirs = routed(x), plain(x)
            assert ours.shape == x.shape
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
            passes = int(random.integers(1, 3))
            for layer_out in (ours, theirs):
                for again in range(passes):
                    layer_out.square().sum().backward(retain_graph=again + 1 < passes)
        assert_alike(routed, plain)
        with torch.no_grad():
            for layer in (routed, plain):
                for weight in layer.parameters():
                    weight -= 0.01 * weight.grad
        routed.zero_grad()
        plain.zero_grad()
        change = random.integers(3)
        if change == 0:
            routed.rearrange(random.random(N_EXPERTS))
        elif change == 1:
            kept, routed = routed.state_dict(), fresh(step)
            if random.random() < 0.5:
                routed.rearrange(random.random(N_EXPERTS))
            routed.load_state_dict(kept, assign=bool(random.integers(2)))
        assert torch.equal(routed.phy2log, routed.planner.phy2log)


def test_weights_that_were_not_moved_are_told(layers):
    routed, plain = layers
    routed.planner.update_redundancy_mapping(np.arange(N_EXPERTS))
    with pytest.raises(ConfigError, match="weights were not moved"):
        routed(batch(1))
    with pytest.raises(ConfigError, match="without a planner"):
        plain.rearrange(np.ones(N_EXPERTS))
    with pytest.raises(ConfigError, match=r"shapes \[\(3,\)\] beside 12 slots"):
        fresh(0).rearrange(np.ones(N_EXPERTS), torch.zeros(3))


def test_a_loaded_placement_that_does_not_fit_is_refused():
    planner = fresh(0).planner
    for bad in (None, [0] * N_SLOTS, np.zeros(3, int), np.full(N_SLOTS, 0.5), [99] * N_SLOTS, [[0], [1, 2]]):
        with pytest.raises(ConfigError):
            planner.restore_mapping(bad)
