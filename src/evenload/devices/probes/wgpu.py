"""The probe of wgpu: GPUs through Vulkan, Metal, Direct3D 12, or OpenGL where nothing better is there."""

import contextlib
import ctypes
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evenload.devices.device import Device, Kind
from evenload.devices.probe import ProbeReport
from evenload.devices.probes.child import ask_child
from evenload.errors import quoted

BACKENDS = {"Metal": "metal", "Vulkan": "vulkan", "D3D12": "d3d12", "OpenGL": "opengl", "OpenGLES": "opengl"}
BEST_FIRST = ("metal", "vulkan", "d3d12", "opengl")
KINDS: dict[str, Kind] = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "cpu"}
SOFTWARE = ("llvmpipe", "lavapipe", "softpipe", "swiftshader", "microsoft basic render")
# A driver that is installed or removed changes one of these folders.
DRIVER_FOLDERS = (
    Path("/usr/share/vulkan/icd.d"),
    Path("/usr/local/share/vulkan/icd.d"),
    Path("/etc/vulkan/icd.d"),
    Path("/usr/share/glvnd/egl_vendor.d"),
    Path("/dev/dri"),
)


def probe(
    ask: Callable[[], Sequence[Mapping[str, Any]]] | None = None, *, refresh: bool = False
) -> ProbeReport:
    """Find wgpu devices. ``ask`` replaces the child process that prints the adapters, for tests."""
    if ask is None:
        installed = importlib.util.find_spec("wgpu")
        if installed is None or installed.origin is None:
            return ProbeReport(
                "wgpu",
                status="missing",
                reason="the package wgpu is not installed",
                hint="pip install 'evenload[zk]'",
            )
        package = Path(installed.origin).parent
        script = Path(__file__).with_name("wgpu_child.py")
        adapters = ask_child(script, depends_on=(package, *DRIVER_FOLDERS), refresh=refresh)
    else:
        adapters = ask()
    devices = tuple(_devices(adapters))
    if not devices:
        return ProbeReport(
            "wgpu",
            status="absent",
            reason="wgpu finds no adapter",
            hint="install a Vulkan driver; `mesa-vulkan-drivers` (Debian, Ubuntu) brings one in software",
        )
    software = [d.id for d in devices if not d.is_accelerator]
    notes = (
        (f"{', '.join(software)}: a driver in software, on the CPU; used only by name",) if software else ()
    )
    return ProbeReport("wgpu", devices, notes=notes)


def open_adapter(uuid: str) -> Any:
    """Open the wgpu adapter of the device with this ``uuid``. Raises LookupError if it is gone."""
    adapters = adapters_here()
    for adapter, device in zip(adapters, _described([a.info for a in adapters]), strict=True):
        if device["uuid"] == uuid:
            return adapter
    raise LookupError(f"no wgpu adapter {quoted(uuid)}")


def adapters_here() -> Sequence[Any]:
    """Every adapter that wgpu finds, with the drivers loaded into this process."""
    import wgpu

    _load_triton_first()
    return wgpu.gpu.enumerate_adapters_sync()


def _load_triton_first() -> None:
    """Load Triton's machine code, if it is installed: torch imports it as soon as somebody trains.

    wgpu loads every Vulkan driver. Mesa's bring an LLVM, and where that is an older one (Debian 12: 15), the
    LLVM inside Triton, loaded later, would call its functions: the process dies of a segmentation fault.
    """
    triton = importlib.util.find_spec("triton") if "triton" not in sys.modules else None
    folders = triton.submodule_search_locations if triton is not None else None
    for folder in folders or ():
        with contextlib.suppress(OSError):  # built for another machine, or without this library
            ctypes.CDLL(str(Path(folder, "_C", "libtriton.so")))


def _devices(adapters: Sequence[Mapping[str, Any]]) -> list[Device]:
    """List each GPU once, by the best backend that reaches it, and at most one software driver.

    The same GPU shows up under Vulkan, Direct3D and OpenGL with names that differ, so a later backend adds
    only vendors that no earlier one has.
    """
    rows = sorted(_described(adapters), key=lambda row: BEST_FIRST.index(row["backend"]))
    chosen: list[dict[str, Any]] = []
    for backend in BEST_FIRST:
        vendors = {row["vendor"] for row in chosen}
        chosen += [row for row in rows if row["backend"] == backend and row["vendor"] not in vendors]
    hardware = [row for row in chosen if row["kind"] != "cpu"]
    software = [row for row in chosen if row["kind"] == "cpu"]
    return [
        Device(
            id=f"wgpu:{index}",
            kind=row["kind"],
            backend=row["backend"],
            name=row["name"],
            driver=row["driver"],
            uuid=row["uuid"],
            pci_id=row["pci_id"],
        )
        for index, row in enumerate(hardware + software[:1])
    ]


def _described(adapters: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Describe each adapter, in wgpu's order, with a ``uuid`` that is the same in every run."""
    seen: dict[str, int] = {}
    rows = []
    for adapter in adapters:
        name = str(adapter["device"] or "unnamed adapter")
        is_software = any(word in name.lower() for word in SOFTWARE)
        vendor, model = int(adapter["vendor_id"] or 0), int(adapter["device_id"] or 0)
        backend = BACKENDS.get(str(adapter["backend_type"]), "opengl")
        stem = f"{backend}-{vendor:04x}-{model:04x}"
        seen[stem] = seen.get(stem, -1) + 1
        rows.append(
            {
                "backend": backend,
                "kind": "cpu" if is_software else KINDS.get(str(adapter["adapter_type"]), "virtual"),
                "name": name,
                "driver": str(adapter["description"] or ""),
                "vendor": "software" if is_software else vendor or name,
                "pci_id": f"{vendor:04x}:{model:04x}" if vendor and model else None,
                "uuid": f"{stem}-{seen[stem]}",
            }
        )
    return rows
