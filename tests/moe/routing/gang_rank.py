"""One rank of a gang, started by test_planner.py: routes batches over gloo and writes what came of them."""

import json
import sys
import types
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from evenload.errors import ConfigError
from evenload.moe import agree_on
from evenload.moe.adapters import sglang, vllm
from evenload.moe.adapters.layer import MoELayer
from evenload.moe.routing.planner import Planner

N_EXPERTS, N_SLOTS = 16, 24


def placement():
    """No topology: some experts have two replicas, some four, most have one."""
    return [0, 1, 2, 3, 8, 12, 4, 5, 6, 7, 0, 9, 8, 9, 10, 11, 0, 1, 12, 13, 14, 15, 0, 8]


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


def main(rank, n_ranks, store, result):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n_ranks)
    group = dist.group.WORLD
    planner = Planner(placement(), N_SLOTS, N_EXPERTS, 4, group, nodes=[0, 0, 1, 1])
    found = {"exact": [route(planner, rank, step) for step in range(5)]}
    sums = Planner(placement(), N_SLOTS, N_EXPERTS, group=group, exchange="sums")
    found["sums"] = [route(sums, rank, step) for step in range(3)]
    bad = torch.full((3, 2), 99 if rank == 2 else 0)
    wide = torch.zeros((3, 4 if rank == 1 else 2), dtype=torch.int64)
    other = placement()[::-1] if rank == 3 else placement()
    found["errors"] = {
        "bad id": refused(lambda: planner.run(bad)),
        "bad id, sums": refused(lambda: sums.run(bad)),
        "widths": refused(lambda: planner.run(wide)),
        "widths, sums": refused(lambda: sums.run(wide)),
        "placement": refused(lambda: Planner(other, N_SLOTS, N_EXPERTS, group=group)),
        "sizes": refused(lambda: Planner(placement(), N_SLOTS, N_EXPERTS + (rank == 0), group=group)),
        "load": refused(
            lambda: planner.update_redundancy_mapping(np.random.default_rng(rank).random(N_EXPERTS))
        ),
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
    found["elastic planner"] = route(Planner(placement(), N_SLOTS, N_EXPERTS, 4, elastic), rank, 0)
    planner.resize([*placement(), *range(4)], 4, group)
    found["resized"] = int(planner.run(torch.arange(N_EXPERTS)).max())
    with open(result, "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
