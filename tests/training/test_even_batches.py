"""Three real ranks: whatever their shares, gradients are those of the whole batch in one process."""

import random
from typing import Any

import pytest

pytest.importorskip("torch")

import training_ranks

import evenload
from evenload import certificate
from evenload.balance.claim import text_of
from evenload.report.certificates import run_certificate
from evenload.training import EvenBatches
from evenload.training.rank_group import late

KINDS = ["mean", "prefetched", "sum", "tokens", "micro", "FSDP2", "FSDP2 micro"]
N_STEPS, BATCH, N = 8, 16, 50


@pytest.fixture(scope="module")
def ranks(forked_servers: None) -> list[dict[str, Any]]:
    """What three ranks found: they are started once for all tests."""
    return evenload.gang(training_ranks.everything, devices="cpu*3", timeout_s=500, echo=False)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_the_whole_batch(ranks: list[dict[str, Any]], kind: str) -> None:
    assert max(one[kind]["worst"] for one in ranks) < 1e-12
    steps = list(zip(*(one[kind]["counts"] for one in ranks), strict=True))
    assert [sum(counts) for counts in steps] == [16, 16, 16, 2] * 2, "each sample once"
    assert len({counts for counts in steps if sum(counts) == BATCH}) > 1, "shares have changed"
    assert steps[0] in ((6, 5, 5), (6, 6, 4))


def test_all_ranks_know_the_same(ranks: list[dict[str, Any]]) -> None:
    for kind in KINDS:
        assert ranks[0][kind]["last"] == ranks[1][kind]["last"] == ranks[2][kind]["last"]
    number, counts, seconds, shares = ranks[0]["real"]
    assert all(one["real"] == ranks[0]["real"] for one in ranks)
    assert number == 2
    assert sum(counts) == sum(shares) == BATCH
    assert all(one > 0 for one in seconds)


def test_a_step_and_a_run_can_be_certified(ranks: list[dict[str, Any]]) -> None:
    for page in (ranks[0]["mean"]["certificate"], run_certificate(ranks[0]["mean"]["events"])):
        achieved, bound = certificate.check(certificate.parse(text_of(page).encode()))
        assert 0 < bound <= achieved
    assert ranks[1]["mean"]["events"] == [], "rank 0 writes"


def test_what_is_refused_is_refused_alike_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    assert len(ranks[0]["refusals"]) > 20
    for says, said in ranks[0]["refusals"]:
        assert says in said
    assert ranks[0]["refusals"] == ranks[1]["refusals"] == ranks[2]["refusals"]


def test_a_rank_that_does_not_come_is_named(ranks: list[dict[str, Any]]) -> None:
    for one in ranks[:2]:
        assert "PeerLost" in one["does not come"]
        assert "2" in one["does not come"].partition(" did not make")[0]


def test_a_rank_that_stalls_is_named_while_the_others_wait(ranks: list[dict[str, Any]]) -> None:
    for one in ranks[:2]:
        assert "2" in one["stalled"].split(" | ")[-1].partition(" not done with step 0")[0]
    assert late([True, False, True]) == "rank 1 is"
    assert late([False, False]) == "ranks 0, 1 are"
    assert late([True]) == ""


@pytest.mark.parametrize("n_done", range(N_STEPS))
def test_another_number_of_ranks_goes_on_in_the_middle_of_an_epoch(
    ranks: list[dict[str, Any]], n_done: int
) -> None:
    state = ranks[n_done % 3]["mean"]["states"][n_done]
    even = EvenBatches(training_ranks.make_dataset(), global_batch=BATCH, seed=5)
    even.load_state_dict(state)
    wanted = [training_ranks.order_of(0), training_ranks.order_of(1), training_ranks.order_of(2)]
    epoch, done = divmod(n_done + 1, 4)
    assert [one for batch in even for one in batch] == wanted[epoch][done * BATCH :]


def test_a_state_of_strangers_is_refused() -> None:
    even = EvenBatches(list(range(50)), global_batch=BATCH)
    good = even.state_dict()
    bad = [{}, None, [], {**good, "version": 2}, {**good, "epoch": -1}, {**good, "n_trained": 51}]
    bad += [{**good, "n_trained": "many"}, {**good, "costs": [["a", 1]]}, {**good, "n_samples": 49}]
    for state in bad:
        with pytest.raises(evenload.errors.ConfigError):
            even.load_state_dict(state)  # type: ignore[arg-type]
    even.load_state_dict({**good, "costs": [None, [0.0, 1.0]]})


def test_epochs_follow_one_another_when_they_are_trained() -> None:
    import torch

    even = EvenBatches(list(range(20)), global_batch=8, drop_last=True, seed=3)
    weight = torch.nn.Parameter(torch.ones(()))
    seen = []
    for _ in range(3):
        seen.append([])
        for batch in even:
            seen[-1] += batch
            even.scale(weight * len(batch)).backward()
    assert len({tuple(one) for one in seen}) == 3
    assert all(len(set(one)) == 16 for one in seen)
    even.set_epoch(1)
    assert [one for batch in even for one in batch] == seen[1]
    assert len(even) == even.n_steps == 2
    with pytest.raises(TypeError, match="n_steps"):
        len(EvenBatches(list(range(20)), global_batch=8, micro_batch=2))


@pytest.mark.parametrize("seed", range(6))
def test_epochs_that_are_left_early_skipped_in_or_resumed_have_each_sample_once(seed: int) -> None:
    import torch

    chance, weight = random.Random(seed), torch.nn.Parameter(torch.ones(()))
    even = EvenBatches(list(range(N)), global_batch=BATCH, seed=5)
    epoch, at = 0, 0
    for _ in range(20):
        if chance.random() < 0.3:
            even.set_epoch(epoch)
        taken: list[int] = []
        n_most = chance.choice([0, 1, 2, 9])
        for number, batch in enumerate(even):
            if number == n_most:
                break
            taken += batch
            if chance.random() < 0.3:
                even.skip()
            else:
                even.scale(weight * 1.0).backward()
        assert taken == training_ranks.order_of(epoch)[at:][: n_most * BATCH]
        at += len(taken)
        if is_resumed := chance.random() < 0.5:
            state = even.state_dict()
            even = EvenBatches(list(range(N)), global_batch=BATCH, seed=5)
            even.load_state_dict(state)
        if at == N or (taken and not is_resumed):
            epoch, at = epoch + 1, 0


def test_two_losses_of_one_batch_and_a_batch_that_is_left_out() -> None:
    import torch

    even = EvenBatches(list(range(8)), global_batch=2, shuffle=False)
    weight = torch.nn.Parameter(torch.ones(()))
    done = []
    for number, batch in enumerate(even):
        if number == 1:
            even.skip()
            continue
        (even.scale(weight * 2) + even.scale(weight * 3)).backward()
        done.append(batch)
    assert done == [[0, 1], [4, 5], [6, 7]]
    with pytest.raises(evenload.errors.ConfigError, match="no batch to train"):
        even.scale(weight)
    assert even.last is not None


def test_micro_batches_have_to_be_trained_in_steps() -> None:
    import torch

    even = EvenBatches(list(range(8)), global_batch=4, micro_batch=3 - 1, shuffle=False)
    weight = torch.nn.Parameter(torch.ones(()))
    for batch in even:
        assert len(batch) == 2
        with pytest.raises(evenload.errors.ConfigError, match=r"even\.steps"):
            even.scale(weight)
        break
    with pytest.raises(evenload.errors.ConfigError, match="was not trained"):
        list(map(list, even.steps(even, None)))
    for step in (steps := even.steps(even, None)):
        next(step)
        even.scale(weight * 1.0).backward()
        with pytest.raises(evenload.errors.ConfigError, match="before its last"):
            next(steps)
