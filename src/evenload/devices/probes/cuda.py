"""The probe of NVIDIA's GPUs: through NVML, which does not initialise CUDA, else through torch in a child.

AMD's GPUs are found through torch (its ROCm build calls them "cuda").
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from evenload._optional import is_installed
from evenload.devices.device import Device, Kind
from evenload.devices.probe import ProbeReport, Reading
from evenload.devices.probes.child import ask_child
from evenload.devices.probes.torch_build import torch_build
from evenload.errors import quoted

# Any of these is a sign of NVIDIA's driver; the last is that of Linux inside Windows.
DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
INSTALL = "pip install nvidia-ml-py"
NVIDIA = 0x10DE
# Cores in a multiprocessor, by compute capability: NVML counts cores only. Source: CUDA guide, "Compute
# capabilities".
CORES_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
INTEGRATED = ("orin", "xavier", "tegra", "thor", "gb10", "jetson")


def probe(
    nvml: ModuleType | Any = None,
    environ: Mapping[str, str] = os.environ,
    ask_torch: Callable[[], Mapping[str, Any]] | None = None,
) -> ProbeReport:
    """Find CUDA devices; arguments replace the system's for tests."""
    if nvml is None and is_installed("pynvml") and _has_nvml():
        import pynvml as nvml
    if nvml is not None:
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            fault = error
        else:
            try:
                return _report(nvml, environ)
            finally:
                nvml.nvmlShutdown()
    else:
        fault = None
    missing = _what_is_missing(fault)
    return _through_torch(ask_torch, missing.reason) or missing


def open_sampler() -> "CudaSampler":
    import pynvml

    return CudaSampler(pynvml)


class CudaSampler:
    """An open NVML session. A figure that the driver does not give (MIG, vGPU, old boards) is None."""

    def __init__(self, nvml: ModuleType | Any):
        self._nvml = nvml
        nvml.nvmlInit()
        self._handles: dict[str, Any] = {}

    def read(self, device: Device) -> Reading:
        if device.uuid is None or device.backend != "cuda":
            return Reading()
        nvml = self._nvml
        if device.uuid not in self._handles:
            self._handles[device.uuid] = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        handle = self._handles[device.uuid]
        rates = _told(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = _told(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        processes = _told(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return Reading(
            utilization=None if rates is None else min(1.0, rates.gpu / 100),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            temperature_c=_told(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            foreign_processes=None if processes is None else _n_foreign(processes),
        )

    def close(self) -> None:
        self._handles.clear()
        self._nvml.nvmlShutdown()


def _report(nvml: Any, environ: Mapping[str, str]) -> ProbeReport:
    gpus = [list(_instances(nvml, index)) for index in range(nvml.nvmlDeviceGetCount())]
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    shown = visible([[device.uuid or "" for device in gpu] for gpu in gpus], mask)
    by_uuid = {device.uuid: device for gpu in gpus for device in gpu}
    devices = tuple(_renamed(by_uuid[uuid], index) for index, uuid in enumerate(shown))
    # A GPU counts as hidden only if no part of it is shown.
    hidden = [gpu[0].pci_id for gpu in gpus if gpu and not any(d.uuid in shown for d in gpu)]
    notes = []
    if hidden:
        notes.append(f"CUDA_VISIBLE_DEVICES={quoted(mask)} hides {len(hidden)} of {len(gpus)} GPUs")
    split = [n for n, gpu in enumerate(gpus) if any((d.uuid or "").startswith("MIG") for d in gpu)]
    if split:
        notes.append(f"GPU {', '.join(map(str, split))}: split by MIG, each instance is a device of its own")
    notes += [
        f"GPU {n}: MIG is on but no instance exists, so it cannot be used"
        for n, g in enumerate(gpus)
        if not g
    ]
    reason = (
        ""
        if devices
        else "every GPU is hidden or without a MIG instance"
        if gpus
        else "the driver finds no GPU"
    )
    return ProbeReport(
        "cuda", devices, reason=reason, notes=tuple(notes), hidden_ids=tuple(pci for pci in hidden if pci)
    )


def _instances(nvml: Any, index: int) -> Iterator[Device]:
    """Yield the GPU at NVML's ``index``, or each of its MIG instances."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    mig = _told(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if mig is None or mig[0] == 0:
        yield _device(nvml, handle, handle)
        return
    for position in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        instance = _told(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, position)
        if instance is not None:
            yield _device(nvml, instance, handle)


def _device(nvml: Any, handle: Any, gpu: Any) -> Device:
    """Describe ``handle``: the GPU itself, or a MIG instance of ``gpu``, of which NVML tells less."""
    name = nvml.nvmlDeviceGetName(handle)
    memory = _told(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = _told(nvml, nvml.nvmlDeviceGetPciInfo, gpu)
    return Device(
        id="cuda:0",
        kind=_kind(nvml, gpu, name, is_instance=handle is not gpu),
        backend="cuda",
        name=name,
        memory_bytes=None if memory is None else int(memory.total),
        compute_units=_compute_units(nvml, handle, gpu),
        driver=f"NVIDIA {nvml.nvmlSystemGetDriverVersion()}",
        uuid=nvml.nvmlDeviceGetUUID(handle),
        pci_id=None if pci is None else f"{pci.pciDeviceId & 0xFFFF:04x}:{pci.pciDeviceId >> 16:04x}",
    )


def _kind(nvml: Any, gpu: Any, name: str, *, is_instance: bool) -> Kind:
    if any(word in name.lower() for word in INTEGRATED):
        return "integrated"
    is_share = (
        _told(nvml, nvml.nvmlDeviceGetVirtualizationMode, gpu) == nvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU
    )
    return "virtual" if is_instance or is_share else "discrete"


def _compute_units(nvml: Any, handle: Any, gpu: Any) -> int | None:
    if handle is not gpu:
        attributes = _told(nvml, nvml.nvmlDeviceGetAttributes, handle)
        return None if attributes is None else int(attributes.multiprocessorCount)
    cores = _told(nvml, nvml.nvmlDeviceGetNumGpuCores, gpu)
    capability = _told(nvml, nvml.nvmlDeviceGetCudaComputeCapability, gpu)
    if not cores or capability is None:
        return None
    return cores // CORES_PER_SM.get(tuple(capability), 128)


def _told(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """Return the driver's answer; None if it gives an error."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None


def _renamed(device: Device, index: int) -> Device:
    from dataclasses import replace

    return replace(device, id=f"cuda:{index}")


def _n_foreign(processes: list[Any]) -> int:
    """Count the processes on a GPU that are neither this one nor its children."""
    if not processes:
        return 0
    import psutil

    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    return sum(process.pid not in ours for process in processes)


def _through_torch(ask: Callable[[], Mapping[str, Any]] | None, why: str) -> ProbeReport | None:
    """Find GPUs through torch, if both a build for them and their driver are installed; else None."""
    if ask is None:
        build = torch_build()
        has_nvidia = any(os.path.exists(path) for path in DRIVER_FILES)
        if not (build.cuda and has_nvidia) and not (build.hip and os.path.exists("/dev/kfd")):
            return None
        script = Path(__file__).with_name("torch_child.py")
        found = ask_child(script, depends_on=[build.version_file] if build.version_file else [])
    else:
        found = ask()
    backend = "rocm" if found["hip"] else "cuda"
    version = f"ROCm {found['hip']}" if found["hip"] else f"CUDA {found['cuda']}"
    devices = tuple(
        Device(
            id=f"cuda:{index}",
            kind="integrated" if gpu["is_integrated"] else "discrete",
            backend=backend,
            name=gpu["name"],
            memory_bytes=gpu["memory_bytes"],
            compute_units=gpu["compute_units"],
            driver=version,
            uuid=_nvidia_uuid(gpu["uuid"]) if backend == "cuda" else None,
        )
        for index, gpu in enumerate(found["gpus"])
    )
    if not devices:
        return None
    wants_nvml = backend == "cuda" and not is_installed("pynvml")
    return ProbeReport(
        "cuda",
        devices,
        notes=(f"found through torch ({why}), so load and temperature are not known",),
        hint=INSTALL if wants_nvml else "",
    )


def _nvidia_uuid(uuid: str | None) -> str | None:
    return None if uuid is None else uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _what_is_missing(fault: Exception | None) -> ProbeReport:
    """Report why NVML cannot be used: no driver, no package, no library, or a ``fault`` of the driver."""
    if fault is not None:
        hint = "see what nvidia-smi says; the driver is at fault"
        return ProbeReport("cuda", status="failed", reason=f"NVML: {fault}", hint=hint)
    if not any(os.path.exists(path) for path in DRIVER_FILES) and not _has_nvml():
        return ProbeReport("cuda", status="absent", reason="no NVIDIA driver on this machine")
    if not is_installed("pynvml"):
        return ProbeReport("cuda", status="missing", reason="nvidia-ml-py is not installed", hint=INSTALL)
    return ProbeReport(
        "cuda",
        status="failed",
        reason="an NVIDIA driver is here, but not its library libnvidia-ml",
        hint="in a container, start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    )


def _has_nvml() -> bool:
    """Whether the driver's library can be loaded; only then its Python binding is imported."""
    library = {"linux": "libnvidia-ml.so.1", "win32": "nvml.dll"}.get(sys.platform)
    if library is None:
        return False
    import ctypes

    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def visible(gpus: Sequence[Sequence[str]], mask: str | None) -> list[str]:
    """Return the UUIDs that ``mask`` shows, in its order.

    gpus  [GPUs in nvidia-smi's order] the GPU's UUID, or those of its MIG instances
    mask  numbers, UUIDs or their beginnings, separated by commas; None shows all, an empty one nothing

    The first entry that names nothing, or something named before, ends the list; CUDA ignores the rest.
    A number that names a GPU split by MIG shows its instances. (CUDA itself would show only the first; here
    each worker gets its own by UUID, so all can be used.)
    Source: CUDA programming guide, "CUDA environment variables".
    """
    if mask is None:
        return [uuid for gpu in gpus for uuid in gpu]
    shown: list[str] = []
    for entry in mask.split(","):
        named = _named(gpus, entry.strip())
        if not named or any(uuid in shown for uuid in named):
            break
        shown += named
    return shown


def _named(gpus: Sequence[Sequence[str]], entry: str) -> list[str]:
    if entry.isdigit():
        return list(gpus[int(entry)]) if int(entry) < len(gpus) else []
    matches = [uuid for gpu in gpus for uuid in gpu if entry and uuid.lower().startswith(entry.lower())]
    return matches if len(matches) == 1 else []
