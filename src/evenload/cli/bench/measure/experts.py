"""Placing and routing experts: how even, against the bound, and what deciding costs."""

import numpy as np

from evenload.cli.bench.measure.timing import median_cpu_s
from evenload.cli.bench.measure.trial_report import BenchOptions, TrialReport


def experts(options: BenchOptions) -> TrialReport:
    """A made-up trace, planned on its first batches and served on the others."""
    from evenload.moe.placement.fleet import Fleet
    from evenload.moe.replay.replayer import replay

    n_layers, n_experts, n_slots, n_gpus = (4, 64, 72, 8) if options.is_quick else (16, 256, 288, 32)
    batches = made_up_batches(10, n_layers, n_experts, n_gpus)
    strategies = ["EPLB", "EPLB + routing", "search + routing"]
    done = replay(batches, Fleet.even(n_gpus, n_slots), history=6, strategies=strategies, name="made up")
    eplb_s, route_s, search_s = time_decisions(batches[:7], n_slots, n_gpus, 2 if options.is_quick else 10)
    costs = [(eplb_s, None), (eplb_s, route_s), (search_s, route_s)]
    bound = float(done.bound.mean())
    rows = [
        {
            "strategy": course.name,
            "imbalance": course.mean,
            "bound": bound,
            "x_bound": course.mean / bound,
            "p99": course.p99,
            "plan_ms_per_layer": plan_s / n_layers * 1e3,
            "route_us_per_layer": routed_s / n_layers * 1e6 if routed_s is not None else None,
        }
        for course, (plan_s, routed_s) in zip(done.courses, costs, strict=True)
    ]
    note = (
        f"{n_layers} layers of {n_experts} experts in {n_slots} slots on {n_gpus} GPUs, made-up log-normal "
        "loads that drift; imbalance: busiest GPU over the mean, bound: least that any placement could "
        "reach. Times are CPU time of one thread."
    )
    return TrialReport("experts", "", rows, note)


def made_up_batches(n_batches: int, n_layers: int, n_experts: int, n_gpus: int) -> np.ndarray:
    """[batches, layers, experts] ids of log-normal loads that drift, 1024 ids for each GPU."""
    from evenload.moe.generators import Popularity, generate

    trace = generate(
        Popularity(), n_windows=n_batches, n_layers=n_layers, n_experts=n_experts, n_ids=n_gpus * 1024, seed=1
    )
    return np.ascontiguousarray(trace.windows(1))


def time_decisions(
    batches: np.ndarray, n_slots: int, n_gpus: int, repeat: int, *, n_searches: int = 1
) -> tuple[float, float, float]:
    """Time EPLB's placement by all ``batches`` but the last, exact routing of the last, and the search.

    Median CPU seconds of one thread for all layers. The search is timed on at most four layers, and its time
    scaled up to all of them.
    """
    from evenload.balance.flow import ReplicaGraph, Router
    from evenload.moe.placement.fleet import Fleet
    from evenload.moe.placement.rebalance import rebalance_experts
    from evenload.moe.search.plan import place

    history, batch = batches[:-1], np.ascontiguousarray(batches[-1])
    total, n_layers = history.sum(axis=0), batches.shape[1]
    eplb_s, placement = median_cpu_s(lambda: rebalance_experts(total, n_slots, 1, 1, n_gpus), repeat)
    router = Router(ReplicaGraph.from_slots(placement.phy2log, batches.shape[2], n_gpus))
    route_s, _ = median_cpu_s(lambda: router.solve(batch), repeat)
    few, fleet = history[:, :4], Fleet.even(n_gpus, n_slots)
    search_s, _ = median_cpu_s(lambda: place(few, fleet), n_searches)
    return eplb_s, route_s, search_s * n_layers / few.shape[1]
