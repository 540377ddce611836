"""NVML as its binding presents it, for machines without NVIDIA's driver: the boundary, nothing behind it.

Names, argument order, return types and units are those of nvidia-ml-py 13: structures with the fields
that the driver fills in, ``NVMLError`` for what a board does not support. Figures are those of data sheets.
"""

from types import SimpleNamespace

import pytest


class NVMLError(Exception):
    pass


class NotSupported(NVMLError):
    def __str__(self):
        return "Not Supported"


class Gpu:
    """A board, or a MIG instance of one (then ``is_instance``)."""

    def __init__(self, name, uuid, gib, cores=None, capability=None, pci=None, instances=None, **more):
        self.name, self.uuid, self.memory = name, uuid, gib * 2**30
        self.cores, self.capability, self.pci = cores, capability, pci
        self.instances = instances
        self.is_instance = more.get("is_instance", False)
        self.multiprocessors = more.get("multiprocessors")
        self.virtualization = more.get("virtualization", 0)
        self.busy, self.used, self.celsius = more.get("busy", 0), more.get("used", 0), more.get("celsius", 30)
        self.pids = more.get("pids", ())


class Nvml:
    """Counts its sessions, so that a test can see that each was closed."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_GPU_VIRTUALIZATION_MODE_VGPU = 2

    def __init__(self, *gpus, fault=None):
        self.gpus, self.fault, self.sessions = gpus, fault, 0

    def nvmlInit(self):
        if self.fault is not None:
            raise self.fault
        self.sessions += 1

    def nvmlShutdown(self):
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self):
        return "575.57.08"

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        every = [part for gpu in self.gpus for part in (gpu, *(gpu.instances or ()))]
        for gpu in every:
            if gpu.uuid == uuid:
                return gpu
        raise NVMLError("Not Found")

    def nvmlDeviceGetName(self, gpu):
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu):
        return gpu.uuid

    def nvmlDeviceGetMemoryInfo(self, gpu):
        return SimpleNamespace(total=gpu.memory, free=gpu.memory - gpu.used, used=gpu.used)

    def nvmlDeviceGetPciInfo(self, gpu):
        return SimpleNamespace(pciDeviceId=gpu.pci)

    def nvmlDeviceGetVirtualizationMode(self, gpu):
        return gpu.virtualization

    def nvmlDeviceGetMigMode(self, gpu):
        if gpu.capability is None or gpu.capability < [8, 0]:
            raise NotSupported
        on = int(gpu.instances is not None)
        return [on, on]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, index):
        if index >= len(gpu.instances):
            raise NVMLError("Not Found")
        return gpu.instances[index]

    def nvmlDeviceGetAttributes(self, gpu):
        return SimpleNamespace(multiprocessorCount=gpu.multiprocessors)

    def nvmlDeviceGetNumGpuCores(self, gpu):
        if gpu.cores is None:
            raise NotSupported
        return gpu.cores

    def nvmlDeviceGetCudaComputeCapability(self, gpu):
        if gpu.capability is None:
            raise NotSupported
        return tuple(gpu.capability)

    def nvmlDeviceGetUtilizationRates(self, gpu):
        if gpu.is_instance:
            raise NotSupported
        return SimpleNamespace(gpu=gpu.busy, memory=0)

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        if gpu.is_instance:
            raise NotSupported
        return gpu.celsius

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in gpu.pids]


def h200(n=0, **more):
    return Gpu("NVIDIA H200", f"GPU-{n}2c4e6a8-0000", 141, 16896, [9, 0], 0x233510DE, **more)


def a100(n=0, **more):
    return Gpu("NVIDIA A100-SXM4-80GB", f"GPU-{n}a100a10-0000", 80, 6912, [8, 0], 0x20B210DE, **more)


def gtx1060(n=0, **more):
    return Gpu("NVIDIA GeForce GTX 1060 6GB", f"GPU-{n}1060106-0000", 6, None, [6, 1], 0x1C0310DE, **more)


def mig_instance(n):
    return Gpu("NVIDIA A100-SXM4-80GB MIG 1g.10gb", f"MIG-{n}f00d", 10, is_instance=True, multiprocessors=14)


@pytest.fixture
def nvml():
    """What makes an NVML with boards in it: ``nvml.Nvml(nvml.h200(), nvml.a100(1))``."""
    return SimpleNamespace(
        Nvml=Nvml, h200=h200, a100=a100, gtx1060=gtx1060, mig_instance=mig_instance, NVMLError=NVMLError
    )


@pytest.fixture
def no_cache(tmp_path, monkeypatch):
    """A cache folder of the test's own, empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "evenload"
