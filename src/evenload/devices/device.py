"""One device: what it is, never what it is doing."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["discrete", "integrated", "virtual", "cpu"]


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a worker can run on.

    id             "cuda:0", "mps:0", "wgpu:0", "cpu:0"; the part before the colon is the ``family``. On
                   another machine of a cluster its name goes before: "node2/cuda:0"
    kind           discrete, integrated, virtual (a share of a GPU, or of unknown kind), or cpu
    backend        how it is reached: cuda, rocm, mps, vulkan, metal, d3d12, opengl, cpu
    memory_bytes   its memory, or the share of the machine's that this process may use; None if not known
    compute_units  multiprocessors of a GPU, cores of a CPU; None if not known
    uuid           a permanent name, by which its backend opens it
    threads        for a CPU slot: how many threads are its own
    pci_id         "vendor:device" in hex, the same in every backend
    same_as        the id of the same hardware under a better backend; this one is used only if named
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
        """The name of its machine; "" for this one."""
        return self.id.rpartition("/")[0]

    @property
    def is_accelerator(self) -> bool:
        """Whether it is neither a CPU nor a software Vulkan driver, which runs on one."""
        return self.kind != "cpu"


def family_of(device_id: str) -> str:
    """Return the family of a device id: "cuda" of "cuda:0" and of "node2/cuda:0"."""
    return device_id.rpartition("/")[2].partition(":")[0]
