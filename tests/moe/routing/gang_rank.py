"""One rank of a gang, started by test_gang.py: routes batches over gloo, then random faults on random ranks.

What came of it is written; the last rank dies in the middle of things.
"""

import json
import os
import sys
import types
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from evenload.errors import ConfigError, EvenloadError
from evenload.moe import agree_on
from evenload.moe.adapters import lplb, sglang, vllm
from evenload.moe.adapters.layer import MoELayer
from evenload.moe.routing.planner import Planner
from evenload.moe.topology import circulant

N_EXPERTS, N_SLOTS = 16, 24
# No topology: some experts have two replicas, some four, most have one.
SLOTS = [0, 1, 2, 3, 8, 12, 4, 5, 6, 7, 0, 9, 8, 9, 10, 11, 0, 1, 12, 13, 14, 15, 0, 8]


def batch(rank, step):
    rng = np.random.default_rng([rank, step])
    odds = rng.dirichlet(np.full(N_EXPERTS, 0.5)) if step % 2 else np.arange(N_EXPERTS, 0, -1) / 136
    ids = rng.choice(N_EXPERTS, (rng.integers(1, 200), 4), p=odds)
    ids[rng.random(ids.shape) < 0.02] = -1
    return torch.from_numpy(ids[: 0 if step == 3 and rank == 1 else None])


def route(planner, rank, step):
    ids = batch(rank, step)
    counter = torch.zeros(N_SLOTS, dtype=torch.int32)
    slots = planner.run(ids, counter)
    assert slots.shape == ids.shape
    assert torch.equal(slots == -1, ids == -1)
    assert torch.equal(planner.phy2log[slots[slots >= 0]], ids[ids >= 0])
    certificate = planner.certificate()
    return {
        "received": np.bincount(slots[slots >= 0].numpy(), minlength=N_SLOTS).tolist(),
        "counter": counter.tolist(),
        "loads": planner.loads.tolist(),
        "peak": int(certificate.peak),
        "load": certificate.load,
        "gpus": certificate.gpus,
    }


def refused(call):
    try:
        call()
    except ConfigError as error:
        return str(error)
    return None


def stand_in(name, **functions):
    """An engine's module that has its groups."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(functions)


def by_vllm(rank, group):
    """What the policy answers in an engine whose ranks round loads differently."""
    loads = torch.from_numpy(np.random.default_rng(rank).lognormal(0, 1, (1, N_EXPERTS)))
    stand_in("vllm.distributed.parallel_state", get_eplb_group=lambda: types.SimpleNamespace(cpu_group=group))
    return vllm.SearchPolicy.rebalance_experts(loads, N_SLOTS, 1, 1, 4).tolist()


def by_sglang(rank, group):
    """The plan of each rank, and of rank 0 where it alone plans and SGLang sends it."""
    loads = torch.from_numpy(np.random.default_rng(rank).lognormal(0, 1, (1, 1, N_EXPERTS)))
    name = "sglang.srt.distributed.parallel_state"
    stand_in(name, get_world_group=lambda: types.SimpleNamespace(cpu_group=group))

    def compute(manager, loads, *, broadcast_over_world):
        return sglang.rebalance_experts(loads, N_SLOTS, 6, None, 1, "deepseek", policy="search")[0].tolist()

    yield sglang.by_one_or_all(compute, None, loads, broadcast_over_world=False)
    if rank == 0:
        sglang.by_one_or_all(compute, None, loads, broadcast_over_world=True)
    yield None


def by_an_engine_that_fails(rank, group):
    """What policies say on every rank where the loads of one are refused."""
    loads = torch.full((1, N_EXPERTS), torch.nan if rank == 2 else 1.0)

    def compute(manager, loads, *, broadcast_over_world):
        return sglang.rebalance_experts(loads, N_SLOTS, 6, None, 1, "deepseek", policy="search")

    def plan_in_sglang():
        sglang.by_one_or_all(compute, None, loads[None], broadcast_over_world=False)

    return [
        refused(lambda: vllm.SearchPolicy.rebalance_experts(loads, N_SLOTS, 1, 1, 4)),
        refused(plan_in_sglang),
    ]


def unlisted(rank, n_ranks, store):
    """A group that torch has no list of, as vLLM makes it where ranks may join and leave."""
    prefix = dist.PrefixStore("unlisted", dist.FileStore(f"{store}_unlisted", n_ranks))
    group = dist.ProcessGroup(prefix, rank, n_ranks)
    backend = dist.ProcessGroupGloo(prefix, rank, n_ranks, timedelta(seconds=500))
    backend._set_sequence_number_for_group()
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


def routed(rank, n_ranks, store, group):
    """What comes of batches, of what ranks disagree on, and of engines' policies."""
    planner = Planner(SLOTS, N_SLOTS, N_EXPERTS, 4, group, nodes=[0, 0, 1, 1])
    found = {"exact": [route(planner, rank, step) for step in range(5)]}
    sums = Planner(SLOTS, N_SLOTS, N_EXPERTS, group=group, exchange="sums")
    found["sums"] = [route(sums, rank, step) for step in range(3)]
    bad = torch.full((3, 2), 99 if rank == 2 else 0)
    wide = torch.zeros((3, 4 if rank == 1 else 2), dtype=torch.int64)
    other = SLOTS[::-1] if rank == 3 else SLOTS
    found["errors"] = {
        "bad id": refused(lambda: planner.run(bad)),
        "widths": refused(lambda: planner.run(wide)),
        "widths, sums": refused(lambda: sums.run(wide)),
        "placement": refused(lambda: Planner(other, N_SLOTS, N_EXPERTS, group=group)),
    }
    planner.update_redundancy_mapping(np.arange(N_EXPERTS))
    found["after"] = route(planner, rank, 0)  # the gang still works after every refusal
    found["agreed"] = [
        agree_on(np.full((2, 3), own), group).tolist() for own in (7, rank // 3, 5 + (rank == 0))
    ]
    found["errors"]["agreement"] = refused(lambda: agree_on(np.zeros((2, 3 + (rank == 2))), group))
    found["errors"]["agreement of shapes"] = refused(
        lambda: agree_on(np.zeros((2, 3 + (rank == 2)), int), group)
    )
    found["engines"] = [by_vllm(rank, group), *by_sglang(rank, group)]
    layer = MoELayer(5, 4, N_EXPERTS, 2, planner)
    x, flags = torch.ones(6, 5), [True] * (5 if rank == 2 else 6)
    found["failing layer"] = [refused(lambda: layer(x, flags)), int(layer(x, [True] * 6).isnan().sum())]
    found["failing engines"] = by_an_engine_that_fails(rank, group)
    elastic = unlisted(rank, n_ranks, store)
    found["elastic"] = [by_vllm(rank, elastic), agree_on(np.full((2, 3), rank + 5), elastic).tolist()]
    found["elastic planner"] = route(Planner(SLOTS, N_SLOTS, N_EXPERTS, 4, elastic), rank, 0)
    planner.resize([*SLOTS, *range(4)], 4, group)
    found["resized"] = int(planner.run(torch.arange(N_EXPERTS)).max())
    return found


F_EXPERTS, F_SLOTS = 12, 16
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
    7, "counter", torch.zeros(3), torch.zeros(1, dtype=torch.bool), torch.zeros(F_SLOTS, dtype=torch.uint8),
    torch.zeros(1, requires_grad=True), torch.zeros((F_SLOTS, 2))[:, 0], np.zeros(F_SLOTS, "U3"), [0],
]  # fmt: skip
BAD_LOADS = [
    "load", [1.0, 2.0], np.full(F_EXPERTS, np.nan), np.full(F_EXPERTS, -1.0), [[1], [2, 3]], object(), 5,
    torch.zeros(F_EXPERTS, requires_grad=True) - 1, np.array([None] * F_EXPERTS),
]  # fmt: skip
BAD_COUNTS = [
    None,
    "counts",
    torch.ones(3),
    np.full(F_EXPERTS, 0.5),
    [[1], [2, 3]],
    np.full(F_EXPERTS, 1 << 40),
]


BAD_MASKS = ["mask", [True], np.array([0.5]), torch.ones(99, dtype=torch.bool), torch.ones(2, 2), object()]


def ids_of(rank, step):
    return torch.from_numpy(np.random.default_rng([rank, step]).integers(0, F_EXPERTS, (rank * 3, 2)))


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
        planner.update_redundancy_mapping(np.arange(F_EXPERTS) if fault is None else BAD_LOADS[fault])
    elif kind == "counts":
        planner.solve_probs(
            torch.ones(F_EXPERTS, dtype=torch.int64) if fault is None else BAD_COUNTS[fault], torch.zeros(1)
        )
    elif kind == "shift" and fault is not None:
        planner.update_redundancy_mapping(np.arange(F_EXPERTS))
    elif kind == "shift":
        planner.run(ids_of(rank, step))
    else:
        given = [PLACEMENT, F_SLOTS, F_EXPERTS, None]
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
    came = routed(rank, n_ranks, store, group)
    planners = [
        Planner(PLACEMENT, F_SLOTS, F_EXPERTS, group=group),
        Planner(PLACEMENT, F_SLOTS, F_EXPERTS, group=group, exchange="sums"),
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
    if rank < n_ranks - 1:
        came["lost"] = [
            outcome(lambda: planners[0].run(ids_of(rank, 0))),
            outcome(lambda: by_vllm(rank, group)),
        ]
    with open(result, "w") as file:
        json.dump(came | {"steps": steps}, file)
    os._exit(0)  # the last one dies in the middle of things


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
