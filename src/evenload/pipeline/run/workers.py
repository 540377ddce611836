"""A worker as its driver sees it, and what its process sees of the machine."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from evenload.devices import DevicePool, worker_environment
from evenload.pipeline.dispatch.worker_protocol import Order

__all__ = ["Worker", "group_environment"]


@dataclass(slots=True)
class Worker:
    """``order`` is what it works at; None while it waits for one."""

    number: int
    name: str
    group: str
    asked_s: float
    pid: int | None = None
    is_up: bool = False
    order: Order | None = None
    idle_since_s: float | None = None


def group_environment(
    pool: DevicePool, devices: Iterable[str], inherited: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Environment of one worker that has all of ``devices``: it sees them all, and has their threads."""
    several = [worker_environment(pool.device(device), pool, inherited) for device in devices]
    joined = dict(several[0])
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if joined[name] not in ("", "-1"):
            joined[name] = ",".join(one[name] for one in several)
    for name, value in joined.items():
        if name.endswith("_THREADS"):
            joined[name] = str(sum(int(one[name]) for one in several if one[name].isdigit())) or value
    return joined
