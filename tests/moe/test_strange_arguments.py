"""Arguments of any type to the functions of ``evenload.moe``: a right answer or an error that says why."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from strange_values import STRANGE, check

from evenload.balance.flow import ReplicaGraph, Router
from evenload.moe import (
    Cloner,
    Dispatcher,
    FetchCosts,
    Fleet,
    Planner,
    WeightedCopies,
    agree_on,
    clone_experts,
    create_redundant_mapping,
    layer_chunks,
    migration_batches,
    place,
    read_trace,
    rebalance_experts,
    renumber,
    schedule_transfers,
)
from evenload.moe.search.layer_search import Effort
from evenload.moe.topology import lay_out

BRIEF = Effort(n_windows=2, n_made_up=2, n_rounds=1, n_tries=4)
FLEET = Fleet.even(4, 12, n_nodes=2)
LOADS = np.arange(1.0, 17.0).reshape(2, 8)
OLD = np.tile(np.concatenate([np.arange(8), np.arange(4)]), (2, 1))
COPIES = WeightedCopies(OLD, 8, 4)
GRAPH = ReplicaGraph.from_slots(OLD[0], 8, 4)
HOMES = np.arange(8) // 2
CLONES = clone_experts(np.arange(32).reshape(4, 8), HOMES, 1)

CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "rebalance_experts": (
        rebalance_experts,
        {"weight": LOADS, "num_replicas": 12, "num_groups": 2, "num_nodes": 2, "num_gpus": 4},
    ),
    "place": (
        place,
        {"load_windows": LOADS[None], "fleet": FLEET, "objective": "routed", "old": OLD, "node_limit": "base",
         "n_groups": 2, "robust": 0.0, "effort": BRIEF, "seed": 0, "threads": 1},
    ),
    "place to a target": (
        place, {"load_windows": LOADS[None], "fleet": FLEET, "old": OLD, "target": 9.0, "effort": BRIEF},
    ),
    "judge": (place(LOADS[None], FLEET, effort=BRIEF).judge, {"load_windows": LOADS[None]}),
    "schedule_transfers": (
        schedule_transfers,
        {"old": OLD, "new": OLD[:, ::-1], "fleet": FLEET, "expert_bytes": 10, "bytes_per_s": 1e9,
         "node_bytes_per_s": 1e9, "load_bytes_per_s": 1e9, "latency_s": 0.0},
    ),
    "migration_batches": (migration_batches, {"old": OLD, "new": OLD[:, ::-1], "fleet": FLEET}),
    "layer_chunks": (layer_chunks, {"schedule": schedule_transfers(OLD, OLD[:, ::-1], FLEET), "most": 4}),
    "agree_on": (agree_on, {"phy2log": OLD, "group": None}),
    "renumber": (renumber, {"phy2log": OLD, "ranks": [2, 0, -1], "n_slots": 9, "n_ranks": 4}),
    "resize": (
        Planner(OLD[0], 12, 8, 4).resize,
        {"phy2log": OLD[0], "ep_size": 4, "group": None, "nodes": [0, 0, 1, 1], "speeds": [1, 1, 2, 2],
         "dead": ()},
    ),
    "create_redundant_mapping": (
        create_redundant_mapping, {"n_logical": 8, "n_physical": 12, "ep_size": 4, "topology": "ring"},
    ),
    "lay_out": (
        lay_out,
        {"redundant_to_original": create_redundant_mapping(8, 12), "load": LOADS, "n_slots": 12, "ep_size": 4,
         "n_nodes": 1},
    ),
    "from_slots": (
        ReplicaGraph.from_slots,
        {"phy2log": OLD, "n_experts": 8, "n_gpus": 4, "slot2gpu": np.arange(12) // 3, "dead": [1]},
    ),
    "Router": (Router, {"graph": GRAPH, "speeds": [1, 1, 1, 2], "cost": "tokens"}),
    "solve": (Router(GRAPH).solve, {"demands": np.arange(8)}),
    "Dispatcher": (Dispatcher, {"graph": GRAPH, "layer": 0, "rank2gpu": [0, 1, 2, 3], "nodes": [0, 0, 1, 1]}),
    "count": (
        Dispatcher(GRAPH).count, {"ids": [1, -1], "counts": np.zeros(8, np.int64), "mask": [True, False]},
    ),
    "map by shares": (
        Dispatcher(GRAPH).map, {"ids": [3], "shares": np.zeros(12, np.int64), "mask": [False]},
    ),
    "run": (
        Planner(OLD[0], 12, 8, 4).run,
        {"idx": torch.tensor([[1, 2], [0, 0]]), "mask": torch.tensor([True, False])},
    ),
    "dithered_shares": (
        Dispatcher(GRAPH).dithered_shares,
        {"quotas": np.zeros(12, np.int64), "totals": np.zeros(8, int), "own": np.ones(8, int), "rank": 0,
         "n_ranks": 4},
    ),
    "exact_shares": (
        Dispatcher(GRAPH).exact_shares,
        {"quotas": np.zeros(12, np.int64), "counts": np.zeros((4, 8), np.int64), "rank": 0},
    ),
    "Planner": (
        Planner,
        {"redundant_to_original": OLD[0], "n_routed_experts": 12, "n_logical_routed_experts": 8, "ep_size": 4,
         "exchange": "counts", "nodes": [0, 0, 1, 1], "backend": "cpu", "speeds": [1, 1, 2, 2],
         "cost": "tokens", "dead": ()},
    ),
    "WeightedCopies": (
        WeightedCopies, {"phy2log": OLD, "n_experts": 8, "n_gpus": 4, "device": "cpu", "dead": [3]},
    ),
    "refresh": (COPIES.refresh, {"loads": LOADS, "phy2log": OLD, "layers": [0, 1]}),
    "WeightedCopies.map": (
        COPIES.map,
        {"ids": torch.tensor([1, 2, -1]), "layer": 0, "counts": torch.ones(8, dtype=torch.int64),
         "mask": torch.tensor([True, True, False]), "rank": 0, "n_ranks": 2, "sweeps": 1},
    ),
    "clone_experts": (
        clone_experts,
        {"counts": np.arange(8), "homes": HOMES, "spare_slots": [1, 2, 0, 1], "cap": 2, "n_ranks": 4,
         "costs": FetchCosts(1e-6, 1e6, 1e9)},
    ),
    "Cloner": (Cloner, {"homes": HOMES, "spare_slots": 1, "cap": 2, "n_ranks": 5, "costs": None}),
    "plan of clones": (Cloner(HOMES, 1).plan, {"counts": np.arange(8)}),
    "map to clones": (
        CLONES.map, {"ids": np.repeat(np.arange(8), CLONES.counts[2]), "rank": 2, "mask": None},
    ),
    "map by shares of clones": (
        CLONES.dispatch.map, {"ids": [-1], "shares": np.zeros(CLONES.layer.n_slots, int)},
    ),
    "proves": (CLONES.certificate().proves, {"counts": CLONES.totals, "layer": CLONES.layer}),
    "shares of clones": (CLONES.dispatch.shares, {"counts": CLONES.counts, "rank": 1}),
    "FetchCosts": (
        FetchCosts,
        {"token_s": 1e-6, "expert_bytes": 10, "bytes_per_s": 1e9, "node_bytes_per_s": 1e8, "nodes": (0, 1),
         "hidden_s": 0.0},
    ),
    "Fleet": (Fleet, {"slots": (3, 3), "speeds": (1, 2), "nodes": (0, 0), "dead": [0]}),
    "Fleet.even": (Fleet.even, {"n_gpus": 4, "n_slots": 12, "n_nodes": 2, "speeds": (), "dead": ()}),
}  # fmt: skip


def strange_arrays(chance: random.Random) -> list[Any]:
    """Arrays and tensors of one shape drawn at random, of every kind."""
    size = chance.choice([(), (0,), (8,), (2, 8), (1, 2, 8), (2, 12), (12,), (3, 3, 3, 3)])
    return [
        np.zeros(size), np.full(size, np.nan), np.full(size, -1), np.full(size, 2**63, np.uint64),
        np.ones(size, bool), np.zeros(size, complex), np.zeros(size, "datetime64[s]"), np.zeros(size, "U3"),
        np.zeros(size, object), np.zeros(size, [("a", int)]), torch.zeros(size),
        torch.ones(size, requires_grad=True), torch.ones(size, dtype=torch.bfloat16),
        torch.ones(size, dtype=torch.bool), torch.zeros(size, device="meta"), torch.zeros(2, 2).to_sparse(),
        [[1], [2, 3]],
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:target", "ignore:.*masked element", "ignore:.*Sparse")
@pytest.mark.parametrize("name", CALLS)
def test_whatever_is_given_there_is_an_answer_or_a_reason(name: str) -> None:
    function, arguments = CALLS[name]
    function(**arguments)
    for argument in arguments:
        values = [*STRANGE, *strange_arrays(random.Random(f"{name} {argument}"))]
        for at, value in enumerate(values):
            call = f"{name}({argument}=a {type(value).__name__}, the {at}th)"
            check(call, partial(function, **arguments | {argument: value}), lambda _: True)


@pytest.mark.parametrize("argument", ["path", "n_experts", "kind"])
def test_a_trace_is_read_or_refused(argument: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.npy"
    np.save(path, np.argsort(np.random.default_rng(0).random((3, 2, 9)))[..., :4])
    arguments = {"path": path, "n_experts": 9, "kind": "ids"}
    for value in STRANGE:
        call = f"read_trace({argument}=a {type(value).__name__})"
        check(call, partial(read_trace, **arguments | {argument: value}), lambda _: True)
