"""Which adapter runs the WGSL kernels of a device that somebody named."""

from collections.abc import Iterable

from evenload.devices import Device, DevicePool


def adapters_of(devices: Iterable[Device], found: Iterable[Device] | None = None) -> dict[str, str | None]:
    """For each accelerator among ``devices``, the ``uuid`` that ``Context`` opens; None where wgpu has none.

    A wgpu device has its own; a GPU that was named by CUDA or MPS is reached through its twin. CPUs are left
    out.

    found  where to look for twins; by default everything that this machine has
    """
    devices = list(devices)
    chosen: dict[str, str | None] = {d.id: d.uuid for d in devices if d.family == "wgpu"}
    rest = [d.id for d in devices if d.family not in ("cpu", "wgpu")]
    if rest:
        everything = DevicePool.discover() if found is None else found
        twins = {d.same_as: d.uuid for d in everything if d.family == "wgpu" and d.same_as}
        chosen |= {device_id: twins.get(device_id) for device_id in rest}
    return chosen
