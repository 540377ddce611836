"""Exact routing: is it exact, how fast is it, and what do others leave on the table?

    python benchmarks/moe_routing.py [--instances 3000] [--repeats 4]

Placements are EPLB's, made on an older window than the batches. Every timed batch is new to the router. Times
are CPU time of one thread, the median over batches. HiGHS is timed with scipy's model building; the interior
point is LPLB's and SGLang's method (five affine scaling steps in float32 on the same linear program) in
numpy, for its gap.
"""

import argparse
import math
import time

import numpy as np
from moe_workloads import real, synthetic, traces
from record import print_table, record
from router_program import least_peak

from evenload.balance.flow import ReplicaGraph, Router
from evenload.cli.bench.measure.timing import median_cpu_s

SHAPES = [  # slots, GPUs
    (288, 8), (288, 16), (288, 32), (320, 32), (320, 64), (288, 144), (384, 64), (1024, 64), (1024, 256),
]  # fmt: skip
DECODE, PREFILL = 32 * 128 * 8, 32 * 4096 * 8  # ids in a layer
HIGHS_LAYERS = 6


def one_by_one(phy2log, n_experts, n_gpus, batches, repeats):
    """Median CPU seconds of a call for one layer: 58 routers in turn, so that none is warm in the caches."""
    routers = [Router(ReplicaGraph.from_slots(layer, n_experts, n_gpus)) for layer in phy2log]
    rows = [
        [np.ascontiguousarray(batch[layer : layer + 1]) for layer in range(len(phy2log))] for batch in batches
    ]

    def all_layers(batch):
        for router, row in zip(routers, batch, strict=True):
            router.solve(row)

    return median_cpu_s(all_layers, repeats, [(row,) for row in rows])[0] / len(routers)


def equal_split(graph, layer, demand):
    """The busiest GPU's load if every expert's is split evenly over its slots."""
    slots = graph.phy2log[layer]
    copies = np.bincount(slots, minlength=graph.n_experts)
    return np.bincount(graph.slot2gpu, (demand / np.maximum(copies, 1))[slots], graph.n_gpus).max()


def interior_point(graph, layer, demand, steps=5):
    """The busiest GPU's load after ``steps`` affine scaling steps from all ones, as LPLB takes them."""
    rows = slice(graph.row_start[layer], graph.row_start[layer + 1])
    edges = slice(graph.row_edge[rows.start], graph.row_edge[rows.stop])
    gpus = graph.edge2gpu[edges]
    row = np.repeat(np.arange(rows.stop - rows.start), np.diff(graph.row_edge[rows.start : rows.stop + 1]))
    n_rows, n, n_gpus, total = rows.stop - rows.start, len(gpus), graph.n_gpus, demand.sum()
    fixed = (
        np.bincount(graph.home[layer][graph.home[layer] >= 0], demand[graph.home[layer] >= 0], n_gpus) / total
    )
    amount = demand[graph.row2log[rows]] / total
    A = np.zeros((n_rows + n_gpus, n + n_gpus + 2))
    A[row, np.arange(n)] = 1
    A[n_rows + gpus, np.arange(n)] = 1
    A[n_rows + np.arange(n_gpus), n + np.arange(n_gpus)] = 1
    A[n_rows:, n + n_gpus] = -1
    b = np.concatenate([amount, -fixed])
    A[:, -1] = b - A.sum(axis=1)
    A, b = A.astype(np.float32), b.astype(np.float32)
    cost = np.zeros(n + n_gpus + 2, np.float32)
    cost[-2:] = 1, 1000
    x = np.ones_like(cost)
    for _ in range(steps):
        scaled = A * x
        y = np.linalg.lstsq(scaled @ scaled.T, scaled @ (x * cost), rcond=None)[0]
        direction = x * (cost - A.T @ y)
        x = x * (1 - np.float32(0.999) * direction / direction.max())
    part = np.maximum(x[:n], 0)
    sums = np.bincount(row, part, n_rows)
    part = part * np.where(sums > 0, amount / np.where(sums > 0, sums, 1), 0)[row]
    return (fixed + np.bincount(gpus, part, n_gpus)).max() * total


def measure(name, phy2log, batches, n_experts, n_gpus, repeats):
    graph = ReplicaGraph.from_slots(phy2log, n_experts, n_gpus)
    router = Router(graph)
    given = [(batch,) for batch in batches]
    together, _ = median_cpu_s(router.solve, repeats, given)
    warm, _ = median_cpu_s(Router(graph, warm=True).solve, repeats, given)
    alone = one_by_one(phy2log, n_experts, n_gpus, batches, repeats)
    peaks, leasts, equals, points, highs_s = [], [], [], [], []
    for batch in batches[:2]:
        loads = router.solve(batch).loads
        for layer in range(0, len(phy2log), max(1, len(phy2log) // HIGHS_LAYERS)):
            start = time.process_time()
            leasts.append(least_peak(graph, layer, batch[layer]))
            highs_s.append(time.process_time() - start)
            peaks.append(loads[layer].max())
            equals.append(equal_split(graph, layer, batch[layer]))
            points.append(interior_point(graph, layer, batch[layer]))
    assert all(peak == math.ceil(least - 1e-4) for peak, least in zip(peaks, leasts, strict=True))
    leasts, mean = np.array(leasts), np.mean([batch[0].sum() / n_gpus for batch in batches[:2]])
    return {
        "instance": name,
        "layers": len(phy2log),
        "one layer us": round(alone * 1e6, 2),
        "all layers us": round(together * 1e6, 1),
        "all, warm us": round(warm * 1e6, 1),
        "HiGHS us/layer": round(float(np.median(highs_s)) * 1e6),
        "times HiGHS": round(float(np.median(highs_s)) / alone),
        "times, all": round(float(np.median(highs_s)) * len(phy2log) / together),
        "equal split": round(float(np.mean(equals) / mean), 4),
        "interior point": round(float(np.mean(points) / mean), 4),
        "its worst gap %": round(float((np.array(points) / leasts - 1).max() * 100), 2),
        "exact": round(float(np.mean(peaks) / mean), 4),
        "bound": round(float(np.mean(leasts) / mean), 4),
    }


def exactness(n_instances):
    """Of random instances and of real windows: how many have a peak other than the rounded-up optimum."""
    rng = np.random.default_rng(0)
    rows = []

    def compare(name, instances):
        n = wrong = 0
        for graph, batch in instances:
            loads = Router(graph).solve(batch).loads
            for layer in range(graph.n_layers):
                n += 1
                wrong += loads[layer].max() != math.ceil(least_peak(graph, layer, batch[layer]) - 1e-4)
        rows.append({"instances": name, "compared": n, "not equal to ceil(HiGHS)": int(wrong)})

    def random_graphs():
        for _ in range(n_instances):
            n_gpus, n_experts = int(rng.integers(2, 33)), int(rng.integers(8, 129))
            n_slots = -(-(n_experts + int(rng.integers(1, 65))) // n_gpus) * n_gpus
            extra = rng.integers(0, n_experts, n_slots - n_experts)
            phy2log = rng.permutation(np.append(np.arange(n_experts), extra))
            weight = rng.lognormal(0, rng.uniform(0.2, 1.5), (1, n_experts))
            yield (
                ReplicaGraph.from_slots(phy2log, n_experts, n_gpus),
                (weight * rng.choice([3, 100, 9999])).astype(int),
            )

    compare("random graphs", random_graphs())
    for name, ids in traces().items():
        for n_slots, n_gpus in ((72, 8), (80, 16)):
            phy2log, batches = real(ids, n_slots, n_gpus)
            graph = ReplicaGraph.from_slots(phy2log, 64, n_gpus)
            compare(f"{name}, {n_slots} slots on {n_gpus}", ((graph, batch) for batch in batches))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--instances", type=int, default=3000, help="random instances compared with HiGHS")
    parser.add_argument("--repeats", type=int, default=4, help="passes over the batches of each timing")
    given = parser.parse_args()
    rows = []
    for n_slots, n_gpus in SHAPES:
        for kind, n_ids in (("decode", DECODE), ("prefill", PREFILL)):
            phy2log, batches = synthetic(n_slots, n_gpus, n_ids)
            rows.append(
                measure(f"{n_slots} on {n_gpus}, {kind}", phy2log, batches, 256, n_gpus, given.repeats)
            )
            print_table(rows[-1:])
    for name, ids in traces().items():
        phy2log, batches = real(ids, 80, 16)
        rows.append(measure(f"{name}, 80 on 16", phy2log, batches, 64, 16, given.repeats))
    compared = exactness(given.instances)
    print_table(compared)
    record("moe_routing", rows, exactness=compared)


if __name__ == "__main__":
    main()
