"""Part ``moe``: Triton kernels that route, map and clone in CUDA graphs, beside the CPU and plain torch.

Times on a GPU are those of whole graph replays, by events around each; p50 and p99 over batches. Those of
the CPU are medians of one thread's CPU time. Where this only pretends, Triton's interpreter runs the same
kernels on CPU tensors: set before torch is imported.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

if "--pretend" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

from cuda_timing import graph_of, times_us
from part import NotHere, Part, main

FLEETS = ((8, 256, 288), (16, 256, 288), (32, 256, 320), (64, 256, 320), (320, 256, 640), (128, 256, 384))
SEEDS = (
    (8, 12, 512, 6.4),
    (16, 24, 1024, 8.533),
    (32, 48, 2048, 11.378),
)  # experts, slots, tokens, M tokens/s
RANDOM = ((2, 8, 16), (3, 20, 24), (8, 200, 256), (32, 64, 96), (144, 256, 288))  # each is compiled
TINY = (2, 6, 8)  # GPUs, experts, slots
TOP_K, TOKENS, LAYERS = 8, 1024, 58  # ids of a token, tokens of a rank, layers of a model
N_INSTANCES, N_TIMED = 1000, 300


def host_us(calls: Callable[[Any], Any], batches: list[Any]) -> float:
    """Median CPU microseconds of a call for one batch, after one that may compile."""
    from evenload.cli.bench.measure.timing import median_cpu_s

    return 1e6 * median_cpu_s(calls, 1, [(batch,) for batch in batches])[0]


def workload(
    part: Part, n_gpus: int, n_experts: int, n_slots: int, n_layers: int, n: int
) -> tuple[Any, list[Any]]:
    """(phy2log [layers, slots], n batches of [layers, experts]): placed for the window before these."""
    from moe_workloads import synthetic

    n_ids = n_gpus * (8 if part.pretend else TOKENS) * TOP_K
    return synthetic(n_slots, n_gpus, n_ids, n_batches=n, n_layers=n_layers, n_experts=n_experts)


def routed_by_counts(part: Part, n_gpus: int, n_experts: int, n_slots: int, n_layers: int) -> None:
    """Layers by their counts: the kernel in a graph, the CPU's router, and an equal split by plain torch."""
    import numpy as np
    import torch
    from moe_routing import equal_split

    from evenload.balance.flow import ReplicaGraph, Router
    from evenload.moe.routing.device import DeviceRouter

    n = 1 if part.pretend else N_TIMED if n_layers == 1 else 30
    phy2log, batches = workload(part, n_gpus, n_experts, n_slots, n_layers, n)
    graph = ReplicaGraph.from_slots(phy2log, n_experts, n_gpus)
    counts = torch.from_numpy(np.stack(batches)).to(part.device, torch.int32)
    router, host = DeviceRouter(graph, part.device), Router(graph)
    given = counts[0].clone()
    began = time.perf_counter()
    replay = graph_of(part, lambda: router.solve(given))
    made_s = time.perf_counter() - began  # compiled, and captured
    found = times_us(part, replay, lambda at: given.copy_(counts[at]), n) | {"made_s": made_s}
    found["us_a_layer"] = found["p50_us"] / n_layers
    given.copy_(counts[-1])
    replay()
    peaks = router.routing(given).loads.max(axis=1)
    mean = batches[-1].sum() / n_layers / n_gpus
    split = np.mean([equal_split(graph, i, batches[-1][i]) for i in range(n_layers)])
    part.row(
        f"EP{n_gpus}, {n_slots} slots, {n_layers} layers, by counts", **found,
        cpu_us=host_us(host.solve, batches),
        torch_equal_split_us=equal_split_us(part, phy2log, n_experts, counts),
        same_peaks=bool((peaks == host.solve(batches[-1]).loads.max(axis=1)).all()),
        peak_over_mean=float(peaks.mean() / mean),
        equal_split_over_mean=float(split / mean),
    )  # fmt: skip


def equal_split_us(part: Part, phy2log: Any, n_experts: int, counts: Any) -> float:
    """Microseconds of what engines do without a router: counts are divided over copies."""
    import numpy as np
    import torch

    copies = np.stack([np.bincount(layer, minlength=n_experts)[layer] for layer in phy2log])
    slots, over = (torch.from_numpy(np.asarray(one)).to(part.device) for one in (phy2log, copies))
    given = counts[0].clone()
    replay = graph_of(part, lambda: given.gather(1, slots).float() / over)
    return times_us(part, replay, lambda at: given.copy_(counts[at]), min(50, len(counts)))["p50_us"]


def ids_of(part: Part, n: int, n_experts: int, n_tokens: int, top_k: int) -> Any:
    """[n, tokens, top-k] expert ids of a log-normal popularity, on the device."""
    import torch

    chance = torch.Generator().manual_seed(0)
    odds = torch.empty(n_experts).log_normal_(0.0, 0.7, generator=chance)
    ids = torch.multinomial(odds, n * n_tokens * top_k, replacement=True, generator=chance)
    return ids.reshape(n, n_tokens, top_k).to(part.device)


def planned(part: Part, planner: Any, host: Any, ids: Any) -> dict[str, Any]:
    """Times of ``planner.run``, ids in and slots out, in a graph; and whether it does what ``host`` does."""
    import torch

    given, out = ids[0].clone(), {}

    def call() -> None:
        out["slots"] = planner.run(given)

    replay = graph_of(part, call)
    found: dict[str, Any] = times_us(part, replay, lambda at: given.copy_(ids[at]), len(ids))
    given.copy_(ids[-1])
    replay()
    planner.check()
    held = list(ids[-20:].cpu())
    found["cpu_us"] = host_us(host.run, held)
    host.run(held[-1])
    served = planner.phy2log.to(part.device)[out["slots"]]
    found["random_copy_us"] = random_copy_us(part, planner, ids)
    found["right_experts"] = torch.equal(served, ids[-1])
    return found | {"same_peak": int(planner.loads.max()) == int(host.loads.max())}


def seeds_shape(part: Part, n_experts: int, n_slots: int, n_tokens: int, expected: float) -> None:
    """A whole call at a shape of LPLB's introduction, beside the CPU and plain torch."""
    from evenload.moe import Planner, create_redundant_mapping

    n = 1 if part.pretend else N_TIMED
    mapping = create_redundant_mapping(n_experts, n_slots)
    planner, host = (Planner(mapping, n_slots, n_experts, backend=kind) for kind in ("triton", "cpu"))
    found = planned(part, planner, host, ids_of(part, n, n_experts, n_tokens, 2))
    part.row(
        f"{n_experts} experts, {n_slots} slots, {n_tokens} tokens x 2", **found,
        million_tokens_a_s=n_tokens / found["p50_us"],
        submitted_million_tokens_a_s=n_tokens / found["submitted_us"],
        expected_million_tokens_a_s=expected,
    )  # fmt: skip


def mapped(part: Part, n_gpus: int, n_experts: int, n_slots: int) -> None:
    """A rank's ids to slots: exactly routed, by weights of a recent window, and by a random copy."""
    import torch

    from evenload.moe import Planner

    n, n_tokens = (1, 16) if part.pretend else (100, TOKENS)
    phy2log, _ = workload(part, n_gpus, n_experts, n_slots, 1, 1)
    ids = ids_of(part, n, n_experts, n_tokens, TOP_K)
    planner, host = (
        Planner(phy2log[0], n_slots, n_experts, n_gpus, backend=kind) for kind in ("triton", "cpu")
    )
    for one in (planner, host):
        one.restore_mapping(torch.from_numpy(phy2log[0]))
    name = f"EP{n_gpus}, {n_slots} slots, {n_tokens} tokens x {TOP_K}"
    part.row(f"{name}, routed and mapped", **planned(part, planner, host, ids))
    for sweeps in (2, 0):
        weighted(part, n_gpus, n_experts, n_slots, sweeps)


def weighted(
    part: Part, n_gpus: int, n_experts: int, n_slots: int, sweeps: int, *, compiles: bool = False
) -> None:
    """A rank's ids by weights of a recent window; ``compiles``: fused by torch, as in engines that do so."""
    import torch

    from evenload.moe import WeightedCopies

    if compiles and not part.pretend and part.left_s < 60:
        raise NotHere("less than a minute is left to compile in")
    n, n_tokens = (1, 16) if part.pretend else (100, TOKENS)
    phy2log, batches = workload(part, n_gpus, n_experts, n_slots, 1, 1)
    ids = ids_of(part, n, n_experts, n_tokens, TOP_K)
    copies = WeightedCopies(phy2log, n_experts, n_gpus, device=part.device)
    copies.refresh(batches[0])
    fused = torch.compile(copies.map, dynamic=False) if compiles and not part.pretend else copies.map
    given, out = ids[0].clone(), {}

    def call() -> None:
        out["slots"] = fused(given, sweeps=sweeps)

    replay = graph_of(part, call)
    found = times_us(part, replay, lambda at: given.copy_(ids[at]), n)
    given.copy_(ids[-1])
    replay()
    right = torch.equal(torch.from_numpy(phy2log[0]).to(part.device)[out["slots"]], ids[-1])
    name = f"EP{n_gpus}, {n_slots} slots, {n_tokens} tokens x {TOP_K}, weighted copies, {sweeps} sweeps"
    part.row(f"{name}{', compiled' if compiles else ''}", **found, right_experts=right)


def random_copy_us(part: Part, planner: Any, ids: Any) -> float:
    """Plain torch operations that send each id to a copy by chance, as engines do without a router."""
    import torch

    copies = [
        torch.nonzero(planner.phy2log == expert).reshape(-1)
        for expert in range(planner.n_logical_routed_experts)
    ]
    most = max(map(len, copies))
    table = torch.stack([one.repeat(most)[:most] for one in copies]).to(part.device)
    n_copies = torch.tensor([len(one) for one in copies], device=part.device)
    given = ids[0].clone()
    draws = torch.randint(
        0, 1 << 30, given.shape, device=part.device
    )  # drawn beforehand: their cost is not counted
    replay = graph_of(part, lambda: table[given, draws % n_copies[given]])
    return times_us(part, replay, lambda at: given.copy_(ids[at]), min(50, len(ids)))["p50_us"]


def exact(part: Part) -> None:
    """Random instances, many layers in a launch: peaks are the CPU's, and quotas add up to the counts."""
    import numpy as np
    import torch

    from evenload.balance.flow import ReplicaGraph, Router
    from evenload.moe.routing.device import DeviceRouter

    chance, n_wrong, n_done = np.random.default_rng(0), 0, 0
    shapes = (TINY,) if part.pretend else RANDOM
    n_layers = 2 if part.pretend else N_INSTANCES // len(shapes)
    for n_gpus, n_experts, n_slots in shapes:
        if part.left_s <= 0:
            break
        extra = chance.integers(0, n_experts, (n_layers, n_slots - n_experts))
        each = np.concatenate([np.tile(np.arange(n_experts), (n_layers, 1)), extra], axis=1)
        phy2log = chance.permuted(each, axis=1)
        weight = chance.lognormal(0, chance.uniform(0.2, 1.5, (n_layers, 1)), (n_layers, n_experts))
        counts = (weight * chance.choice([3, 100, 9999], (n_layers, 1))).astype(np.int64)
        graph = ReplicaGraph.from_slots(phy2log, n_experts, n_gpus)
        router = DeviceRouter(graph, part.device)
        quotas = router.solve(torch.as_tensor(counts, dtype=torch.int32, device=part.device)).cpu().numpy()
        loads = quotas.reshape(n_layers, n_gpus, -1).sum(axis=2)
        peaks = Router(graph).solve(counts).loads.max(axis=1)
        served = np.stack([np.bincount(s, q, n_experts) for s, q in zip(phy2log, quotas, strict=True)])
        n_wrong += int(
            ((loads.max(axis=1) != peaks) | (served != counts).any(axis=1) | (quotas < 0).any(axis=1)).sum()
        )
        n_done += n_layers
    part.row("random instances", n=n_done, wrong=n_wrong)


def clones(part: Part, n_ranks: int, n_experts: int) -> None:
    """Clones planned on the device for each batch, beside the CPU's planner and the bound."""
    import numpy as np
    import torch
    from moe_clones import from_odds

    from evenload.moe import Cloner, DeviceCloner

    n, tokens = (1, 16) if part.pretend else (N_TIMED, TOKENS)
    batches = [now for _, now in from_odds(n_ranks, tokens, n, np.random.default_rng(0))]
    counts = torch.from_numpy(np.stack(batches).reshape(n, 1, -1)[:, :, :n_experts].copy()).to(part.device)
    homes, spare = np.arange(n_experts) * n_ranks // n_experts, np.full(n_ranks, 2)
    device, host = DeviceCloner(homes, spare, device=part.device), Cloner(homes, spare)
    given = counts[0].clone()
    replay = graph_of(part, lambda: device.plan(given))
    found = times_us(part, replay, lambda at: given.copy_(counts[at]), n)
    held = [one[0] for one in counts[-20:].cpu().numpy()]
    given.copy_(counts[-1])
    replay()
    plan = device.on_host(given)
    part.row(
        f"clones, {n_ranks} ranks, {n_experts} experts", **found, cpu_us=host_us(host.plan, held),
        peak=plan.peak, bound=plan.peak_bound, cpu_peak=host.plan(held[-1]).peak,
        busiest_without=int(np.bincount(homes, held[-1], n_ranks).max()),
    )  # fmt: skip


def measure(part: Part) -> None:
    import torch

    if not part.pretend and not torch.cuda.is_available():
        raise NotHere("torch finds no CUDA GPU")
    torch.set_num_threads(1)  # the CPU's times are of one thread
    seeds = ((4, 6, 16, 6.4),) if part.pretend else SEEDS
    fleets = (TINY,) if part.pretend else FLEETS
    n_layers = 2 if part.pretend else LAYERS

    def by_counts(fleet: tuple[int, int, int], n_layers: int) -> None:
        what = f"EP{fleet[0]}, {n_layers} layers"
        part.tried(what, lambda: routed_by_counts(part, *fleet, n_layers))

    for fleet in fleets[::2]:
        by_counts(fleet, 1)
    for shape in seeds:
        part.tried(f"shape {shape}", lambda shape=shape: seeds_shape(part, *shape))
    part.tried("random instances", lambda: exact(part))
    for fleet in fleets[:3:2]:
        part.tried(f"EP{fleet[0]}, ids", lambda fleet=fleet: mapped(part, *fleet))
    for shape in ((4, 16),) if part.pretend else ((16, 256), (64, 256)):
        part.tried(f"clones {shape}", lambda shape=shape: clones(part, *shape))
    for fleet in fleets[1::2]:
        by_counts(fleet, 1)
    for fleet in fleets[:3:2]:
        by_counts(fleet, n_layers)
    part.tried("weighted copies, compiled", lambda: weighted(part, *fleets[0], 2, compiles=True))


if __name__ == "__main__":
    main(measure)
