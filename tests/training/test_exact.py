"""``exact=True``: weights are the same bits on any fleet, and those of a plain loop of whole numbers."""

from fractions import Fraction
from typing import Any

import pytest

pytest.importorskip("torch")

import exact_ranks
import torch
from exact_ranks import BATCH, GRAIN, N_STEPS, N
from torch import nn

import evenload
from evenload.errors import ConfigError
from evenload.training import EvenBatches
from evenload.training.passes.grain_gradient import digest_of

KINDS = ["mlp SGD float32", "conv AdamW float32", "attention AdamW float32", "mlp AdamW bfloat16",
         "attention SGD bfloat16", "dropout AdamW float32"]  # fmt: skip
N_SEEDS = 3


@pytest.fixture(scope="module")
def ranks(forked_servers: None) -> list[dict[str, Any]]:
    """What three ranks found in random fleets of one to three of them: they are started once."""
    run = exact_ranks.everything(KINDS, N_SEEDS)
    return evenload.gang(run, devices="cpu*3", timeout_s=500, echo=False)


def by_hand(kind: str) -> str:
    """Train in a plain loop without evenload, last grain first; gradients are summed as whole numbers."""
    model, optimizer = exact_ranks.make(kind)
    dataset, step, epoch = exact_ranks.make_dataset(kind), 0, 0
    parameters = list(model.parameters())
    while step < N_STEPS:
        order = torch.randperm(N, generator=torch.Generator().manual_seed(7 + epoch))
        for batch in order.split(BATCH)[: N_STEPS - step]:
            total = int(exact_ranks.n_tokens(batch).sum())
            sums = [[0] * one.numel() for one in parameters]
            for grain in reversed(batch.split(GRAIN)):
                loss = exact_ranks.loss_sum(model, *dataset[grain]) * (1 / total)
                for at, gradient in enumerate(torch.autograd.grad(loss, parameters)):
                    for i, one in enumerate(gradient.flatten().tolist()):
                        sums[at][i] += round(Fraction(one) * 2**64)
            for one, numbers in zip(parameters, sums, strict=True):
                exact = [number / 2**64 for number in numbers]  # Python rounds a quotient once
                one.grad = torch.tensor(exact, dtype=torch.float64).to(one.dtype).view_as(one)
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
            exact_ranks.set_rate(optimizer, step)
            step += 1
        epoch += 1
    return digest_of(model)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_the_same_bits_on_every_fleet(ranks: list[dict[str, Any]], kind: str) -> None:
    """Oracle: a plain loop without evenload, whose gradients are summed as Python's whole numbers.

    Dropout draws by grain: there fleets are held against each other, and the rank that was in all of them.
    """
    found = set(ranks[0][kind])
    assert len(found) == 1
    if not kind.startswith("dropout"):
        torch.set_num_threads(1)
        assert found == {by_hand(kind)}


def test_what_cannot_be_exact_is_refused() -> None:
    dataset = exact_ranks.make_dataset("mlp SGD float32")
    for options, says in [
        ({}, "exact=True without micro_batch"),
        ({"micro_batch": 4, "most": 3}, "less than a grain of 4"),
    ]:
        with pytest.raises(ConfigError, match=says):
            EvenBatches(dataset, global_batch=12, exact=True, **options)
    even = EvenBatches(dataset, global_batch=12, micro_batch=2, exact=True)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=even)
    normed = nn.Sequential(nn.Linear(20, 5), nn.BatchNorm1d(5))
    x, y, _ = next(next(even.steps(loader, normed)))
    loss = nn.functional.cross_entropy(normed(x), y)
    even._is_stepping = True
    with pytest.raises(ConfigError, match="BatchNorm"):
        even.scale(loss)
    with pytest.raises(ConfigError, match="whole gradients"):
        next(even.steps(loader, lambda x: x))
