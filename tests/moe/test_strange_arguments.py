"""Arguments of any type to the functions of ``evenload.moe``: a right answer or an error that says why."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strange_values import STRANGE, check

from evenload.moe import (
    Fleet,
    create_redundant_mapping,
    place,
    read_trace,
    rebalance_experts,
    schedule_transfers,
)

LOADS = np.random.default_rng(0).integers(1, 100, (2, 8))
SLOTS = np.tile(np.arange(12) % 8, (2, 1))
FLEET = Fleet.even(4, 12)
FUNCTIONS: tuple[tuple[Callable[..., Any], dict[str, Any]], ...] = (
    (
        rebalance_experts,
        {"weight": LOADS, "num_replicas": 12, "num_groups": 1, "num_nodes": 1, "num_gpus": 4},
    ),
    (create_redundant_mapping, {"n_logical": 8, "n_physical": 12, "ep_size": None, "topology": "circulant"}),
    (Fleet.even, {"n_gpus": 4, "n_slots": 12, "n_nodes": 1, "speeds": (), "dead": ()}),
    (
        place,
        {
            "load_windows": LOADS, "fleet": FLEET, "objective": "equal", "old": None, "target": None,
            "node_limit": "none", "n_groups": None, "robust": 0.0, "effort": "online", "seed": 0,
            "threads": 1,
        },
    ),
    (
        schedule_transfers,
        {
            "old": SLOTS, "new": SLOTS, "fleet": FLEET, "expert_bytes": 1, "bytes_per_s": 1.0,
            "node_bytes_per_s": None, "load_bytes_per_s": 1.0, "latency_s": 0.0,
        },
    ),
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:.*masked element", "ignore:.*target")


def try_one(seed: int, trace: Path) -> None:
    rng = random.Random(seed)
    reading = (read_trace, {"path": trace, "n_experts": 9, "kind": "ids"})
    function, arguments = rng.choice((*FUNCTIONS, reading))
    name, value = rng.choice(sorted(arguments)), rng.choice(STRANGE)
    call = f"{function.__name__}({name}=a {type(value).__name__}), seed {seed}"
    check(call, lambda: function(**arguments | {name: value}), lambda given: given is not None)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    np.save(tmp_path / "trace.npy", np.argsort(np.random.default_rng(0).random((3, 2, 9)))[..., :4])
    return tmp_path / "trace.npy"


def test_whatever_is_given_there_is_an_answer_or_a_reason(trace: Path) -> None:
    for seed in range(150):
        try_one(seed, trace)


@pytest.mark.slow
def test_whatever_is_given_there_is_an_answer_or_a_reason_at_length(trace: Path) -> None:
    for seed in range(1000, 6000):
        try_one(seed, trace)
