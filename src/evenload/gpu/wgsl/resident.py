"""Arrays that stay on a device between pieces of work, and come back by themselves when it was lost."""

from collections.abc import Callable

import numpy as np

from evenload.gpu.wgsl.buffer import Buffer
from evenload.gpu.wgsl.context import Context

__all__ = ["Resident"]


class Resident:
    """An array in host memory with its copy on the device of ``context``, made when first asked for.

    prepare  called with each new copy, to bring it into the form that kernels read
    """

    def __init__(self, context: Context, array: np.ndarray, prepare: Callable[[Buffer], None] | None = None):
        self._context, self._array, self._prepare = context, array, prepare
        self._buffer: Buffer | None = None
        self._epoch = -1

    @property
    def n_bytes(self) -> int:
        return self._array.nbytes

    def buffer(self) -> Buffer:
        """The copy on the device as it is now."""
        if self._buffer is None or self._epoch != self._context.n_losses:
            self._buffer, self._epoch = self._context.upload(self._array), self._context.n_losses
            if self._prepare:
                self._prepare(self._buffer)
        return self._buffer
