"""What the benchmarks have the workers do. Importable in any worker: the folder is on PYTHONPATH."""

import contextlib
import ctypes
import os
import random
import time

SPEEDS = (1.0, 2.0, 4.0, 8.0)  # of the simulated devices

_slot: tuple[str, int] | None = None


def claim_slot(folder: str) -> int:
    """Number of the simulated device that this process drives, for good.

    A worker that knows its device drives that one, also as a replacement; else first come, first served.
    """
    global _slot
    if _slot is None or _slot[0] != folder:
        _slot = (folder, _own_slot(folder))
        sleep_precisely()
    return _slot[1]


def sleep_precisely() -> None:
    """Have Linux end this thread's sleeps on time, not up to 50 us late: 2 % of the shortest ones."""
    set_timer_slack, least_ns = 29, 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_timer_slack, least_ns, 0, 0, 0)


def _own_slot(folder: str) -> int:
    device = os.environ.get("EVENLOAD_DEVICE")
    number = int(device.partition(":")[2]) if device else 0
    while True:
        try:
            os.close(os.open(os.path.join(folder, str(number)), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            return number
        except FileExistsError:
            if device:
                return number
            number += 1


def warm_up(folder_and_seconds: tuple[str, float]) -> int:
    folder, seconds = folder_and_seconds
    slot = claim_slot(folder)
    time.sleep(seconds)
    return slot


def work(cost: float, folder: str, draw: int) -> int:
    """Sleep for ``cost`` at this device's speed.

    ``draw`` makes every draw a function of its own, so that nothing learned in one helps in the next.
    """
    device = claim_slot(folder) % len(SPEEDS)
    time.sleep(cost / SPEEDS[device])
    return device


def costs(n: int, total: float, draw: int = 1, sigma: float = 1.0) -> list[float]:
    """Lognormal costs of ``n`` items that add up to ``total``; alike if ``sigma`` is 0."""
    rng = random.Random(draw)
    raw = [rng.lognormvariate(0.0, sigma) for _ in range(n)]
    return [cost * total / sum(raw) for cost in raw]


def bound_s(found: list[float]) -> float:
    """Least time for all the work on all devices at once, and for the longest item on the fastest."""
    return max(sum(found) / sum(SPEEDS), max(found) / max(SPEEDS))


def same(x: object) -> object:
    return x


def add_one(array):
    return array + 1


def make_large(at: int):
    import numpy

    return numpy.full(1024 * 1024, float(at))


def pid_of(_: object) -> int:
    return os.getpid()


def last_of(array) -> int:
    return int(array[-1])
