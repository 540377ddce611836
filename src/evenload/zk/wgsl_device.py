"""What all keys and workers share on one adapter."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from evenload.gpu.wgsl.context import Context
    from evenload.gpu.wgsl.field import Variant
    from evenload.gpu.wgsl.queue import Queue

T = TypeVar("T")


class WgslDevice:
    """An opened adapter: its arithmetic, the measured pace of its kernels, and one lock.

    adapter  ``Device.uuid`` of a wgpu device; None for the best one
    variant  "u64" or "limb13"; default: what the adapter can
    Raises MissingExtra or NoUsableDevice as ``Context``, ConfigError if the adapter cannot run ``variant``.
    """

    def __init__(
        self, adapter: str | None = None, variant: "Variant | None" = None, context: "Context | None" = None
    ):
        from evenload.gpu.wgsl.context import Context
        from evenload.gpu.wgsl.queue import KernelPace

        self.context = context or Context(adapter)
        self._is_own = context is None
        self.variant: Variant = variant or ("u64" if self.context.has_int64 else "limb13")
        self.pace = KernelPace()
        self._lock = threading.Lock()

    def run(self, work: Callable[[], T]) -> T:
        """``work()`` alone on the device; once more from its beginning if the device is lost."""
        with self._lock:
            return self.context.run(work)

    def queue(self) -> "Queue":
        from evenload.gpu.wgsl.queue import Queue

        return Queue(self.context, self.pace)

    def close(self) -> None:
        """Free the device, unless it was given."""
        if self._is_own:
            self.context.close()
