"""Moves the weights of a stage to pinned host memory and back; on the CPU they stay where they are.

Weights are found by looking: modules that the stage has as attributes, and the components of its pipelines.
What they free is asked of the driver by whoever parks them. The copy in host memory is kept once it is made:
weights do not change, so that the next time only the device's is let go of.
"""

from collections.abc import Iterator
from typing import Any

__all__ = ["HostCopy", "modules_of"]


class HostCopy:
    """The weights of ``stage`` in host memory."""

    def __init__(self, stage: Any):
        self._modules = list(modules_of(stage))
        self._homes: list[tuple[Any, Any, Any]] = []  # tensor, where it belongs, its copy in host memory

    @property
    def n_bytes(self) -> int:
        """Of all weights, wherever they are."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def park(self) -> bool:
        """Let go of the device's memory. False if there is nothing that could be moved."""
        import torch

        if not self._homes:
            for tensor in self._tensors():
                if tensor.device.type != "cpu":
                    copy = torch.empty_like(tensor, device="cpu", pin_memory=torch.cuda.is_available())
                    self._homes.append((tensor, tensor.device, copy.copy_(tensor)))
        for tensor, _, copy in self._homes:
            tensor.data = copy
        return bool(self._homes)

    def unpark(self) -> None:
        """Bring the weights back to where they were."""
        for tensor, device, copy in self._homes:
            tensor.data = copy.to(device, non_blocking=True)

    def _tensors(self) -> Iterator[Any]:
        seen: set[int] = set()
        for module in self._modules:
            for tensor in (*module.parameters(), *module.buffers()):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensor


def modules_of(stage: Any) -> Iterator[Any]:
    """The ``torch.nn.Module`` objects that are attributes of ``stage``, or of what it has as attributes."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None:
        return
    seen: set[int] = set()
    for value in list(vars(stage).values()) if hasattr(stage, "__dict__") else []:
        components = getattr(value, "components", None)
        found = components.values() if isinstance(components, dict) else [value]
        for one in found:
            if isinstance(one, torch.nn.Module) and id(one) not in seen:
                seen.add(id(one))
                yield one
