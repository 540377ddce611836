"""One rank of a gang, started by test_gang_faults.py: random faults on random ranks, call after call."""

import json
import os
import sys
import types

import numpy as np
import torch
import torch.distributed as dist

from evenload.errors import EvenloadError
from evenload.moe.adapters import lplb, vllm
from evenload.moe.routing.planner import Planner
from evenload.moe.topology import circulant

N_EXPERTS, N_SLOTS, N_RANKS = 12, 16, 4
PLACEMENT = [0, 1, 2, 3, 4, 5, 6, 0, 7, 8, 9, 0, 10, 11, 1, 2]
BAD_IDS = [
    None, "ids", 7.5, [[0, 1], [2]], object(), [None], {"a": 1}, np.array([0.5]), np.array(["a"]),
    np.array([True]),
    np.array([None]), torch.tensor([0.5]), torch.tensor([0.0], requires_grad=True),
    torch.zeros(3, dtype=torch.bfloat16), torch.tensor([99]), torch.tensor([-2]), torch.tensor([True]),
    torch.zeros((3, 5), dtype=torch.int64), torch.full((2, 2), 2**62), np.array([2**63], np.uint64),
    torch.zeros(4, dtype=torch.int64).to_sparse(),
]  # fmt: skip
BAD_COUNTERS = [
    7, "counter", torch.zeros(3), torch.zeros(1, dtype=torch.bool), torch.zeros(N_SLOTS, dtype=torch.uint8),
    torch.zeros(1, requires_grad=True), torch.zeros((N_SLOTS, 2))[:, 0], np.zeros(N_SLOTS, "U3"), [0],
]  # fmt: skip
BAD_LOADS = [
    "load", [1.0, 2.0], np.full(N_EXPERTS, np.nan), np.full(N_EXPERTS, -1.0), [[1], [2, 3]], object(), 5,
    torch.zeros(N_EXPERTS, requires_grad=True) - 1, np.array([None] * N_EXPERTS),
]  # fmt: skip
BAD_COUNTS = [
    None,
    "counts",
    torch.ones(3),
    np.full(N_EXPERTS, 0.5),
    [[1], [2, 3]],
    np.full(N_EXPERTS, 1 << 40),
]


BAD_MASKS = ["mask", [True], np.array([0.5]), torch.ones(99, dtype=torch.bool), torch.ones(2, 2), object()]


def ids_of(rank, step):
    return torch.from_numpy(np.random.default_rng([rank, step]).integers(0, N_EXPERTS, (rank * 3, 2)))


def call(planner, kind, rank, step, fault):
    """Do one call; ``fault`` chooses what is wrong with it, None if nothing is."""
    if kind == "run":
        wrong, counter, mask = ids_of(rank, step), None, None
        if fault is not None and fault < len(BAD_IDS):
            wrong = BAD_IDS[fault]
        elif fault is not None and fault < len(BAD_IDS) + len(BAD_COUNTERS):
            counter = BAD_COUNTERS[fault - len(BAD_IDS)]
        elif fault is not None:
            mask = BAD_MASKS[fault - len(BAD_IDS) - len(BAD_COUNTERS)]
        planner.run(wrong, counter, mask=mask)
    elif kind == "load":
        planner.update_redundancy_mapping(np.arange(N_EXPERTS) if fault is None else BAD_LOADS[fault])
    elif kind == "counts":
        planner.solve_probs(
            torch.ones(N_EXPERTS, dtype=torch.int64) if fault is None else BAD_COUNTS[fault], torch.zeros(1)
        )
    elif kind == "shift" and fault is not None:
        planner.update_redundancy_mapping(np.arange(N_EXPERTS))
    elif kind == "shift":
        planner.run(ids_of(rank, step))
    else:
        given = [PLACEMENT, N_SLOTS, N_EXPERTS, None]
        if fault is not None:
            given[fault % 4] = [None, "4", [[0], [1, 2]], 2.5, True][fault // 4]
        Planner(*given[:3], ep_size=given[3], group=dist.group.WORLD)


N_FAULTS = {
    "run": len(BAD_IDS) + len(BAD_COUNTERS) + len(BAD_MASKS), "load": len(BAD_LOADS),
    "counts": len(BAD_COUNTS), "shift": 1, "make": 20,
}  # fmt: skip


def outcome(do):
    try:
        do()
    except EvenloadError as error:
        return {"class": type(error).__name__, "text": str(error), "cause": type(error.__cause__).__name__}
    except BaseException as error:
        return {"class": f"raw {type(error).__name__}", "text": str(error)}
    return None


def exact_batch(planner, rank, step):
    """[slots] ids that this rank sent, or the error."""
    ids = ids_of(rank, step)
    slots = planner.run(ids)
    assert torch.equal(planner.phy2log[slots], ids)
    return np.bincount(slots.reshape(-1).numpy(), minlength=planner.n_routed_experts).tolist()


def main(rank, n_ranks, store, result, seed):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n_ranks)
    group, random, steps = dist.group.WORLD, np.random.default_rng(seed), []  # the same draws on every rank
    planners = [
        Planner(PLACEMENT, N_SLOTS, N_EXPERTS, group=group),
        Planner(PLACEMENT, N_SLOTS, N_EXPERTS, group=group, exchange="sums"),
        lplb.Planner(circulant(n_ranks, [1]), 16, 12, group=group),
    ]
    for step in range(120):
        which = int(random.integers(3))
        kinds = ["run", "load", "shift", "make"] + ["counts"] * (which == 2)
        kind = kinds[random.integers(len(kinds))]
        culprits = np.flatnonzero(random.random(n_ranks) < 0.3)
        if kind == "shift":  # not all: then none would be at another call
            culprits = culprits[: n_ranks - 1]
        faults = random.integers(0, N_FAULTS[kind], n_ranks)
        fault = int(faults[rank]) if rank in culprits else None
        found = outcome(lambda p=planners[which], k=kind, s=step, f=fault: call(p, k, rank, s, f))
        after = [exact_batch(planner, rank, step) for planner in planners]
        loads = [planner.loads.tolist() for planner in planners]
        steps.append(
            {"kind": kind, "culprits": culprits.tolist(), "faults": faults.tolist(), "error": found}
            | {"after": after, "loads": loads}
        )
    lost = None
    if rank == n_ranks - 1:
        os._exit(0 if write(result, steps, lost) is None else 1)  # a death in the middle of things
    lost = [outcome(do) for do in (lambda: planners[0].run(ids_of(rank, 0)), lambda: plan_in_vllm(group))]
    write(result, steps, lost)
    os._exit(0)


def plan_in_vllm(group):
    name = "vllm.distributed.parallel_state"
    sys.modules[name] = types.SimpleNamespace(get_eplb_group=lambda: types.SimpleNamespace(cpu_group=group))
    vllm.SearchPolicy.rebalance_experts(torch.ones(1, N_EXPERTS), N_SLOTS, 1, 1, N_RANKS)


def write(result, steps, lost):
    with open(result, "w") as file:
        json.dump({"steps": steps, "lost": lost}, file)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
