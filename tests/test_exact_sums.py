"""Sums of tensors: the same bits in any order and over any ranks, and those of whole numbers."""

import random
from fractions import Fraction

import pytest

pytest.importorskip("torch")

import torch

from evenload._exact_sums import ExactSums
from evenload.errors import ConfigError


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("seed", range(10))
def test_sums_are_those_of_whole_numbers_in_any_order(seed: int, dtype: str) -> None:
    """Oracle: Python's whole numbers of steps of 2^-64."""
    drawn, made = random.Random(seed), torch.Generator().manual_seed(seed)
    n_terms, n = drawn.randint(1, 40), drawn.choice([1, 7, 33])
    sizes = torch.pow(2.0, torch.randint(-70, 18, (n_terms, n), generator=made).double())
    terms = (torch.randn(n_terms, n, generator=made) * sizes).to(getattr(torch, dtype))
    wholes = [[round(Fraction(one) * 2**64) for one in term.tolist()] for term in terms]
    expected = torch.tensor([sum(row) / 2**64 for row in zip(*wholes, strict=True)], dtype=torch.float64)
    parts = [ExactSums([terms[0]], n_terms) for _ in range(drawn.randint(1, 4))]
    for term in drawn.sample(list(terms), n_terms):
        drawn.choice(parts).add([term])
    drawn.shuffle(parts)
    for one in parts[1:]:
        parts[0].buffer += one.buffer
    again = ExactSums([terms[0]], n_terms)
    for term in terms:
        again.add([term])
    assert torch.equal(again.buffer, parts[0].buffer)
    (found,) = parts[0].values()
    assert torch.equal(found, expected.to(terms.dtype))


@pytest.mark.parametrize("seed", range(10))
def test_many_tensors_are_added_as_if_each_were_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: Python's exact fractions; tensors lie across blocks, are empty, missing or of unequal types."""
    drawn, made = random.Random(seed), torch.Generator().manual_seed(seed)
    monkeypatch.setattr("evenload._exact_sums.BLOCK", drawn.randint(1, 9))
    types = [torch.float32, torch.bfloat16, torch.float64]
    like = [torch.zeros(drawn.randint(0, 12), dtype=drawn.choice(types)) for _ in range(drawn.randint(1, 9))]
    terms = [[torch.randn(one.shape, generator=made).to(one.dtype) for one in like] for _ in range(4)]
    given = [[one if drawn.random() < 0.8 else None for one in term] for term in terms]
    sums = ExactSums(like, 4)
    for term in given:
        sums.add(term)
    for at, (one, found) in enumerate(zip(like, sums.values(), strict=True)):
        there = [term[at].double().tolist() for term in given if term[at] is not None]
        wholes = [sum(round(Fraction(x) * 2**64) for x in column) for column in zip(*there, strict=True)]
        expected = torch.tensor([whole / 2**64 for whole in wholes], dtype=torch.float64).to(one.dtype)
        assert found is None if not there and len(one) else torch.equal(found, expected)


def test_sums_that_are_carried_hold_more_terms() -> None:
    """Oracle: Python's whole numbers; without a carry the steps of 2^-64 have no room beyond 16384 terms."""
    term, n_terms = [torch.tensor([2.0**-25 - 2.0**-64, 3.0, -(2.0**-63)], dtype=torch.float64)], 16_500
    sums = ExactSums(term, 8192)
    for at in range(n_terms):
        sums.add(term)
        if at % 8192 == 8191:
            sums.carry()
    expected = [n_terms * int(one * 2.0**64) / 2**64 for one in term[0].tolist()]
    assert sums.values()[0].tolist() == expected


def test_what_is_not_finite_or_too_large_is_inf_and_what_was_never_given_is_none() -> None:
    like = [torch.zeros(2), torch.zeros(3), torch.zeros(1)]
    for wrong in (float("nan"), float("inf"), 1e9):
        sums = ExactSums(like, 4)
        sums.add([torch.tensor([1.0, wrong]), torch.ones(3), None])
        first, second, third = sums.values()
        assert first.isinf().all()
        assert second.tolist() == [1.0] * 3
        assert third is None
    with pytest.raises(ConfigError, match="more than the 8192"):
        ExactSums(like, 10_000)
    with pytest.raises(ConfigError, match="int64"):
        ExactSums([torch.zeros(2, dtype=torch.int64)], 2)
