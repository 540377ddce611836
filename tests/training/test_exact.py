"""``exact=True``: weights are the same bits on any fleet, and those of a plain loop of whole numbers."""

from typing import Any

import pytest

pytest.importorskip("torch")

import exact_ranks
import torch
from torch import nn

import evenload
from evenload.errors import ConfigError
from evenload.training import EvenBatches
from evenload.training.passes.grain_gradient import kernels

KINDS = ["mlp SGD float32", "conv AdamW float32", "attention AdamW float32", "mlp AdamW bfloat16",
         "attention SGD bfloat16", "dropout AdamW float32"]  # fmt: skip
N_SEEDS = 3


@pytest.fixture(scope="module")
def ranks(forked_servers: None) -> list[dict[str, Any]]:
    """What three ranks found in random fleets of one to three of them: they are started once."""
    run = exact_ranks.everything(KINDS, N_SEEDS)
    return evenload.gang(run, devices="cpu*3", timeout_s=500, echo=False)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_the_same_bits_on_every_fleet(ranks: list[dict[str, Any]], kind: str) -> None:
    """Oracle: a plain loop without evenload, whose gradients are summed as Python's whole numbers."""
    assert set(ranks[0][kind]) == {exact_ranks.by_hand(kind)}


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


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"])
def test_ranks_tell_each_other_which_level_of_kernels_was_chosen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gives weights of other bits: ``benchmarks/exact_levels.py``."""
    monkeypatch.delenv(name, raising=False)
    usual = kernels(torch.device("cpu"))
    monkeypatch.setenv(name, "SSE41")
    assert kernels(torch.device("cpu")) != usual
