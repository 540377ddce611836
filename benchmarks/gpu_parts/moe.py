"""Part ``moe``: routing, mapping and cloning as Triton kernels inside of CUDA graphs, beside the CPU and plain torch.

Times on a GPU are those of whole graph replays, by events around each; p50 and p99 over batches. Where this only
pretends, Triton's interpreter runs the same kernels on CPU tensors: set before torch is imported.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

if "--pretend" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

from part import NotHere, Part, main

FLEETS = ((8, 256, 288), (16, 256, 288), (32, 256, 320), (64, 256, 320), (128, 256, 384), (320, 256, 640))
SEEDS = ((8, 12, 512, 6.4), (16, 24, 1024, 8.533), (32, 48, 2048, 11.378))  # experts, slots, tokens, M tokens/s
TOP_K, TOKENS = 8, 1024  # of a rank
N_EXACT, N_TIMED = 1000, 300


def graph_of(part: Part, work: Callable[[], Any]) -> Callable[[], None]:
    """``work`` as a CUDA graph that is replayed; where this only pretends, ``work`` itself."""
    if part.pretend:
        return lambda: (work(), None)[1]
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # compiles, and warms the allocator
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def times_us(part: Part, replay: Callable[[], None], before: Callable[[int], None], n: int) -> dict[str, float]:
    """p50 and p99 of ``n`` replays, each after ``before``, which is not timed; microseconds."""
    import numpy as np

    found = []
    for at in range(n):
        before(at)
        found.append(one_us(part, replay))
    return {"p50_us": float(np.percentile(found, 50)), "p99_us": float(np.percentile(found, 99)), "n": n}


def one_us(part: Part, replay: Callable[[], None]) -> float:
    if part.pretend:
        began = time.perf_counter()
        replay()
        return 1e6 * (time.perf_counter() - began)
    import torch

    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    replay()
    stop.record()
    stop.synchronize()
    return 1e3 * start.elapsed_time(stop)


def batches_of(part: Part, n: int, n_experts: int, shape: tuple[int, ...]) -> Any:
    """[n, *shape] expert ids of a log-normal popularity, on the device."""
    import torch

    chance = torch.Generator().manual_seed(0)
    odds = torch.empty(n_experts).log_normal_(0.0, 0.7, generator=chance)
    size = 1
    for extent in shape:
        size *= extent
    ids = torch.multinomial(odds, n * size, replacement=True, generator=chance)
    return ids.reshape(n, *shape).to(part.device)


def routed_by_counts(part: Part, n_gpus: int, n_experts: int, n_slots: int) -> None:
    """One layer by counts: the kernel in a graph, the CPU's router, and an equal split by plain torch."""
    import numpy as np
    import torch

    from evenload.balance.flow import ReplicaGraph, Router
    from evenload.moe import rebalance_experts
    from evenload.moe.routing.device import DeviceRouter

    n = 3 if part.pretend else N_TIMED
    ids = batches_of(part, n, n_experts, (n_gpus * (64 if part.pretend else TOKENS),))
    counts = torch.stack([torch.bincount(one, minlength=n_experts) for one in ids]).to(torch.int32)
    placed = rebalance_experts(counts.sum(0, keepdim=True).cpu().double(), n_slots, 1, 1, n_gpus)
    graph = ReplicaGraph.from_slots(placed[0].numpy(), n_experts, n_gpus)
    router, host = DeviceRouter(graph, part.device), Router(graph)
    given = counts[:1].clone()
    replay = graph_of(part, lambda: router.solve(given))
    found = times_us(part, replay, lambda at: given.copy_(counts[at : at + 1]), n)
    demands = counts.cpu().numpy().astype(np.int64)
    began = time.thread_time()
    peaks = [int(host.solve(one[None]).loads.max()) for one in demands]
    host_us = 1e6 * (time.thread_time() - began) / n
    given.copy_(counts[-1:])
    replay()
    same = int(router.loads.max()) == peaks[-1]
    split = equal_split_us(part, graph, placed, counts)
    part.row(f"EP{n_gpus}, {n_slots} slots, by counts", **found, cpu_us=host_us, torch_equal_us=split, same_peak=same)


def equal_split_us(part: Part, graph: Any, placed: Any, counts: Any) -> float:
    """Microseconds of what engines do without a router: a copy's share is its expert's count over its copies."""
    phy2log, logcnt = placed[0][0].to(part.device), placed[2][0].to(part.device)
    given = counts[0].clone()
    replay = graph_of(part, lambda: given[phy2log].float() / logcnt[phy2log])
    return times_us(part, replay, lambda at: given.copy_(counts[at % len(counts)]), min(50, len(counts)))["p50_us"]


def seeds_shape(part: Part, n_experts: int, n_slots: int, n_tokens: int, expected: float) -> None:
    """A whole call, ids in and slots out, at a shape of LPLB's introduction; beside the CPU and plain torch."""
    import torch

    from evenload.moe import Planner, create_redundant_mapping

    n = 3 if part.pretend else N_TIMED
    ids = batches_of(part, n, n_experts, (n_tokens, 2))
    mapping = create_redundant_mapping(n_experts, n_slots)
    planner = Planner(mapping, n_slots, n_experts, backend="triton")
    host = Planner(mapping, n_slots, n_experts, backend="cpu")
    given, out = ids[0].clone(), {}

    def call() -> None:
        out["slots"] = planner.run(given)

    replay = graph_of(part, call)
    found = times_us(part, replay, lambda at: given.copy_(ids[at]), n)
    planner.check()
    held = ids[-1].cpu()
    began = time.thread_time()
    host.run(held)
    host_us = 1e6 * (time.thread_time() - began)
    served = torch.equal(planner.phy2log.to(part.device)[out["slots"]], ids[-1])
    same = int(planner.certificate().peak) == int(host.certificate().peak)
    part.row(
        f"{n_experts} experts, {n_slots} slots, {n_tokens} tokens", **found, tokens_per_us=n_tokens / found["p50_us"],
        expected_tokens_per_us=expected, cpu_us=host_us, random_copy_us=random_copy_us(part, planner, ids),
        right_expert=served, same_peak=same,
    )  # fmt: skip


def random_copy_us(part: Part, planner: Any, ids: Any) -> float:
    """Plain torch operations that send each id to a copy by its position, as engines do without a router."""
    import torch

    n_logical = planner.n_logical_routed_experts
    phy2log = planner.phy2log
    copies = [torch.nonzero(phy2log == expert).reshape(-1) for expert in range(n_logical)]
    most = max(map(len, copies))
    table = torch.stack([one.repeat(most)[:most] for one in copies]).to(part.device)
    given = ids[0].clone()
    turn = torch.arange(given.numel(), device=part.device).reshape(given.shape)
    replay = graph_of(part, lambda: table[given, turn % most])
    return times_us(part, replay, lambda at: given.copy_(ids[at]), min(50, len(ids)))["p50_us"]


def exact(part: Part) -> None:
    """Peaks of the kernel on random instances, beside the CPU's, which are proved."""
    import numpy as np
    import torch

    from evenload.balance.flow import ReplicaGraph, Router
    from evenload.moe.routing.device import DeviceRouter

    chance, n_wrong, n_done = np.random.default_rng(0), 0, 0
    for _ in range(4 if part.pretend else N_EXACT):
        if part.left_s <= 0:
            break
        n_gpus, per_gpu = int(chance.integers(2, 9)), int(chance.integers(2, 6))
        n_slots = n_gpus * per_gpu
        n_experts = int(chance.integers(2, n_slots + 1))
        slots = np.concatenate([np.arange(n_experts), chance.integers(0, n_experts, n_slots - n_experts)])
        graph = ReplicaGraph.from_slots(chance.permutation(slots), n_experts, n_gpus)
        demand = chance.integers(0, 200, (1, n_experts))
        router = DeviceRouter(graph, part.device)
        router.solve(torch.as_tensor(demand, dtype=torch.int32, device=part.device))
        n_wrong += int(router.loads.max()) != int(Router(graph).solve(demand).loads.max())
        n_done += 1
    part.row("random instances", n=n_done, wrong_peaks=n_wrong)


def clones(part: Part, n_ranks: int, n_experts: int) -> None:
    """Clones planned on the device for each batch, beside the CPU's planner."""
    import numpy as np
    import torch

    from evenload.moe import Cloner, DeviceCloner

    n = 3 if part.pretend else N_TIMED
    ids = batches_of(part, n, n_experts, (n_ranks * (64 if part.pretend else TOKENS),))
    counts = torch.stack([torch.bincount(one, minlength=n_experts) for one in ids])
    homes, spare = np.arange(n_experts) * n_ranks // n_experts, np.full(n_ranks, 2)
    device, host = DeviceCloner(homes, spare, device=part.device), Cloner(homes, spare)
    given = counts[:1].clone()
    replay = graph_of(part, lambda: device.plan(given))
    found = times_us(part, replay, lambda at: given.copy_(counts[at : at + 1]), n)
    began = time.thread_time()
    plan = host.plan(counts[-1].cpu().numpy())
    host_us = 1e6 * (time.thread_time() - began)
    given.copy_(counts[-1:])
    replay()
    part.row(
        f"clones, {n_ranks} ranks, {n_experts} experts", **found, cpu_us=host_us,
        peak=int(device.summary[0, 0]), cpu_peak=int(plan.peak),
    )  # fmt: skip


def measure(part: Part) -> None:
    import torch

    if not part.pretend and not torch.cuda.is_available():
        raise NotHere("torch finds no CUDA GPU")
    seeds = SEEDS[:1] if part.pretend else SEEDS
    fleets = ((4, 16, 20),) if part.pretend else FLEETS
    for shape in seeds:
        part.tried(f"shape {shape}", lambda shape=shape: seeds_shape(part, *shape))
    for fleet in fleets:
        part.tried(f"EP{fleet[0]}", lambda fleet=fleet: routed_by_counts(part, *fleet))
    part.tried("random instances", lambda: exact(part))
    for shape in ((4, 16),) if part.pretend else ((16, 256), (64, 256)):
        part.tried(f"clones {shape}", lambda shape=shape: clones(part, *shape))


if __name__ == "__main__":
    main(measure)
