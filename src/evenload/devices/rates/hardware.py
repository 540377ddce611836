"""Look up accelerators by name, to plan for machines that are not at hand, from data sheets."""

import re
from dataclasses import dataclass

from evenload.errors import UnknownName

_PCIE4, _PCIE5 = 31.5e9, 63.0e9  # x16, bytes per second each way
_NO_OTHER = r"(?!\w| (ti|super|d|laptop|mobile|max-?q)\b)"  # not followed by what makes it another one


@dataclass(frozen=True, slots=True)
class Hardware:
    """An accelerator by its data sheet.

    tflops          10^12 operations per second of dense 16-bit matrix products
    memory_bytes_s  bytes per second that it reads and writes there
    bus_bytes_s     bytes per second of the link to the host, each way
    has_bfloat16    it computes in bfloat16; else that is emulated, many times slower
    """

    tflops: float
    memory_bytes_s: float
    bus_bytes_s: float
    has_bfloat16: bool = True


HARDWARE = {
    "h100": Hardware(989, 3.35e12, _PCIE5),
    "h200": Hardware(989, 4.8e12, _PCIE5),
    "b200": Hardware(2250, 8e12, _PCIE5),
    "a100": Hardware(312, 2.039e12, _PCIE4),
    "l40s": Hardware(362, 864e9, _PCIE4),
    "l4": Hardware(121, 300e9, _PCIE4),
    "a10": Hardware(125, 600e9, _PCIE4),
    "a6000": Hardware(155, 768e9, _PCIE4),
    "v100": Hardware(125, 900e9, _PCIE4 / 2, has_bfloat16=False),
    "t4": Hardware(65, 320e9, _PCIE4 / 2, has_bfloat16=False),
    "rtx5090": Hardware(209, 1792e9, _PCIE5),
    "rtx4090": Hardware(165, 1008e9, _PCIE4),
    "rtx4080": Hardware(97.5, 717e9, _PCIE4),
    "rtx4070": Hardware(58.3, 504e9, _PCIE4),
    "rtx4060": Hardware(30.2, 272e9, _PCIE4 / 2),
    "rtx3090": Hardware(71, 936e9, _PCIE4),
    "rtx3080": Hardware(59.5, 760e9, _PCIE4),
    "rtx3070": Hardware(40.6, 448e9, _PCIE4),
    "rtx3060": Hardware(25.5, 360e9, _PCIE4),
    "mi300x": Hardware(1307, 5.3e12, _PCIE5),
}


def hardware_named(name: str) -> Hardware:
    """Return the entry called ``name``, in any case. Raises UnknownName."""
    if name.lower() not in HARDWARE:
        raise UnknownName("accelerator", name, HARDWARE)
    return HARDWARE[name.lower()]


def find_hardware(product: str) -> Hardware | None:
    """Find the entry that a driver's product name means, such as "NVIDIA H100 80GB HBM3"; or None.

    A card of a like name is another: neither is "RTX 4070 Ti" an RTX 4070, nor "T400" a T4.
    """
    said = {name: re.sub(r"(?<=[a-z])(?=\d)", " ?", name) for name in HARDWARE}
    names = [name for name in said if re.search(rf"\b{said[name]}{_NO_OTHER}", product.lower())]
    return HARDWARE[max(names, key=len)] if names else None


def peak_rates(product: str) -> dict[str, float]:
    """What a device of this product name reaches at most by its data sheet, as the facts of a run name it.

    Returns ``flop_per_s`` and ``bytes_per_s``; nothing for a product that the table does not have.
    """
    found = find_hardware(product)
    if found is None:
        return {}
    return {"flop_per_s": found.tflops * 1e12, "bytes_per_s": found.memory_bytes_s}
