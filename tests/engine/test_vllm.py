"""A whole vLLM on this CPU, with two or four expert-parallel ranks, whose experts evenload places.

``make test-engine`` installs it in an environment of its own; elsewhere all of this is skipped. Oracles: the
engine's answers without any balancing, its own policy on the same loads, its own functions on our maps, and
what it logs of its ranks.
"""

import re
import warnings
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.engine_runs import engine_is_here, serve, serve_and_kill

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not engine_is_here(), reason="vLLM's CPU build is not here: make test-engine"),
]
N_RANKS = 2
POLICIES = ["eplb", "search", "weighted"]
BALANCED = [*((moe, "sync", 2) for moe in POLICIES), ("search", "async", 2), ("weighted", "async", 2),
            ("weighted", "sync", 4)]  # fmt: skip


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each run once: ``runs("search", "sync", 2)``."""
    folder = tmp_path_factory.mktemp("engine")

    once = cache(partial(serve, folder))
    return lambda moe, mode="sync", n_ranks=2: once(moe, mode, n_ranks)


def imbalance(loads: np.ndarray, phy2log: np.ndarray) -> np.ndarray:
    """Largest over mean load of two ranks [layers], each expert's tokens split equally over its copies."""
    found = []
    for load, slots in zip(loads, phy2log, strict=True):
        copies = np.bincount(slots, minlength=len(load))
        ranks = (load[slots] / copies[slots]).reshape(N_RANKS, -1).sum(axis=1)
        found.append(ranks.max() / ranks.mean() if ranks.sum() else 1.0)
    return np.array(found)


@pytest.mark.parametrize(("moe", "mode", "n_ranks"), [("off", "sync", 2), *BALANCED])
def test_answers_are_those_without_balancing(moe: str, mode: str, n_ranks: int, runs: Any) -> None:
    """Token for token, in float32: an expert gives the same wherever its copy is."""
    assert runs(moe, mode, n_ranks).answers == runs("off", "none").answers


@pytest.mark.parametrize(("moe", "mode", "n_ranks"), BALANCED)
def test_the_engine_asks_evenload_in_every_rank(moe: str, mode: str, n_ranks: int, runs: Any) -> None:
    run = runs(moe, mode, n_ranks)
    assert len(run.plans) == n_ranks
    assert all(len(rank) == len(run.plans[0]) > 3 for rank in run.plans)
    names = [" ".join(one["policy"]) for rank in run.plans for one in rank]
    assert all("evenload.moe.adapters" in name for name in names)
    routers = [Path(one["router"]).name for rank in run.plans for one in rank]
    assert set(routers) == {"vllm.py" if moe == "weighted" else "vllm_on_cpu.py"}
    for together in zip(*run.plans, strict=True):
        assert all(one["new"] == together[0]["new"] for one in together)
    assert not re.search(
        "UserWarning: (?!resource_tracker)", run.log
    )  # which tells of memory of the engine's own


@pytest.mark.parametrize("moe", POLICIES)
def test_maps_are_what_the_engine_takes(moe: str, runs: Any) -> None:
    """By its own function that makes the logical maps, and by what its scatter does with a -1."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies
        from vllm.distributed.eplb.eplb_state import compute_logical_maps  # pyrefly: ignore

    for one in runs(moe).plans[0]:
        loads, new = np.array(one["loads"]), np.array(one["new"])
        assert new.shape == np.array(one["old"]).shape
        assert (np.sort(np.unique(new)) == np.arange(loads.shape[1])).all()
        phy2log = torch.tensor(one["new"])
        log2phy, counts = compute_logical_maps(phy2log, loads.shape[1])
        assert (counts > 0).all()
        assert int(counts.sum()) == phy2log.numel()
        assert int((log2phy >= 0).sum()) == phy2log.numel()


@pytest.mark.parametrize("moe", ["eplb", "search"])
def test_no_plan_is_worse_than_the_engines_own(moe: str, runs: Any) -> None:
    """On the same loads, for the equal split by which vLLM divides an expert's tokens."""
    for one in runs(moe).plans[0]:
        loads = np.array(one["loads"], float)
        ours, own = imbalance(loads, np.array(one["new"])), imbalance(loads, np.array(one["own"]))
        is_enough = ours <= (1.03 if moe == "search" else 1.0)  # the target to which a map in use is brought
        assert (is_enough | (ours <= own + 1e-9)).all()


@pytest.mark.parametrize("moe", POLICIES)
def test_what_the_engine_recorded_is_no_less_even_afterwards(moe: str, runs: Any) -> None:
    """Its own counts of tokens by rank, over all steps: no worse than with its own policy, by over 3 %."""
    sums = runs(moe).steps.sum(axis=0), runs("off").steps.sum(axis=0)
    assert sums[0][1] / sums[0][0] <= 1.03 * sums[1][1] / sums[1][0]


@pytest.mark.parametrize("moe", ["search", "weighted"])
def test_the_asynchronous_mode_puts_each_plan_to_use(moe: str, runs: Any) -> None:
    """The map that a plan is asked for is the one planned before: it was moved in between, layer by layer."""
    plans = runs(moe, "async").plans[0]
    assert all(later["old"] == one["new"] for one, later in pairwise(plans))


@pytest.mark.parametrize(
    ("moe", "mode"), [("off", "sync"), ("search", "sync"), ("search", "async"), ("weighted", "sync")]
)
def test_a_killed_rank_ends_the_engine(moe: str, mode: str, tmp_path: Path) -> None:
    """As it does without evenload: with an error, and no rank waits for ever in a plan that all agree on."""
    assert serve_and_kill(tmp_path, moe, mode) == 1
