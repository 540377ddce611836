"""Small questions of every kind, asked so that all kernels of this package are there when work begins."""

import numpy as np


def warm() -> None:
    """Route, plan and place a little, in each way that calls kernels with other types of arguments."""
    _route()
    _dispatch()
    _clone()
    _place()


def _route() -> None:
    from evenload.balance.flow import ReplicaGraph, Router, route

    slots, demands = np.arange(20) % 16, np.arange(16)
    route(slots, demands, 4)
    route(slots, demands, 4, speeds=[1.0, 2.0, 1.0, 2.0])
    route(slots, demands, 4, even=True)
    # A graph large enough for its load to spread like a current.
    n_gpus = 64
    ring = np.stack([np.arange(2 * n_gpus), np.roll(np.arange(2 * n_gpus), 2)], axis=1).reshape(-1)
    Router(ReplicaGraph.from_slots(ring, 2 * n_gpus, n_gpus)).solve(np.arange(2 * n_gpus)[None])


def _dispatch() -> None:
    from evenload.balance.flow import ReplicaGraph, route
    from evenload.moe.routing.dispatch import Dispatcher

    slots = np.arange(20) % 16
    dispatcher = Dispatcher(ReplicaGraph.from_slots(slots, 16, 4))
    for dtype in (np.int64, np.int32):
        ids = np.arange(32, dtype=dtype) % 16
        counts = dispatcher.count(ids)
        quotas = route(slots, counts, 4).quotas[0]
        rows = np.stack([counts, *[np.zeros_like(counts)] * 3])
        dispatcher.map(ids, dispatcher.exact_shares(quotas, rows, 0))
        dispatcher.map(ids, dispatcher.dithered_shares(quotas, counts, counts, 0, 1))


def _clone() -> None:
    from evenload.moe.cloning.cloner import clone_experts
    from evenload.moe.cloning.fetch_bound import FetchCosts

    counts, homes = np.arange(16) ** 2, np.arange(16) // 4
    plan = clone_experts(np.stack([counts] * 4), homes, 2)
    plan.map(np.repeat(np.arange(16), counts), 0)
    assert plan.fetch_bound <= plan.fetches
    clone_experts(counts, homes, 2, costs=FetchCosts(1e-6, 1e6, 1e9))


def _place() -> None:
    from evenload.moe.placement.fleet import Fleet
    from evenload.moe.placement.rebalance import rebalance_experts
    from evenload.moe.search.layer_search import Effort
    from evenload.moe.search.plan import place

    loads = np.random.default_rng(0).integers(1, 100, (2, 1, 16)).astype(float)
    loads[:, :, 0] = 900.0  # so that EPLB's policy gives a GPU twins to part
    rebalance_experts(loads[0], 20, 1, 1, 4)
    effort = Effort(n_windows=2, n_made_up=2, n_rounds=1, n_tries=4)
    for objective in ("routed", "equal"):
        old = place(loads, Fleet((5,) * 4), objective=objective, effort=effort).phy2log
        place(loads[::-1], Fleet((5,) * 4), objective=objective, effort=effort, old=old, target=1.03)
