"""How many workers: ``max_workers`` and ``n_jobs`` of other libraries, as devices."""

from typing import Any

from evenload.devices import DevicePool
from evenload.errors import ConfigError, quoted

LOCAL = ("process", "inline")


def limited(devices: Any, most: int | None, backend: Any = "process") -> Any:
    """Return ``devices`` (as for ``evenload.map``), or the best ``most`` of them.

    Where "all" means the cores of the CPU, ``most`` workers share them, which may be more than cores.
    Raises ConfigError or NoUsableDevice.
    """
    if most is None:
        return devices
    if backend not in LOCAL:
        raise ConfigError(
            f"{quoted(most)} workers of the machines of {quoted(backend)}: which?",
            hint="name them: devices='cuda:0,1'",
        )
    pool = devices if isinstance(devices, DevicePool) else DevicePool.find(devices)
    if isinstance(devices, str) and devices == "all" and all(one.family == "cpu" for one in pool):
        return pool.select(f"cpu*{most}")
    return pool if len(pool) <= most else pool.select(most)
