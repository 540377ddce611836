"""Placing and routing experts: how even, against the bound, and what deciding costs."""

import numpy as np

from evenload.cli.bench.measure.trial import Setting, Trial, quickest

__all__ = ["experts"]


def experts(setting: Setting) -> Trial:
    """A made-up trace, planned on its first batches and served on the others."""
    from evenload.moe.generators import Popularity, generate
    from evenload.moe.placement.fleet import Fleet
    from evenload.moe.replay.replayer import replay

    n_layers, n_experts, n_slots, n_gpus = (4, 64, 72, 8) if setting.is_quick else (16, 256, 288, 32)
    made = generate(
        Popularity(), n_windows=10, n_layers=n_layers, n_experts=n_experts, n_ids=n_gpus * 1024, seed=1
    )
    batches = np.ascontiguousarray(made.windows(1))
    strategies = ["EPLB", "EPLB + routing", "search + routing"]
    done = replay(batches, Fleet.even(n_gpus, n_slots), history=6, strategies=strategies, name="made up")
    bound = float(done.bound.mean())
    rows = [
        {
            "strategy": course.name,
            "imbalance": course.mean,
            "bound": bound,
            "x_bound": course.mean / bound,
            "p99": course.p99,
            "plan_ms_per_layer": plan_s / n_layers * 1e3,
            "route_us_per_layer": route_s / n_layers * 1e6 if route_s is not None else None,
        }
        for course, (plan_s, route_s) in zip(
            done.courses, _costs(batches, n_slots, n_gpus, setting), strict=True
        )
    ]
    note = (
        f"{n_layers} layers of {n_experts} experts in {n_slots} slots on {n_gpus} GPUs, made-up log-normal "
        "loads that drift; imbalance: busiest GPU over the mean, bound: least that any placement could "
        "reach. Times are CPU time of one thread."
    )
    return Trial("experts", "", rows, note)


def _costs(
    batches: np.ndarray, n_slots: int, n_gpus: int, setting: Setting
) -> list[tuple[float, float | None]]:
    """CPU seconds to plan and to route all layers, for the three strategies in their order."""
    from evenload.balance.flow import ReplicaGraph, Router
    from evenload.moe.placement.fleet import Fleet
    from evenload.moe.placement.rebalance import rebalance_experts
    from evenload.moe.search.plan import place

    n, total = 2 if setting.is_quick else 10, batches[:6].sum(axis=0)
    placement = rebalance_experts(total, n_slots, 1, 1, n_gpus)
    router = Router(ReplicaGraph.from_slots(placement.phy2log, batches.shape[2], n_gpus))
    batch = np.ascontiguousarray(batches[6])
    _, eplb_s = quickest(lambda: rebalance_experts(total, n_slots, 1, 1, n_gpus), n)
    _, route_s = quickest(lambda: router.solve(batch), n)
    _, search_s = quickest(lambda: place(batches[:6], Fleet.even(n_gpus, n_slots)), 1)
    return [(eplb_s, None), (eplb_s, route_s), (search_s, route_s)]
