"""A proving key made ready for a GPU: checked on the CPU, its points and tables kept on the device."""

import threading
import time

import numpy as np

from evenload.gpu.field import FR
from evenload.gpu.llvm import rows
from evenload.gpu.wgsl.context import Resident
from evenload.gpu.wgsl.field import WgslField
from evenload.gpu.wgsl.kernel import Buffer
from evenload.gpu.wgsl.queue import Queue
from evenload.gpu.wgsl.transform import butterfly_kernel, product_kernel, quotient_kernel, scale_kernel
from evenload.zk.cpu.ntt import bit_reversal, log_of_size, powers
from evenload.zk.formats.zkey import ZKey
from evenload.zk.key import ParallelMap, ProvingKey, checked_bases, facts_of
from evenload.zk.wgsl.sums import WgslBases
from evenload.zk.wgsl_device import WgslDevice


class WgslKey(ProvingKey):  # pyrefly: ignore  # its own __slots__ are its own
    """A key for WGSL kernels. Transforms, and the additions of points of both groups, run on the device; the
    sparse products, digits and their order, one fold per sum, blinding and verification on the CPU."""

    __slots__ = ()

    @classmethod
    def load(cls, key: ZKey, device: WgslDevice) -> "WgslKey":
        """Load as ``CpuKey.load`` does. Points are checked at level word64, whose form is the key file's."""
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


ROW_BYTES = 32
Vector = list[Buffer]


class WgslDomain:
    """The domain of ``size`` (a power of two) on one device; vectors are cut into pieces that fit a binding.

    piece  elements of a piece, a power of two; default: as many as fit (tests cut finer)
    """

    def __init__(self, device: WgslDevice, size: int, piece: int | None = None):
        log_size = log_of_size(size)
        self._device, self.size, self._log_size = device, size, log_size
        fits = 1 << (device.context.max_binding_bytes // ROW_BYTES).bit_length() - 1
        self._piece = min(size, piece or fits)
        field = WgslField(FR, device.variant)
        root, shift = FR.root_of_unity(size), FR.root_of_unity(2 * size)
        half, whole = bit_reversal(log_size - 1), bit_reversal(log_size)

        def resident(base: int, start: int, order: np.ndarray) -> list[Resident]:
            table = powers(base, len(order), field.montgomery(start))[order]
            pieces = [table[k : k + self._piece] for k in range(0, len(table), self._piece)]
            return [Resident(device.context, piece) for piece in pieces]

        self._scatter_roots = resident(pow(root, -1, FR.modulus), 1, half)
        self._gather_roots = resident(root, 1, half)
        self._coset = resident(shift, pow(size, -1, FR.modulus), whole)

    def quotient(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """[size, 4] plain canonical rows of a*b - c on the odd coset, where c is a*b on the domain.

        a, b  [size, 4] uint64 rows of values on the domain, Montgomery with R = 2^256, canonical
        """
        return self._device.run(lambda: self._on_device(a, b))

    def _on_device(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        context, variant = self._device.context, self._device.variant
        queue = self._device.queue()
        x, y = ([context.upload(part) for part in self._cut(values)] for values in (a, b))
        z = [context.buffer(piece.n_bytes) for piece in x]
        for bound in zip(x, y, z, strict=True):
            queue.dispatch(product_kernel(variant), bound, self._piece)
        for vector in (x, y, z):
            self._to_odd_coset(queue, vector)
        for bound in zip(x, y, z, strict=True):
            queue.dispatch(quotient_kernel(variant), bound, self._piece)
        queue.finish()
        out = rows.empty(self.size, ROW_BYTES)
        for part, piece in zip(self._cut(out), x, strict=True):
            part[:] = context.download(piece).view(np.uint64).reshape(-1, 4)
        return out

    def _cut(self, values: np.ndarray) -> list[np.ndarray]:
        return [values[k : k + self._piece] for k in range(0, self.size, self._piece)]

    def _to_odd_coset(self, queue: Queue, vector: Vector) -> None:
        variant = self._device.variant
        for log_half in range(self._log_size - 1, -1, -1):
            self._step(queue, vector, log_half, is_gather=False)
        for piece, factors in zip(vector, self._coset, strict=True):
            queue.dispatch(scale_kernel(variant), [piece, factors.buffer()], self._piece)
        for log_half in range(self._log_size):
            self._step(queue, vector, log_half, is_gather=True)

    def _step(self, queue: Queue, vector: Vector, log_half: int, is_gather: bool) -> None:
        """One layer of butterflies between elements 2^log_half apart."""
        half, variant = 1 << log_half, self._device.variant
        tables = self._gather_roots if is_gather else self._scatter_roots
        is_across = half >= self._piece
        kernel = butterfly_kernel(is_gather, is_across, variant)
        if not is_across:
            n_groups = self._piece // (2 * half)
            for k, piece in enumerate(vector):
                table, at = divmod(k * n_groups, self._piece)
                bound = [piece, tables[table].buffer()]
                queue.dispatch(kernel, bound, self._piece // 2, log_half=log_half, first_root=at)
            return
        apart = half // self._piece
        for k in range(len(vector)):
            group, place = divmod(k, 2 * apart)
            if place < apart:
                bound = [vector[k], vector[k + apart], tables[0].buffer()]
                queue.dispatch(kernel, bound, self._piece, log_half=log_half, first_root=group)
