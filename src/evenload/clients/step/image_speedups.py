"""The seam to ``image_kernels``, the room of our own kernels for convolutions and max pooling on CPUs.

Both functions return None for what kernels cannot do, or not faster than torch; without that room, always.
"""

from torch import Tensor

try:
    from evenload.clients.step.image_kernels.convolution import convolve
    from evenload.clients.step.image_kernels.pooling import max_pool
except ImportError:

    def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor | None:
        """Leave it to torch."""

    def max_pool(x: Tensor, size: int) -> Tensor | None:
        """Leave it to torch."""


__all__ = ["convolve", "max_pool"]
