"""What was measured on: the processor, the devices, the versions, the day."""

import datetime
import os
import platform
from importlib import metadata
from typing import Any

__all__ = ["device_specs", "machine_facts", "package_versions"]

PACKAGES = ("evenload", "numpy", "numba", "llvmlite", "torch", "loky", "joblib")


def machine_facts() -> dict[str, Any]:
    from evenload.devices import DevicePool
    from evenload.devices.probes.cpu import cpu_name

    with DevicePool.discover() as pool:
        devices = [f"{device.id}: {device.name}" for device in pool]
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "devices": devices,
        "versions": package_versions(*PACKAGES),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def device_specs() -> tuple[str, ...]:
    """Selections from one device to all: of the GPUs if there are some that compute, else of CPU slots."""
    from evenload.devices import DevicePool

    with DevicePool.discover() as pool:
        gpus = [
            device.id for device in pool if device.family in ("cuda", "rocm", "xpu") and not device.same_as
        ]
    if gpus:
        sizes = sorted({1, 2, 4, 8, 16, len(gpus)} & set(range(1, len(gpus) + 1)))
        return tuple(",".join(gpus[:n]) for n in sizes)
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sizes = sorted({1, 2, 4, 8, 16, 32, 64, n_cores} & set(range(1, n_cores + 1)))
    return tuple(f"cpu*{n}" for n in sizes)


def package_versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of those ``packages`` that are installed."""
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
