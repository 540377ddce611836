"""Batches that have not happened but might: recent windows, with as much noise again as they show."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["as_demand", "stress"]


def stress(
    windows: NDArray[np.float64], n: int, random: np.random.Generator, lone_noise: float
) -> NDArray[np.float64]:
    """``n`` made-up windows [n, experts] from ``windows`` [windows, experts] of loads.

    Each is a window drawn at random with as much noise again as the windows have among themselves, and noise
    of the kind that counts have: its variance grows with the load. How much is estimated, as the median over
    experts of variance over mean. A plan that holds for these holds for the next batches better than one that
    fits the windows. One window tells nothing of how loads vary: it gets ``lone_noise``, in logarithms.
    """
    n_windows, n_experts = windows.shape
    drawn = windows[random.integers(n_windows, size=n)]
    noise = random.normal(0.0, 1.0, (n, n_experts))
    if n_windows == 1:
        return drawn * np.exp(lone_noise * noise)
    mean, variance = windows.mean(axis=0), windows.var(axis=0, ddof=1)
    ratio = np.median(variance[mean > 0] / mean[mean > 0]) if mean.any() else 0.0
    return np.maximum(drawn + noise * np.sqrt(ratio * drawn), 0.0)


def as_demand(windows: NDArray, speed: float) -> NDArray[np.float64]:
    """Scale each of ``windows`` [windows, experts] to sum to ``speed``; windows without load are left out.

    If none has any, the answer is one window of equal loads.
    """
    totals = windows.sum(axis=1)
    kept = windows[totals > 0]
    if not len(kept):
        kept, totals = np.ones((1, windows.shape[1])), np.array([float(windows.shape[1])])
    return np.ascontiguousarray(kept * (speed / totals[totals > 0][:, None]), dtype=np.float64)
