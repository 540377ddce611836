"""Waits for other ranks do not count as work: two real ranks in a world whose speeds, 1 : 3, are known."""

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

import torch
import training_world
from training_world import BATCH, SEED, N, Net

import evenload
from evenload.errors import ConfigError
from evenload.training.passes.model_checks import watch
from evenload.training.passes.step_clock import HiddenWaits

RIGHT, EQUAL = (3, 9), (6, 6)
SEEN = [
    "no exchange", "buffers", "no broadcast", "metrics", "functional", "compiled", "FSDP2", "SyncBatchNorm",
    "waiting", "accelerate",
]  # fmt: skip


@pytest.fixture(scope="module")
def ranks(forked_servers: None) -> list[dict[str, Any]]:
    return evenload.gang(training_world.everything, devices="cpu*2", timeout_s=500, echo=False)


@pytest.mark.parametrize("what", SEEN)
def test_shares_follow_the_speeds_whatever_ranks_exchange(ranks: list[dict[str, Any]], what: str) -> None:
    """The oracle: planted speeds of 1 : 3, so that 12 samples are 3 and 9."""
    assert [one[what]["shares"] for one in ranks] == [RIGHT, RIGHT]
    assert {sum(both) for both in zip(*(one[what]["counts"] for one in ranks), strict=True)} == {BATCH}


def test_the_world_hides_speeds_from_a_clock_that_goes_on(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["buffers, clock goes on"]["shares"] == EQUAL


def test_a_wait_that_is_not_seen_is_told_once_with_its_rank(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["not seen"]["shares"] == EQUAL
    (text,) = ranks[0]["not seen"]["texts"]
    assert "rank 1 computes in 33% only" in text
    assert "even.waiting()" in text
    assert ranks[1]["not seen"]["texts"] == ranks[0]["waiting"]["texts"] == []
    assert ranks[0]["compiled"]["texts"] == []


def by_one_process(middle: Any = None, *, n_epochs: int = 1, n_accumulated: int = 1) -> dict[str, Any]:
    """The loop of any tutorial, on whole batches in the order of torch's DistributedSampler."""
    model, dataset = Net(middle=middle).double(), training_world.make_dataset()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = torch.utils.data.DistributedSampler(dataset, num_replicas=1, rank=0, seed=SEED)
    loader = torch.utils.data.DataLoader(dataset, BATCH, sampler=sampler)
    for epoch in range(n_epochs):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader, 1):
            (torch.nn.functional.mse_loss(model(x), y) / n_accumulated).backward()
            if number % n_accumulated == 0 or number == len(loader):
                optimizer.step()
                optimizer.zero_grad()
    return model.state_dict()


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = {name.removeprefix("module."): one for name, one in found.items()}
    for name, one in wanted.items():
        if name.rpartition(".")[2] != "num_batches_tracked":
            torch.testing.assert_close(found[name], one, rtol=0, atol=1e-12)


def test_sync_batch_norm_of_unequal_shares_is_batch_norm_of_the_whole_batch(
    ranks: list[dict[str, Any]],
) -> None:
    """torch's own exchange between ranks, over kernels of the test's; the oracle is torch's BatchNorm."""
    wanted = by_one_process(torch.nn.BatchNorm1d(4))
    for one in ranks:
        assert_same(one["SyncBatchNorm"]["state"], wanted)


def test_sync_batch_norm_needs_a_sample_of_every_step_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    assert [one["refused"] for one in ranks] == [ranks[0]["refused"]] * 2
    assert "use drop_last=True" in ranks[0]["refused"]
    model = torch.nn.Sequential(torch.nn.SyncBatchNorm(4))
    watch(model, list, list, is_last_full=True)
    with pytest.raises(ConfigError, match="SyncBatchNorm would be off"):
        watch(model, list, list, is_last_full=False)


def test_accelerate_steps_where_its_own_loader_would(ranks: list[dict[str, Any]]) -> None:
    """The oracles: when accelerate steps with a loader that it prepared, and a loop of plain torch."""
    assert N // BATCH % 2 == 1, "an epoch ends in the middle of an accumulation"
    for one in ranks:
        is_step, is_plain_step = one["accelerate"]["steps"]
        assert is_step == is_plain_step
        assert_same(one["accelerate"]["state"], by_one_process(n_epochs=2, n_accumulated=2))


def test_what_looks_like_a_wait_has_to_last() -> None:
    """Pure: equal seconds of which one rank computes in a third; any step that speaks against it ends it."""
    waits = [((6, 6), (1.0, 1.0), (1.0, 0.3))] * 5
    for against in (
        ((3, 9), (1.0, 1.0), (1.0, 0.3)),
        ((6, 6), (1.0, 1.3), (1.0, 0.3)),
        ((6, 6), (1.0, 1.0), (1.0, 0.9)),
        ((6, 6), (1.0, 1.0), (0.3, 0.3)),
        ((6, 6), (1.0, 0.0), (1.0, 0.3)),
        ((6, 6), (1.0, 1.0), (float("nan"), float("nan"))),
    ):
        judge = HiddenWaits()
        assert [judge.observe(*one) for one in (*waits, against, *waits)] == [""] * 11
        assert "rank 1" in judge.observe(*waits[0])
        assert judge.observe(*waits[0]) == "", "once"
