"""Where proofs are made: the devices that a prover was given, and the kernels for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenload.errors import ConfigError, NoUsableDevice, UnknownName

if TYPE_CHECKING:
    from evenload.devices import DevicePool

__all__ = ["BACKENDS", "CPU", "Place", "places_of", "pool_of", "refuse_unused", "split_level"]

BACKENDS = ("cpu", "wgsl")
CPU_LEVELS = ("ifma52", "word64")
WGSL_VARIANTS = ("u64", "limb13")


@dataclass(frozen=True, slots=True)
class Place:
    """A device and its kernels: ``backend`` "cpu" or "wgsl", the latter on the adapter of this uuid."""

    device: str
    backend: str
    adapter: str | None = None


CPU = Place("cpu:0", "cpu")


def pool_of(devices: Any, backend: str | None) -> "DevicePool | None":
    """The devices that are meant; None for what needs no look around: this process's CPU, the best adapter.

    Raises UnknownName, ConfigError or NoUsableDevice as ``DevicePool.select``.
    """
    from evenload.devices import DevicePool

    if backend is not None and backend not in BACKENDS:
        raise UnknownName("backend", backend, BACKENDS)
    if devices is None or (devices == "cpu" and backend != "wgsl"):
        return None
    return devices if isinstance(devices, DevicePool) else DevicePool.find(devices)


def places_of(pool: "DevicePool | None", backend: str | None = None) -> tuple[Place, ...]:
    """A place for each device: CPU slots run CPU kernels, everything else WGSL.

    Raises ConfigError if ``backend`` is not what the devices run, NoUsableDevice for a GPU that wgpu does not
    reach.
    """
    if pool is None:
        return (Place("wgpu", "wgsl"),) if backend == "wgsl" else (CPU,)
    from evenload.gpu.wgsl.adapters import adapters_of

    adapters, places = adapters_of(pool), []
    for device in pool:
        kernels = "cpu" if device.family == "cpu" else "wgsl"
        if backend not in (None, kernels):
            raise ConfigError(
                f"{device.id} does not run backend {backend!r}", hint="leave the backend out: devices decide"
            )
        if kernels == "wgsl" and adapters[device.id] is None:
            raise NoUsableDevice(
                f"{device.id} ({device.name}) has no driver for WGSL kernels",
                hint="install its Vulkan driver and evenload[wgpu], or prove on the CPU: --devices cpu",
            )
        places.append(Place(device.id, kernels, adapters.get(device.id)))
    return tuple(places)


def split_level(level: str | None) -> tuple[str | None, str | None]:
    """(level of CPU kernels, variant of WGSL kernels); None: the best there is. Raises UnknownName."""
    if level is None or level in CPU_LEVELS:
        return level, None
    if level in WGSL_VARIANTS:
        return None, level
    raise UnknownName("level", level, (*CPU_LEVELS, *WGSL_VARIANTS))


def refuse_unused(level: str | None, places: Sequence[Place]) -> None:
    """Raises UnknownName for a level that does not exist, ConfigError for one that no device has."""
    backend = "wgsl" if split_level(level)[1] else "cpu"
    if level is not None and all(place.backend != backend for place in places):
        known = CPU_LEVELS if places[0].backend == "cpu" else WGSL_VARIANTS
        named = ", ".join(place.device for place in places)
        raise ConfigError(
            f"level {level!r} is of {backend} kernels, which {named} do not run",
            hint=f"use {' or '.join(known)}, or leave it out",
        )
