"""Part ``machine``: what evenload finds and reads of this machine, beside what NVML and torch say of it."""

import importlib
import threading
from typing import Any

from part import Part, main

LOAD_S = 1.5  # of products, while the load is read


def discovered(part: Part) -> None:
    """Each device with its score, and whether torch says the same of it."""
    from evenload.devices import DevicePool

    with DevicePool.discover() as pool:
        for device in pool:
            facts = {"kind": device.kind, "name": device.name, "score": round(pool.score(device.id), 3)}
            facts |= {"memory_bytes": device.memory_bytes, "compute_units": device.compute_units}
            if device.family == "cuda":
                facts |= torch_says(device.index, device.memory_bytes)
            part.row(f"device {device.id}", **facts)


def torch_says(index: int, memory_bytes: int | None) -> dict[str, Any]:
    import torch

    found = torch.cuda.get_device_properties(index)
    return {
        "torch_memory_bytes": found.total_memory,
        "torch_multiprocessors": found.multi_processor_count,
        "memory_off": None if memory_bytes is None else memory_bytes / found.total_memory - 1,
    }


def read_under_load(part: Part) -> None:
    """Utilisation and memory by evenload's telemetry while products run, beside NVML's at the same time."""
    import torch

    from evenload.devices import DevicePool

    stop = threading.Event()

    def products() -> None:
        a = torch.ones(512 if part.pretend else 8192, 512 if part.pretend else 8192, device=part.device)
        while not stop.is_set():
            a @ a
            if not part.pretend:
                torch.cuda.synchronize()

    with DevicePool.find("cpu*1" if part.pretend else "cuda:0") as pool:
        (device,) = pool
        idle = pool.load(device.id).reading
        thread = threading.Thread(target=products)
        thread.start()
        try:
            stop.wait(0.1 if part.pretend else LOAD_S)
            busy, nvml = pool.load(device.id).reading, nvml_says()
        finally:
            stop.set()
            thread.join()
    part.row(
        f"load of {device.id}", idle=idle.utilization, busy=busy.utilization,
        memory_used_bytes=busy.memory_used_bytes, temperature_c=busy.temperature_c, **nvml,
    )  # fmt: skip


def nvml_says() -> dict[str, Any]:
    """The first GPU's load, clock and power by NVML itself; {} without its package or driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        rates, memory = nvml.nvmlDeviceGetUtilizationRates(gpu), nvml.nvmlDeviceGetMemoryInfo(gpu)
        return {
            "nvml_busy": rates.gpu / 100,
            "nvml_memory_used_bytes": int(memory.used),
            "nvml_sm_mhz": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
            "nvml_watts": nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
        }
    except Exception as error:  # the package is missing, or a driver refuses one of these
        return {"nvml": f"{type(error).__name__}: {error}"[:200]}


def roofs(part: Part) -> None:
    """The best products and copies of this device, beside its data sheet."""
    import torch

    from evenload.devices.rates import known
    from evenload.devices.rates.hardware import peak_rates

    name = "the CPU" if part.pretend else torch.cuda.get_device_name(0)
    part.row(f"roofline of {name}", **known.measure(part.device), data_sheet=peak_rates(name))


def measure(part: Part) -> None:
    part.tried("devices", lambda: discovered(part))
    part.tried("load", lambda: read_under_load(part))
    part.tried("roofline", lambda: roofs(part))


if __name__ == "__main__":
    main(measure)
