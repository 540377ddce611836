"""One adapter: opened with the limits that our kernels need, tested, and opened again when it is lost."""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from evenload._optional import require
from evenload.devices.probes.wgpu import SOFTWARE
from evenload.errors import ConfigError, NoUsableDevice
from evenload.gpu.wgsl.kernel import (
    BINDING_ALIGNMENT,
    WORKGROUP,
    Buffer,
    KernelSource,
    Storage,
    binding_entries,
)

SLOT_BYTES = 256
N_SLOTS = 256
"""Dispatches that one submission holds."""


class Submission:
    """Recorded dispatches of one wgpu device; empty again once submitted.

    slots  parameters of each recorded dispatch: n, first, then the kernel's own
    """

    def __init__(self, wgpu: Any, device: Any):
        usage = wgpu.BufferUsage
        self._device = device
        self._uniforms = device.create_buffer(
            size=N_SLOTS * SLOT_BYTES, usage=usage.UNIFORM | usage.COPY_DST | usage.COPY_SRC
        )
        self._groups: dict[tuple, tuple[Any, list[Any]]] = {}
        self._encoder: Any = None
        self.slots: list[list[int]] = []

    @property
    def is_full(self) -> bool:
        return len(self.slots) == N_SLOTS

    def record(
        self, compiled: tuple[Any, Any], buffers: Sequence[Buffer], slot: list[int], n_items: int
    ) -> None:
        """Add a dispatch of ``n_items`` invocations; ``compiled`` is a pipeline with its layout."""
        pipeline, layout = compiled
        if self._encoder is None:
            self._encoder = self._device.create_command_encoder()
        compute_pass = self._encoder.begin_compute_pass()
        compute_pass.set_pipeline(pipeline)
        compute_pass.set_bind_group(0, self._group(layout, buffers), [len(self.slots) * SLOT_BYTES])
        compute_pass.dispatch_workgroups(-(-n_items // WORKGROUP))
        compute_pass.end()
        self.slots.append(slot)

    def submit(self) -> float:
        """Seconds until the GPU was done. Raises what the driver says is wrong."""
        slots = np.zeros((len(self.slots), SLOT_BYTES // 4), np.uint32)
        for slot, values in zip(slots, self.slots, strict=True):
            slot[: len(values)] = values
        encoder, self._encoder, self.slots = self._encoder, None, []
        queue = self._device.queue
        queue.write_buffer(self._uniforms, 0, slots)
        began_s = time.perf_counter()
        queue.submit([encoder.finish()])
        queue.read_buffer(self._uniforms, 0, 4)  # waits; on_submitted_work_done_sync fails in wgpu 0.32
        return time.perf_counter() - began_s

    def _group(self, layout: Any, buffers: Sequence[Buffer]) -> Any:
        key = (id(layout), *((id(buffer.raw), buffer.offset, buffer.n_bytes) for buffer in buffers))
        if key not in self._groups:
            uniform = {"buffer": self._uniforms, "offset": 0, "size": SLOT_BYTES}
            entries = [*binding_entries(buffers), {"binding": len(buffers), "resource": uniform}]
            made = self._device.create_bind_group(layout=layout, entries=entries)
            # A group keeps nothing alive, and the next object may get the id of one that is gone.
            self._groups[key] = made, [layout, *(buffer.raw for buffer in buffers)]
        return self._groups[key][0]


T = TypeVar("T")

LOOP_PROBE = 70_000
"""Iterations that the self-test asks for. Mesa's software driver 22.3 stops at 65,535 without a word."""
LOOP_CAP = 60_000
"""Iterations that a kernel may ask for on a driver that stops."""
LARGEST_BINDING = 1 << 30
BACKENDS = ("Metal", "Vulkan", "D3D12")
WANTED_LIMITS = ("max-buffer-size", "max-storage-buffer-binding-size")
log = logging.getLogger(__name__)


class Context:
    """A device on one adapter, with its compiled kernels.

    uuid       which adapter, as ``Device.uuid`` of a wgpu device names it; None for the best one
    max_loop   iterations that one invocation may make; None where the driver keeps its word
    has_int64  WGSL may use ``u64``
    Work goes through ``run``, which repeats it once on a new device if the driver lost the old one.
    For one thread at a time.
    Raises MissingExtra without wgpu, NoUsableDevice if no adapter can be opened.
    """

    def __init__(self, uuid: str | None = None):
        self._wgpu = require("wgpu", extra="zk", why="running kernels on a GPU")
        self._uuid = uuid
        self._find_adapter()
        info = self._adapter.info
        self.name, self.backend = str(info["device"]), str(info["backend_type"])
        self.is_software = any(word in self.name.lower() for word in SOFTWARE)
        self.has_int64 = "shader-int64" in self._adapter.features
        self.limits: Mapping[str, int] = {}
        self.n_losses = 0
        self._device: Any = None
        self._kernels: dict[KernelSource, tuple[Any, Any]] = {}
        self._open_device()
        self.max_loop = self._test()

    @property
    def device(self) -> Any:
        """The wgpu device."""
        return self._device

    @property
    def queue(self) -> Any:
        return self.device.queue

    @property
    def max_binding_bytes(self) -> int:
        """The most that one binding holds; larger arrays are worked on in ``spans``."""
        return self.limits["max-storage-buffer-binding-size"]

    def spans(self, n: int, item_bytes: int, step: int = 1) -> Iterator[range]:
        """0 .. n - 1 in ranges whose items fit one binding; all but the last are a multiple of ``step`` long
        and begin where a binding may."""
        step = step * BINDING_ALIGNMENT // np.gcd(step * item_bytes, BINDING_ALIGNMENT)
        most = self.max_binding_bytes // item_bytes // int(step) * int(step)
        if not most:
            raise ConfigError(f"{step} items of {item_bytes} bytes exceed one binding of {self.name}")
        for start in range(0, n, most):
            yield range(start, min(start + most, n))

    # --- buffers --------------------------------------------------------------------------------
    def buffer(self, n_bytes: int) -> Buffer:
        """Zeros. Raises ConfigError if the adapter has no buffers that large."""
        size = max(4, -(-n_bytes // 4) * 4)
        if size > self.limits["max-buffer-size"]:
            raise ConfigError(
                f"a buffer of {size} bytes exceeds the {self.limits['max-buffer-size']} of {self.name}",
                hint="work on parts, see Context.spans",
            )
        usage = self._wgpu.BufferUsage
        flags = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        return Buffer(self.device.create_buffer(size=size, usage=flags), 0, size)

    def upload(self, array: np.ndarray, into: Buffer | None = None) -> Buffer:
        """The bytes of ``array``, padded to whole words, in a new buffer or at the start of ``into``."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        target = self.buffer(content.nbytes) if into is None else into
        if content.nbytes > target.n_bytes:
            raise ConfigError(f"{content.nbytes} bytes do not fit a buffer of {target.n_bytes}")
        if content.nbytes % 4:
            content = np.pad(content, (0, -content.nbytes % 4))
        if content.nbytes:
            self.queue.write_buffer(target.raw, target.offset, content)
        return target

    def download(self, buffer: Buffer, n_bytes: int | None = None, offset: int = 0) -> np.ndarray:
        """uint8 [n_bytes], once everything submitted before is done."""
        n_bytes = buffer.n_bytes - offset if n_bytes is None else n_bytes
        if not n_bytes:
            return np.empty(0, np.uint8)
        padded = -(-n_bytes // 4) * 4
        raw = self.queue.read_buffer(buffer.raw, buffer.offset + offset, padded)
        return np.frombuffer(raw, np.uint8)[:n_bytes]

    def submission(self) -> Submission:
        """Nothing recorded yet, for the device as it is open now."""
        return Submission(self._wgpu, self.device)

    # --- kernels --------------------------------------------------------------------------------
    def compiled(self, source: KernelSource) -> tuple[Any, Any]:
        """The pipeline and its bind group layout. Raises ConfigError if it cannot run here."""
        if source not in self._kernels:
            self.refuse_unless_runnable(source)
            self._kernels[source] = self._compile(source)
        return self._kernels[source]

    def refuse_unless_runnable(self, source: KernelSource) -> None:
        if source.needs_int64 and not self.has_int64:
            raise ConfigError(f"{source.name} needs 64-bit integers, which {self.name} does not have")
        if self.max_loop is not None and source.iterations > self.max_loop:
            raise ConfigError(
                f"{source.name} loops {source.iterations} times, the driver of {self.name} stops at 65535",
                hint="split the loop over several dispatches, or install Mesa 25 or newer",
            )

    def _compile(self, source: KernelSource) -> tuple[Any, Any]:
        wgpu, device = self._wgpu, self.device
        stage = wgpu.ShaderStage.COMPUTE
        entries: list[dict[str, Any]] = []
        for k, storage in enumerate(source.storages):
            kind = "read-only-storage" if storage.access == "read" else "storage"
            entries.append({"binding": k, "visibility": stage, "buffer": {"type": kind}})
        uniform = {"type": "uniform", "has_dynamic_offset": True}
        entries.append({"binding": len(source.storages), "visibility": stage, "buffer": uniform})
        layout = device.create_bind_group_layout(entries=entries)
        pipeline = device.create_compute_pipeline(
            layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": device.create_shader_module(code=source.text()), "entry_point": "main"},
        )
        return pipeline, layout

    # --- life -----------------------------------------------------------------------------------
    def run(self, work: Callable[[], T]) -> T:
        """``work()``, which makes all buffers that it uses; once more on a new device if this one is lost."""
        try:
            return work()
        except Exception as error:
            if not self._is_lost(error):
                raise
            log.warning("%s was lost (%s); opening it again", self.name, str(error).splitlines()[0])
        self.n_losses += 1
        self._find_adapter()
        self._open_device()
        return work()

    def close(self) -> None:
        """Free the device."""
        self._kernels.clear()
        if self._device is not None:
            self._device.destroy()

    def _is_lost(self, error: Exception) -> bool:
        """Did it fail because the device is gone? Then it cannot even make a buffer any more."""
        if not isinstance(error, self._wgpu.GPUError | RuntimeError | OSError):
            return False
        try:
            self.device.create_buffer(size=4, usage=self._wgpu.BufferUsage.COPY_DST).destroy()
            self.queue.submit([self.device.create_command_encoder().finish()])
        except Exception:
            return True
        return False

    def _find_adapter(self) -> None:
        with _quiet():
            self._adapter = _open(self._uuid) if self._uuid else _best()

    def _open_device(self) -> None:
        features = ["shader-int64"] if self.has_int64 else []
        there = self._adapter.limits
        wanted = {name: min(there[name], 2 * LARGEST_BINDING) for name in WANTED_LIMITS}
        wanted[WANTED_LIMITS[1]] = min(wanted[WANTED_LIMITS[1]], LARGEST_BINDING)
        self._kernels.clear()
        self.limits = wanted
        self._device = self._adapter.request_device_sync(required_features=features, required_limits=wanted)

    def _test(self) -> int | None:
        """Loop further than a faulty driver does. Raises NoUsableDevice if the adapter cannot add."""
        self.max_loop = None
        out, submission = self.buffer(8), self.submission()
        submission.record(self.compiled(_SELF_TEST), [out], [1, 0, LOOP_PROBE], 1)
        submission.submit()
        counted, total = self.download(out).view(np.uint32).tolist()
        if counted == LOOP_PROBE and total == sum(range(LOOP_PROBE)) % 2**32:
            return None
        if total != sum(range(counted)) % 2**32 or counted > LOOP_PROBE:
            raise NoUsableDevice(
                f"{self.name} computes wrongly: a loop gave {counted}, {total}", hint="update its driver"
            )
        if counted <= LOOP_CAP:
            raise NoUsableDevice(f"{self.name} stops loops at {counted} iterations", hint="update its driver")
        return LOOP_CAP


_SELF_TEST = KernelSource(
    "self-test",
    "var total = 0u; var counted = 0u;"
    "for (var k = 0u; k < params.steps; k = k + 1u) { total = total + k; counted = counted + 1u; }"
    "out[0] = counted; out[1] = total;",
    (Storage("out", "read_write"),),
    params=("steps",),
    iterations=LOOP_PROBE,
)


def _open(uuid: str) -> Any:
    from evenload.devices.probes.wgpu import open_adapter

    try:
        return open_adapter(uuid)
    except LookupError as error:
        raise NoUsableDevice(str(error), hint="`evenload devices` lists what there is") from error


def _best() -> Any:
    """A discrete GPU, else an integrated one, else a driver in software; never OpenGL: too little works."""
    from evenload.devices.probes.wgpu import adapters_here

    kinds = ("DiscreteGPU", "IntegratedGPU", "Other", "Unknown", "CPU")
    found = [a for a in adapters_here() if a.info["backend_type"] in BACKENDS]
    if not found:
        raise NoUsableDevice(
            "wgpu finds no Vulkan, Metal or Direct3D 12 adapter",
            hint="install a Vulkan driver; `apt-get install mesa-vulkan-drivers` brings one in software",
        )

    def rank(adapter: Any) -> int:
        kind = adapter.info["adapter_type"]
        return kinds.index(kind) if kind in kinds else len(kinds)

    return min(found, key=rank)


@contextmanager
def _quiet() -> Iterator[None]:
    """Mesa complains on stderr where there is no XDG_RUNTIME_DIR; it only looks for a display there."""
    if "XDG_RUNTIME_DIR" in os.environ:
        yield
        return
    os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        os.environ.pop("XDG_RUNTIME_DIR", None)


class Resident:
    """An array in host memory with its copy on the device of ``context``, made when first asked for.

    prepare  called with each new copy, to bring it into the form that kernels read
    """

    def __init__(self, context: Context, array: np.ndarray, prepare: Callable[[Buffer], None] | None = None):
        self._context, self._array, self._prepare = context, array, prepare
        self._buffer: Buffer | None = None
        self._epoch = -1

    def buffer(self) -> Buffer:
        """The copy on the device as it is now."""
        if self._buffer is None or self._epoch != self._context.n_losses:
            self._buffer, self._epoch = self._context.upload(self._array), self._context.n_losses
            if self._prepare:
                self._prepare(self._buffer)
        return self._buffer
