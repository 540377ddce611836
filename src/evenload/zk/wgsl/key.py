"""A proving key made ready for a GPU: checked on the CPU, its points and tables kept on the device."""

import threading
import time

import numpy as np

from evenload.zk.formats.zkey import ZKey
from evenload.zk.key import ParallelMap, ProvingKey, checked_bases, facts_of
from evenload.zk.wgsl.domain import WgslDomain
from evenload.zk.wgsl.sums import WgslBases
from evenload.zk.wgsl_device import WgslDevice

__all__ = ["WgslKey"]


class WgslKey(ProvingKey):  # pyrefly: ignore  # its own __slots__ are its own
    """A key for WGSL kernels. Transforms, and the additions of points of both groups, run on the device; the
    sparse products, digits and their order, one fold per sum, blinding and verification on the CPU."""

    __slots__ = ()

    @classmethod
    def load(cls, key: ZKey, device: WgslDevice) -> "WgslKey":
        """As ``CpuKey.load``. Points are checked at level word64, whose form is that of the key file."""
        started = time.perf_counter()
        bases = {section: WgslBases(device, given) for section, given in checked_bases(key, "word64")}
        domain = WgslDomain(device, key.domain_size)
        level = f"wgsl-{device.variant}"
        return cls(
            level=level, domain=domain, bases=bases, seconds=time.perf_counter() - started, **facts_of(key)
        )

    def quotient(self, a: np.ndarray, b: np.ndarray, run: ParallelMap) -> np.ndarray:
        return self.domain.quotient(a, b)

    def multiply(
        self, section: str, scalars: np.ndarray, run: ParallelMap, buffers: threading.local
    ) -> np.ndarray:
        return self.bases[section].multiply(scalars)
