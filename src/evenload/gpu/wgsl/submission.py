"""Dispatches that the driver gets together, with the parameters of each."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from evenload.gpu.wgsl.buffer import Buffer, binding_entries
from evenload.gpu.wgsl.kernel import WORKGROUP

__all__ = ["Submission"]

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
