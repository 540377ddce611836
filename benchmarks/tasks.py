"""What the benchmarks have the workers do. Importable in any worker: the folder is on PYTHONPATH."""

import contextlib
import ctypes
import os
import time

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


def work(
    cost: float, folder: str, speeds: tuple[float, ...], drift_at: float | None, drift: float, draw: int
) -> int:
    """Sleep for ``cost`` at this device's speed; the last is ``drift`` times slower from ``drift_at`` on.

    ``draw`` makes every draw a function of its own, so that nothing learned in one helps in the next.
    """
    device = claim_slot(folder) % len(speeds)
    speed, now = speeds[device], time.time()
    seconds = cost / speed
    if drift_at is not None and device == len(speeds) - 1:
        before = max(0.0, min(seconds, drift_at - now))
        seconds = before + (cost - before * speed) / (speed / drift)
    time.sleep(seconds)
    return device


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
