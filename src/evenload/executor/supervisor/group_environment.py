"""What the process of a worker with several devices sees of the machine."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from evenload.devices import DevicePool, worker_environment


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
