"""Scenarios for the search: recent windows scaled to demand, and made-up ones with more noise."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["as_demand", "stress"]


def stress(
    windows: NDArray[np.float64], n: int, random: np.random.Generator, lone_noise: float
) -> NDArray[np.float64]:
    """``n`` made-up windows [n, experts] from ``windows`` [windows, experts] of loads.

    Each is a window drawn at random plus noise as large as the windows' own, with a variance in proportion to
    the load, as counts have it. The factor is estimated as the median over experts of variance over mean. A
    placement that is good for these is better for the next batches than one that fits the windows alone.
    From one window no variance can be estimated: it is multiplied by log-normal noise of ``lone_noise``.
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
    """Scale each of ``windows`` [windows, experts] to sum to ``speed``; windows without load are dropped.

    Returns one window of equal loads if there is no load at all.
    """
    totals = windows.sum(axis=1)
    kept = windows[totals > 0]
    if not len(kept):
        kept, totals = np.ones((1, windows.shape[1])), np.array([float(windows.shape[1])])
    return np.ascontiguousarray(kept * (speed / totals[totals > 0][:, None]), dtype=np.float64)
