"""The devices that a prover was given, and the kernels that each of them runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenload.errors import ConfigError, NoUsableDevice, UnknownName, quoted
from evenload.gpu.llvm.layout import LEVELS

if TYPE_CHECKING:
    from evenload.devices import DevicePool

BACKENDS = ("cpu", "wgsl")
CPU_LEVELS = tuple(LEVELS)
WGSL_VARIANTS = ("u64", "limb13")


@dataclass(frozen=True, slots=True)
class ProvingDevice:
    """A device and its kernels: ``backend`` "cpu" or "wgsl", the latter on the adapter of this uuid."""

    id: str
    backend: str
    adapter: str | None = None


CPU = ProvingDevice("cpu:0", "cpu")


def find_pool(devices: Any, backend: str | None) -> "DevicePool | None":
    """The devices that are meant; None where nothing is searched: this process's CPU, the best adapter.

    Raises UnknownName, ConfigError or NoUsableDevice as ``DevicePool.select``.
    """
    if backend is not None and backend not in BACKENDS:
        raise UnknownName("backend", backend, BACKENDS)
    if devices is None or (devices == "cpu" and backend != "wgsl"):
        return None
    from evenload.devices import DevicePool

    return devices if isinstance(devices, DevicePool) else DevicePool.find(devices)


def proving_devices(pool: "DevicePool | None", backend: str | None = None) -> tuple[ProvingDevice, ...]:
    """Each device with its kernels: CPU slots run CPU kernels, everything else WGSL.

    Raises ConfigError if ``backend`` is not what the devices run, NoUsableDevice for a GPU that wgpu does not
    reach.
    """
    if pool is None:
        return (ProvingDevice("wgpu", "wgsl"),) if backend == "wgsl" else (CPU,)
    from evenload.gpu.wgsl.adapters import adapters_of

    adapters, found = adapters_of(pool), []
    for device in pool:
        kernels = "cpu" if device.family == "cpu" else "wgsl"
        if backend not in (None, kernels):
            raise ConfigError(
                f"{device.id} does not run backend {quoted(backend)}",
                hint="leave the backend out: devices decide",
            )
        if kernels == "wgsl" and adapters[device.id] is None:
            raise NoUsableDevice(
                f"{device.id} ({device.name}) has no driver for WGSL kernels",
                hint="install its Vulkan driver and evenload[zk], or prove on the CPU: --devices cpu",
            )
        found.append(ProvingDevice(device.id, kernels, adapters.get(device.id)))
    return tuple(found)


def split_level(level: str | None) -> tuple[str | None, str | None]:
    """(level of CPU kernels, variant of WGSL kernels); None: the best there is. Raises UnknownName."""
    if level is None or level in CPU_LEVELS:
        return level, None
    if level in WGSL_VARIANTS:
        return None, level
    raise UnknownName("level", level, (*CPU_LEVELS, *WGSL_VARIANTS))


def refuse_unused_level(level: str | None, devices: Sequence[ProvingDevice]) -> None:
    """Raises UnknownName for a level that does not exist, ConfigError for one that no device has."""
    backend = "wgsl" if split_level(level)[1] else "cpu"
    if level is not None and all(device.backend != backend for device in devices):
        known = CPU_LEVELS if devices[0].backend == "cpu" else WGSL_VARIANTS
        named = ", ".join(device.id for device in devices)
        raise ConfigError(
            f"level {quoted(level)} is of {backend} kernels, which {named} do not run",
            hint=f"use {' or '.join(known)}, or leave it out",
        )
