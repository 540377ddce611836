import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenload.clients.step.dropout import KeyedDropout
from evenload.clients.step.dropout import _mix as torch_mix
from evenload.clients.values.batches import plan_batches
from evenload.clients.values.keys import SHUFFLE, client_seed, client_seeds, keys, mix, orders
from evenload.clients.values.recipe import Recipe


def test_the_mixer_is_splitmix64():
    """The first outputs of splitmix64 seeded with 1234567, as its authors publish them."""
    golden = 0x9E3779B97F4A7C15
    state = np.array([(1234567 + i * golden) % 2**64 for i in range(3)], dtype=np.uint64)
    assert mix(state).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_torch_and_numpy_mix_alike(words):
    array = np.array(words, dtype=np.uint64)
    ours = torch_mix(torch.from_numpy(array.view(np.int64).copy()))
    assert ours.numpy().view(np.uint64).tolist() == mix(array).tolist()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), st.integers(0, 4))
def test_a_key_is_the_same_of_numbers_and_of_arrays(parts, at):
    mixed = [np.array([part]) if i >= at else part for i, part in enumerate(parts)]
    assert keys(*parts).tolist() == keys(*mixed).tolist() == keys(np.array(parts[:1]), *parts[1:]).tolist()


@given(st.integers(0, 2**40), st.lists(st.integers(1, 70), min_size=1, max_size=8))
def test_an_order_does_not_depend_on_who_else_is_ordered(seed, sizes):
    own = keys(SHUFFLE, seed, np.arange(len(sizes)))
    together = orders(own, max(sizes), np.array(sizes))
    for line, key_, n in zip(together.tolist(), own, sizes, strict=True):
        assert line[:n] == orders(np.array([key_]), n)[0].tolist()


@given(st.integers(0, 2**40), st.integers(1, 300))
def test_orders_are_permutations_that_differ_between_keys(seed, n):
    two = orders(keys(SHUFFLE, seed, [0, 1]), n)
    assert all(sorted(line) == list(range(n)) for line in two.tolist())
    assert n < 12 or two[0].tolist() != two[1].tolist()


def test_orders_show_every_permutation_equally_often():
    found = orders(keys(1, np.arange(6000)), 3)
    counts = np.unique(found @ [9, 3, 1], return_counts=True)[1]
    assert len(counts) == 6
    assert abs(counts - 1000).max() < 5 * 1000**0.5


@given(st.integers(0, 60), st.integers(1, 9), st.booleans(), st.integers(1, 3))
def test_every_epoch_shows_every_row_once(n, batch, shuffle, epochs):
    (plan,) = plan_batches([n], [4], [Recipe(batch_size=batch, epochs=epochs, shuffle=shuffle)], seed=1)
    seen = [r for line, count in zip(plan.rows, plan.counts, strict=True) for r in line[:count].tolist()]
    assert len(seen) == n * epochs == plan.examples
    for epoch in range(epochs):
        assert sorted(seen[epoch * n : (epoch + 1) * n]) == list(range(n))


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 20))
def test_a_number_of_steps_is_that_many_and_drop_last_leaves_whole_batches(n, batch, steps):
    recipe = Recipe(batch_size=batch, steps=steps, drop_last=True)
    (plan,) = plan_batches([n], [0], [recipe], seed=1)
    assert plan.n_steps == steps
    assert set(plan.counts.tolist()) == {min(n, batch)}


def test_plans_do_not_depend_on_who_else_is_planned():
    recipe = Recipe(batch_size=4, epochs=2)
    together = plan_batches([9, 5, 9, 70, 200], [3, 7, 8, 1, 0], [recipe] * 5, seed=2, round=1)
    alone = plan_batches([9], [8], [recipe], seed=2, round=1)
    assert together[2].rows.tolist() == alone[0].rows.tolist()
    assert together[2].draws.tolist() == alone[0].draws.tolist()
    later = plan_batches([9], [8], [recipe], seed=2, round=2)
    assert later[0].rows.tolist() != alone[0].rows.tolist()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_and_scales_the_rest(p):
    layer = KeyedDropout(p, layer=0).train()
    layer.draw_key.fill_(77)
    out = layer(torch.ones(200, 100))
    assert out.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
    assert (out == 0).double().mean() == pytest.approx(p, abs=0.01)
    assert (out == 0).double().mean(0).std() < 0.05  # no column is favoured


def test_masks_differ_by_key_layer_and_call_and_not_by_padding():
    layer, other = KeyedDropout(0.5, 0).train(), KeyedDropout(0.5, 1).train()
    x = torch.ones(8, 6)
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other(x))
    layer.n_calls = 0
    assert torch.equal(layer(torch.ones(12, 6))[:8], first)
    layer.n_calls = 0
    layer.draw_key.fill_(1)
    assert not torch.equal(layer(x), first)
    assert torch.equal(layer.eval()(x), x)


def test_channel_dropout_drops_whole_channels():
    out = KeyedDropout(0.5, 0, by_channel=True).train()(torch.ones(6, 5, 4, 4))
    per_channel = out.flatten(2).mean(2)
    assert set(per_channel.flatten().tolist()) == {0.0, 2.0}


@given(st.integers(0, 2**63 - 1), st.lists(st.integers(0, 2**62), max_size=5), st.integers(0, 1000))
def test_seeds_of_many_clients_are_each_ones_own(seed, clients, round):
    for of in ("rows", "model"):
        alone = [client_seed(seed, client, round, of=of) for client in clients]
        assert client_seeds(seed, clients, round, of=of) == alone
