"""A proving key with the forms of it that devices of this process have loaded."""

import dataclasses
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from evenload.errors import ConfigError
from evenload.gpu.llvm import programs
from evenload.zk.formats.container import Source
from evenload.zk.formats.zkey import ZKey, read_zkey
from evenload.zk.key import CpuKey, ProvingKey
from evenload.zk.proving_devices import ProvingDevice, split_level
from evenload.zk.wgsl_device import WgslDevice
from evenload.zk.worker import ProofWorker

__all__ = ["KeyStore"]


class KeyStore:
    """A proving key, loaded once for each device of this process, and shared by the workers on it.

    source  what the key is read from: a path, bytes, or a ``ZKey``
    first   a device to load it for at once; others are loaded when they are asked for
    gpu     an opened adapter that stays open, for every device of backend "wgsl"
    """

    def __init__(
        self,
        zkey: Source | ZKey,
        level: str | None = None,
        threads: int = 1,
        first: ProvingDevice | None = None,
        gpu: WgslDevice | None = None,
    ):
        if threads < 1:
            raise ConfigError(f"threads is {threads}, must be at least 1")
        # A file is read once: the key is needed again if a proof fails, and for workers of other processes.
        is_file = not isinstance(zkey, str | os.PathLike | bytes | bytearray | ZKey)
        self.source: Any = zkey.read() if is_file else zkey
        self._cpu_level, self._variant = split_level(level)
        self._keys: dict[ProvingDevice, ProvingKey] = {}
        self._reference: CpuKey | None = None
        self._lock = threading.Lock()
        self._given_gpu, self._own_gpus = gpu, list[WgslDevice]()
        self._threads = ThreadPoolExecutor(threads) if threads > 1 else None
        key = self._read()
        self.verification_key, self.sha256 = key.verification_key, key.sha256
        if first is not None:
            self.key(first, key)

    def key(self, device: ProvingDevice, read: ZKey | None = None) -> ProvingKey:
        """The key on a device; CPU slots of one process share it. ``read``: the key, just parsed."""
        shared = ProvingDevice("", device.backend, device.adapter)
        with self._lock:
            if shared not in self._keys:
                self._keys[shared] = self._load(read or self._read_again(), device)
            return self._keys[shared]

    def reference_key(self) -> CpuKey:
        """The key read anew and loaded for the plain 64-bit kernels.

        Raises ConfigError if the file was changed since it was loaded.
        """
        with self._lock:
            if self._reference is None:
                self._reference = CpuKey.load(self._read_again(), "word64")
            return self._reference

    def spawn_worker(self, device: ProvingDevice) -> ProofWorker:
        """A worker on a device, with its own buffers and counts."""
        return ProofWorker(self.key(device), self.reference_key, self._threads.map if self._threads else map)

    def close(self) -> None:
        """End threads and free the GPUs that were opened here."""
        if self._threads:
            self._threads.shutdown()
        for gpu in self._own_gpus:
            gpu.close()

    def _read(self) -> ZKey:
        if isinstance(self.source, ZKey):  # loading empties the section table, and this one is not ours
            return dataclasses.replace(self.source, sections=dict(self.source.sections))
        return read_zkey(self.source)

    def _read_again(self) -> ZKey:
        key = self._read()
        if key.sha256 != self.sha256:
            raise ConfigError(f"{key.name} is another file than the one that was loaded")
        return key

    def _load(self, key: ZKey, device: ProvingDevice) -> ProvingKey:
        if device.backend == "cpu":
            return CpuKey.load(key, self._cpu_level or programs.best_level())
        from evenload.zk.wgsl.key import WgslKey

        gpu = self._given_gpu
        if gpu is None:
            gpu = WgslDevice(device.adapter, cast(Any, self._variant))
            self._own_gpus.append(gpu)
        return WgslKey.load(key, gpu)
