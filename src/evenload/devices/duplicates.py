"""Linking GPUs that are found twice: through CUDA (or MPS) and through wgpu."""

import re
from collections.abc import Sequence
from dataclasses import replace

from evenload.devices.device import Device


def link_duplicates(devices: Sequence[Device], hidden_ids: Sequence[str] = ()) -> tuple[Device, ...]:
    """Set ``same_as`` of every wgpu device that a native backend reaches too.

    They are matched one to one, by PCI id if both have one, else by name. A wgpu device that matches none but
    has the PCI id of a GPU that a mask hides (``hidden_ids``) is left out: wgpu knows no CUDA masks.
    """
    native = [device for device in devices if device.family in ("cuda", "mps")]
    hidden = list(hidden_ids)
    linked = []
    for device in devices:
        if device.family != "wgpu":
            linked.append(device)
            continue
        twin = next((other for other in native if _is_same(device, other)), None)
        if twin is not None:
            native.remove(twin)
            linked.append(replace(device, same_as=twin.id))
        elif device.pci_id in hidden:
            hidden.remove(device.pci_id)
        else:
            linked.append(device)
    return tuple(linked)


def _is_same(device: Device, other: Device) -> bool:
    if not device.is_accelerator:
        return False
    if device.pci_id and other.pci_id:
        return device.pci_id == other.pci_id
    ours, theirs = _plain(device.name), _plain(other.name)
    return ours in theirs or theirs in ours


def _plain(name: str) -> str:
    """Reduce a name to letters and digits, without additions of drivers such as "(TM)", "/PCIe/SSE2"."""
    return re.sub(r"\(.*?\)|[^a-z0-9]", "", name.split("/")[0].lower())
