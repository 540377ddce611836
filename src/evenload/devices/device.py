"""One device: what it is, never what it is doing."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Device", "Kind", "family_of"]

Kind = Literal["discrete", "integrated", "virtual", "cpu"]


@dataclass(frozen=True, slots=True)
class Device:
    """Something that work can be given to.

    id             "cuda:0", "mps:0", "wgpu:0", "cpu:0"; the part before the colon is the ``family``. On
                   another machine of a cluster with its name: "node2/cuda:0"
    kind           discrete, integrated, virtual (a share of a GPU, or one that will not say), or cpu
    backend        how it is reached: cuda, rocm, mps, vulkan, metal, d3d12, opengl, cpu
    memory_bytes   its memory, or the share of the machine's that this process may use; None if not known
    compute_units  multiprocessors of a GPU, cores of a CPU; None if not known
    uuid           what names it for ever, and what its backend opens it by
    threads        for a CPU slot: how many threads are its own
    pci_id         "vendor:device" in hex, the same whoever asks
    same_as        the id of the same hardware under a better backend; this one is then used only by name
    """

    id: str
    kind: Kind
    backend: str
    name: str
    memory_bytes: int | None = None
    compute_units: int | None = None
    driver: str = ""
    uuid: str | None = None
    threads: int | None = None
    pci_id: str | None = None
    same_as: str | None = None

    @property
    def family(self) -> str:
        return family_of(self.id)

    @property
    def index(self) -> int:
        return int(self.id.rpartition(":")[2])

    @property
    def node(self) -> str:
        """The machine it is in; "" for this one."""
        return self.id.rpartition("/")[0]

    @property
    def is_accelerator(self) -> bool:
        """Not a CPU, and not a CPU that poses as a GPU (a software Vulkan driver)."""
        return self.kind != "cpu"


def family_of(device_id: str) -> str:
    """ "cuda" of "cuda:0" and of "node2/cuda:0"."""
    return device_id.rpartition("/")[2].partition(":")[0]
