"""The clone planner's problem as integer programs for scipy's HiGHS: slow, exact, independent of the
planner."""

import numpy as np
from numpy.typing import NDArray

from evenload.moe.cloning.load_certificate import CloneLayer

__all__ = ["best_plan"]


def best_plan(
    counts: NDArray[np.int64], layer: CloneLayer, tolerance: float = 1.0, limit_s: float = 60.0
) -> tuple[int, int]:
    """(the lowest peak, the fewest fetches within ``tolerance`` times it), for small layers; ``counts``
    are of experts.

    Raises ValueError if that took longer than ``limit_s``. Needs scipy, which evenload itself does not.
    """
    peak = _solve(counts, layer, None, limit_s)
    return peak, _solve(counts, layer, int(peak * tolerance), limit_s)


def _solve(counts: NDArray[np.int64], layer: CloneLayer, peak: int | None, limit_s: float) -> int:
    """Variables: tokens [experts, ranks], whole; is there [experts, ranks], 0 or 1; the peak."""
    from scipy import optimize, sparse

    n_experts, n_ranks = layer.n_experts, layer.n_ranks
    n = n_experts * n_ranks
    eye, ones = sparse.identity, np.ones
    of_expert = sparse.kron(eye(n_experts), ones((1, n_ranks)))
    of_rank = sparse.kron(ones((1, n_experts)), eye(n_ranks))
    demand = sparse.diags(np.repeat(counts.astype(float), n_ranks))
    is_home = np.zeros((n_experts, n_ranks))
    is_home[np.arange(n_experts), layer.homes] = 1
    zero = sparse.csr_matrix
    floor = sparse.diags((layer.least_tokens * (1 - is_home)).ravel())
    is_near = layer.domains[layer.homes][:, None] == layer.domains
    held = np.bincount(layer.homes, minlength=n_ranks)
    rows = [
        (sparse.hstack([of_expert, zero((n_experts, n + 1))]), counts, counts),
        (sparse.hstack([of_rank, zero((n_ranks, n)), -ones((n_ranks, 1))]), -np.inf, 0),
        (sparse.hstack([eye(n), -demand, zero((n, 1))]), -np.inf, 0),
        (sparse.hstack([eye(n), -floor, zero((n, 1))]), 0, np.inf),
        (sparse.hstack([zero((n_ranks, n)), of_rank, zero((n_ranks, 1))]), -np.inf, held + layer.spare),
        (sparse.hstack([zero((n_experts, n)), of_expert, zero((n_experts, 1))]), -np.inf, layer.cap + 1),
    ]
    cost = np.zeros(2 * n + 1)
    cost[n : 2 * n] = 0.0 if peak is None else 1.0
    cost[-1] = 1.0 if peak is None else 0.0
    most = np.inf if peak is None else peak
    result = optimize.milp(
        cost,
        constraints=[optimize.LinearConstraint(matrix, low, high) for matrix, low, high in rows],
        integrality=ones(2 * n + 1),
        bounds=optimize.Bounds(
            np.concatenate([np.zeros(n), is_home.ravel(), [0]]),
            np.concatenate([np.repeat(counts, n_ranks), is_near.ravel().astype(float), [most]]),
        ),
        options={"time_limit": limit_s, "mip_rel_gap": 0.0},
    )
    if result.status != 0:
        raise ValueError(result.message)
    return round(result.fun) - (0 if peak is None else n_experts)
