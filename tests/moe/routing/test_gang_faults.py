"""Random faults on random ranks of a real gang: all ranks raise at the same call, and the next works."""

import numpy as np
import pytest

N_RANKS = 4


@pytest.fixture(scope="module")
def gang(ranks_of):
    return ranks_of("gang_faults", N_RANKS, "7")


def test_all_ranks_raise_at_the_same_call_or_none(gang):
    n_raised = 0
    for steps in zip(*(rank["steps"] for rank in gang), strict=True):
        errors = [step["error"] for step in steps]
        n_raised += errors[0] is not None
        assert len({error is None for error in errors}) == 1, steps
        assert all(error is None or error["class"] == "ConfigError" for error in errors), steps
    assert n_raised > 50


def test_what_is_shifted_is_told_on_every_rank(gang):
    for rank in gang:
        shifted = [step for step in rank["steps"] if step["kind"] == "shift" and step["culprits"]]
        assert shifted
        assert all("different calls" in step["error"]["text"] for step in shifted)


def test_the_next_batch_is_exact_on_every_rank(gang):
    for steps in zip(*(rank["steps"] for rank in gang), strict=True):
        for planner in (0, 2):  # those that exchange counts
            total = np.sum([step["after"][planner] for step in steps], axis=0)
            assert total.sum() == 2 * 3 * sum(range(N_RANKS))
            for step in steps:
                assert step["loads"][planner] == total.reshape(N_RANKS, -1).sum(axis=1).tolist()


def test_a_dead_peer_is_an_error_that_names_the_call(gang):
    for rank in gang[:-1]:
        batch, policy = rank["lost"]
        assert "lost a peer in run" in batch["text"]
        assert "while ranks agreed on a placement" in policy["text"]
        for lost in (batch, policy):
            assert lost["class"] == "PeerLost"
            assert lost["cause"] in ("RuntimeError", "DistBackendError")
