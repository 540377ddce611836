"""A proving key with the forms of it that devices of this process have loaded."""

import dataclasses
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from evenload.errors import ConfigError
from evenload.gpu.llvm import programs
from evenload.zk.formats.container import Source
from evenload.zk.formats.zkey import ZKey, read_zkey
from evenload.zk.key import CpuKey, ProvingKey
from evenload.zk.proving_devices import ProvingDevice, split_level
from evenload.zk.worker import ProofWorker

if TYPE_CHECKING:
    from evenload.zk.wgsl_device import WgslDevice


class KeyStore:
    """A proving key, loaded once for each device of this process, and shared by the workers on it.

    source  what the key is read from: a path, bytes, or a ``ZKey``
    level   of CPU kernels or variant of WGSL ones; it concerns only the devices whose kernels have it
    first   a device to load it for at once; others are loaded when they are asked for
    gpu     an opened adapter that stays open, for every device of backend "wgsl"
    keeps   a key of a file, checked for the CPU, is kept for the next process (``zk/key_cache``)
    """

    def __init__(
        self,
        zkey: Source | ZKey,
        level: str | None = None,
        threads: int = 1,
        first: ProvingDevice | None = None,
        gpu: "WgslDevice | None" = None,
        keeps: bool = False,
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
        self._given_gpu: WgslDevice | None = gpu
        self._own_gpus: list[WgslDevice] = []
        self._threads = ThreadPoolExecutor(threads) if threads > 1 else None
        is_cpu = first is not None and first.backend == "cpu"
        self._keeps = keeps and is_cpu and isinstance(self.source, str | os.PathLike)
        if self._keeps and first is not None:
            kept = self._keys[_shared(first)] = self._kept_key()
            self.verification_key, self.sha256 = kept.verifier.key, kept.sha256
            return
        key = self._read()
        self.verification_key, self.sha256 = key.verification_key, key.sha256
        if first is not None:
            self.key(first, key)

    def key(self, device: ProvingDevice, read: ZKey | None = None) -> ProvingKey:
        """The key on a device; CPU slots of one process share it. ``read``: the key, just parsed."""
        shared = _shared(device)
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
        run = self._threads.map if self._threads else map
        return ProofWorker(self.key(device), self.reference_key, run, self._distrust)

    def close(self) -> None:
        """End threads and free the GPUs that were opened here."""
        if self._threads:
            self._threads.shutdown()
        for gpu in self._own_gpus:
            gpu.close()

    def _kept_key(self) -> CpuKey:
        from evenload.zk.key_cache.cache import kept_key

        level = programs.chosen_level(self._cpu_level)
        return kept_key(Path(self.source), level, lambda: CpuKey.load(self._read(), level))

    def _distrust(self) -> None:
        """A proof was wrong, and right by the plain kernels: do not use what was kept again."""
        if self._keeps:
            from evenload.zk.key_cache.cache import forget

            forget(self.sha256, programs.chosen_level(self._cpu_level))

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
            return CpuKey.load(key, programs.chosen_level(self._cpu_level))
        from evenload.zk.wgsl.key import WgslKey
        from evenload.zk.wgsl_device import WgslDevice

        gpu = self._given_gpu
        if gpu is None:
            gpu = WgslDevice(device.adapter, cast(Any, self._variant))
            self._own_gpus.append(gpu)
        return WgslKey.load(key, gpu)


def _shared(device: ProvingDevice) -> ProvingDevice:
    """What devices that share a loaded key have in common: all CPU slots, all of one adapter."""
    return ProvingDevice("", device.backend, device.adapter)
