"""The task that every rival runs, the devices that it runs on, and what it writes down of each item.

A modelled device takes cost / speed seconds for an item, by sleeping, so that it matters little what else the
machine does. Its speeds are pairs (since when, speed), counted from the first item's start; at speed 0 it is
dead, and takes each worker with it that touches it. A real one (None) computes products with numpy.
"""

import fcntl
import functools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from bench_tasks import sleep_precisely

ITEM = dict[str, Any]  # {"item": its number, "payload": bytes}: all that a rival is told
ROUNDS = 60  # of products for one unit of cost, on a real device
SIZE = 192


class Task:
    """What is done with an item: written down by itself when it starts and when it stops."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, device: int, item: ITEM) -> int:
        work, number = world(self.folder), item["item"]
        rates, cost, fault = work["devices"][device], work["costs"][number], work["faults"].get(str(number))
        sleep_precisely()
        start, cpu = time.monotonic_ns(), time.thread_time_ns()
        self._write([number, device, start])
        is_first = bool(fault) and self._create(f"fault-{number}", "")
        if is_first and fault == "hangs":
            time.sleep(100_000)
        if rates is None:
            compute(cost)
        else:
            self._create("epoch", str(start))
            spend(cost, rates, start, int((Path(self.folder) / "epoch").read_text()))
        if is_first and fault == "kills its worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if is_first and fault == "raises":
            raise RuntimeError(f"item {number} fails once")
        self._write([number, device, start, time.monotonic_ns(), time.thread_time_ns() - cpu])
        return number

    def _write(self, row: list[int]) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        file = os.open(os.path.join(self.folder, f"records-{os.getpid()}"), flags, 0o600)
        os.write(file, (json.dumps(row) + "\n").encode())
        os.close(file)

    def _create(self, name: str, text: str) -> bool:
        """Make a file that appears whole; False if there is one."""
        own = Path(self.folder) / f"{name}.{os.getpid()}"
        own.write_text(text)
        try:
            os.link(own, Path(self.folder) / name)
        except FileExistsError:
            return False
        finally:
            own.unlink()
        return True


@functools.lru_cache(2)
def world(folder: str) -> dict[str, Any]:
    """Costs, faults and devices of a run: nothing that a rival could see."""
    return json.loads((Path(folder) / "world.json").read_text())


def spend(cost: float, rates: list[list[float]], start: int, epoch: int) -> None:
    """Sleep until a device is through with an item that began at ``start``."""
    at, ends = (start - epoch) / 1e9, [since for since, _ in rates[1:]] + [float("inf")]
    for (_, speed), end in zip(rates, ends, strict=True):
        if at >= end:
            continue
        if speed == 0:
            sleep_until(epoch + int(at * 1e9))
            os.kill(os.getpid(), signal.SIGKILL)
        if cost <= speed * (end - at):
            return sleep_until(epoch + int((at + cost / speed) * 1e9) + 1)
        cost, at = cost - speed * (end - at), end


def sleep_until(ns: int) -> None:
    while (left := ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def compute(cost: float) -> None:
    import numpy as np

    a = np.full((SIZE, SIZE), 1.0 / SIZE)
    for _ in range(max(1, round(cost * ROUNDS))):
        a = a @ a


def claim() -> int:
    """The first device that no other living process has, this one's for as long as it lives."""
    global _claimed
    if _claimed is None:
        for number in range(int(os.environ["REFEREE_DEVICES"])):
            file = os.open(f"{os.environ['REFEREE_FOLDER']}/device-{number}", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                continue
            _claimed = number
            break
        else:
            raise RuntimeError("more workers than devices")
    return _claimed


_claimed: int | None = None


def on_claimed(task: Task, item: ITEM) -> int:
    return task(claim(), item)
