"""The router's problem as a linear program for scipy's HiGHS: slow, fractional, independent of the router."""

import numpy as np
from numpy.typing import NDArray

from evenload.balance.flow.graph import ReplicaGraph

__all__ = ["least_peak"]


def least_peak(
    graph: ReplicaGraph,
    layer: int,
    demand: NDArray[np.int64],
    *,
    speeds: NDArray | None = None,
    fixed: NDArray[np.int64] | None = None,
    capacities: NDArray[np.int64] | None = None,
) -> float:
    """The least peak (load / speed) of any fractional routing of one layer.

    demand [experts], speeds [gpus] relative, fixed [gpus], capacities [slots]. Slots are variables, one for
    each (expert, GPU); raises ValueError if no routing is feasible. Needs scipy, which evenload itself
    does not.
    """
    from scipy import optimize, sparse

    used = np.flatnonzero(graph.phy2log[layer] >= 0)
    _, first = np.unique(graph.phy2log[layer, used] * graph.n_gpus + graph.slot2gpu[used], return_index=True)
    slots = used[first]
    n, gpus, living = len(slots), graph.slot2gpu[slots], np.flatnonzero(graph.alive)
    relative = np.ones(graph.n_gpus) if speeds is None else np.asarray(speeds, dtype=float)
    rank = np.full(graph.n_gpus, -1)
    rank[living] = np.arange(len(living))
    rows = np.concatenate([rank[gpus], np.arange(len(living))])
    columns = np.concatenate([np.arange(n), np.full(len(living), n)])
    values = np.concatenate([np.ones(n), -relative[living]])
    served = (np.ones(n), (graph.phy2log[layer, slots], np.arange(n)))
    result = optimize.linprog(
        np.concatenate([np.zeros(n), [1.0]]),
        A_ub=sparse.coo_matrix((values, (rows, columns)), shape=(len(living), n + 1)),
        b_ub=np.zeros(len(living)) if fixed is None else -np.asarray(fixed, dtype=float)[living],
        A_eq=sparse.coo_matrix(served, shape=(graph.n_experts, n + 1)),
        b_eq=np.asarray(demand, dtype=float),
        bounds=[(0, None if capacities is None else float(capacities[slot])) for slot in slots] + [(0, None)],
        method="highs",
    )
    if result.status != 0:
        raise ValueError(result.message)
    return float(result.fun)
