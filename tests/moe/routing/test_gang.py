"""A gang of real processes: loads equal to the certificate, and faults that all ranks raise or none."""

import numpy as np
import pytest

N_RANKS = 4


@pytest.fixture(scope="module")
def gang(ranks_of):
    """What four processes found, rank by rank."""
    return ranks_of("gang_rank", N_RANKS, "7")


def test_a_gang_realises_the_certified_optimum(gang):
    for step in range(5):
        ranks = [found["exact"][step] for found in gang]
        total = np.sum([rank["received"] for rank in ranks], axis=0)
        loads = total.reshape(4, -1).sum(axis=1)
        for rank in ranks:  # every rank worked out the same
            assert rank["loads"] == loads.tolist()
            assert rank["counter"] == total.tolist()
            assert rank["peak"] == loads.max()
            assert rank["load"] > (rank["peak"] - 1) * len(rank["gpus"])


def test_a_gang_that_only_sums_comes_close(gang):
    for step in range(3):
        ranks = [found["sums"][step] for found in gang]
        total = np.sum([rank["received"] for rank in ranks], axis=0)
        assert total.sum() == sum(ranks[0]["loads"])
        assert total.reshape(4, -1).sum(axis=1).max() <= ranks[0]["peak"] + 2 * 4


@pytest.mark.parametrize(
    ("what", "culprit_says", "others_say"),
    [
        ("bad id", "expert id 99 of 16", "ranks [2] were given what is refused"),
        ("widths", "widths: [2, 4]", "widths: [2, 4]"),
        ("widths, sums", "different widths", "different widths"),
        ("placement", "differ in redundant_to_original", "differ in redundant_to_original"),
    ],
)
def test_a_gang_refuses_together_and_goes_on(gang, what, culprit_says, others_say):
    culprit = 2
    for rank, found in enumerate(gang):
        assert (culprit_says if rank == culprit else others_say) in found["errors"][what]
    assert all(found["after"]["peak"] > 0 for found in gang)


def test_a_gang_agrees_on_one_placement(gang):
    for found in gang:
        assert [np.unique(one).tolist() for one in found["agreed"]] == [[7], [0], [6]]
        assert "give whole numbers" in found["errors"]["agreement"]
        assert (
            "placements of shapes [[2, 3], [2, 3], [2, 4], [2, 3]]" in found["errors"]["agreement of shapes"]
        )
        assert 0 < found["resized"] < 28
        assert found["engines"] == gang[0]["engines"]  # whose loads and so whose plans differed
        assert found["elastic"] == [found["engines"][0], [[5] * 3] * 2]


def test_policies_of_engines_refuse_together_whoever_fails(gang):
    for rank, found in enumerate(gang):
        said = "finite" if rank == 2 else "ranks [2] have no placement"
        assert [said in one for one in found["failing engines"]] == [True, True], found["failing engines"]
        assert sum(found["elastic planner"]["loads"]) > 0
        said, n_wrong = found["failing layer"]
        assert (("mask" if rank == 2 else "ranks [2] were given what is refused") in said, n_wrong) == (
            True,
            0,
        )


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
