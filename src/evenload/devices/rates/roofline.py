"""A device measured by its best products and copies: the roofs of the roofline model."""

import math
import time
from collections.abc import Callable
from typing import Any

from evenload._optional import require

LEAST_S = 0.2  # of products, and of copies, that are timed
SIDE = 1024  # of the matrices on a CPU, and four times that on an accelerator
COPIED = 1 << 26  # bytes, beyond the caches of a core


def measure(place: str) -> dict[str, float]:
    """Measure the device that torch calls ``place``: its best products and copies of several.

    Accelerators: 16-bit products, through torch. CPUs: float32 products, through numpy.
    """
    return _of_cpu() if place == "cpu" else _of_torch(place)


def _of_cpu() -> dict[str, float]:
    import numpy as np

    a = np.ones((SIDE, SIDE), np.float32)
    out, source = np.empty_like(a), np.ones(COPIED, np.uint8)
    target = np.empty_like(source)
    product_s = _best(lambda: np.matmul(a, a, out))
    copy_s = _best(lambda: np.copyto(target, source))
    return {"flop_per_s": 2 * SIDE**3 / product_s, "bytes_per_s": 2 * COPIED / copy_s}


def _of_torch(place: str) -> dict[str, float]:
    torch: Any = require("torch", extra="torch", why="measuring an accelerator")
    side, n_bytes = 4 * SIDE, 16 * COPIED
    a = torch.ones(side, side, dtype=torch.float16, device=place)
    source = torch.ones(n_bytes, dtype=torch.uint8, device=place)
    target, wait = torch.empty_like(source), getattr(torch, place.partition(":")[0]).synchronize

    def timed(work: Callable[[], Any]) -> Callable[[], None]:
        def both() -> None:
            work()
            wait()

        return both

    product_s, copy_s = _best(timed(lambda: a @ a)), _best(timed(lambda: target.copy_(source)))
    return {"flop_per_s": 2 * side**3 / product_s, "bytes_per_s": 2 * n_bytes / copy_s}


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest call, of as many as ``LEAST_S`` has room for."""
    work()
    best_s, until = math.inf, time.perf_counter() + LEAST_S
    while not math.isfinite(best_s) or time.perf_counter() < until:
        began = time.perf_counter()
        work()
        best_s = min(best_s, max(1e-9, time.perf_counter() - began))
    return best_s
