import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenload.clients.partition import by_key, dirichlet, iid, quantity_skew, shards, split
from evenload.errors import ConfigError

LABELS = np.random.default_rng(0).integers(0, 10, 2000)


def is_a_deal(parts, n):
    return sorted(np.concatenate(parts).tolist()) == list(range(n))


@given(st.integers(0, 300), st.integers(1, 20), st.integers(0, 5))
def test_iid_deals_every_row_once_and_evenly(n, clients, seed):
    parts = iid(n, clients, seed=seed)
    assert is_a_deal(parts, n)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.sampled_from([0.05, 0.5, 100.0]), st.integers(1, 30), st.integers(0, 5))
def test_dirichlet_and_quantity_skew_deal_every_row_once(alpha, clients, seed):
    assert is_a_deal(dirichlet(LABELS, clients, alpha, seed=seed), len(LABELS))
    sized = quantity_skew(500, clients, alpha, seed=seed)
    assert is_a_deal(sized, 500)
    assert min(map(len, sized)) >= 1


def test_a_small_alpha_is_less_even():
    def skew(alpha):
        shares = [np.bincount(LABELS[p], minlength=10) / max(1, len(p)) for p in dirichlet(LABELS, 20, alpha)]
        return np.mean([s.max() for s in shares])

    assert skew(0.1) > 0.45 > skew(1.0) > 0.2 > skew(1000.0)


def test_shards_hold_few_labels():
    parts = shards(LABELS, 10, 2)
    assert is_a_deal(parts, len(LABELS))
    assert all(len(np.unique(LABELS[p])) <= 4 for p in parts)


def test_natural_keys_are_clients():
    parts = by_key(["b", "a", "b", "c", "a"])
    assert [p.tolist() for p in parts] == [[0, 2], [1, 4], [3]]


def test_a_split_shares_the_tensors():
    x, y = torch.randn(5, 2), torch.arange(5)
    clients = split(x, y, by_key([0, 1, 0, 1, 1]))
    assert all(c.x is x and c.y is y for c in clients)
    assert clients[1].at(np.array([0, 2]))[1].tolist() == [1, 4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: iid(5, 0), "0 clients"),
        (lambda: dirichlet(LABELS, 5, 0.0), "alpha=0.0"),
        (lambda: dirichlet(LABELS[:10], 9, 0.01, least=2), "no deal in 1000"),
        (lambda: shards(LABELS[:5], 5, 2), "do not make"),
        (lambda: quantity_skew(3, 5, 1.0), "3 rows for 5 clients"),
    ],
)
def test_what_cannot_be_dealt_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
