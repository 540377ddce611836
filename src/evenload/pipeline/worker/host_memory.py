"""Move the weights of a stage to pinned host memory and back; on the CPU they stay where they are.

The weights are those of the modules among the stage's attributes and in its pipelines' components. The copy
in host memory is kept once it is made: weights do not change, so that later only the device's copy is freed.
"""

from collections.abc import Iterator
from typing import Any


class HostCopy:
    """A copy of a stage's weights in host memory, made when it is first needed."""

    def __init__(self, stage: Any):
        self._modules = list(modules_of(stage))
        self._homes: list[tuple[Any, Any, Any]] = []  # tensor, where it belongs, its copy in host memory

    @property
    def n_bytes(self) -> int:
        """Bytes of all weights, wherever they are."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def park(self) -> bool:
        """Move the weights off the device; returns False if there is nothing to move."""
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
    """Yield the torch modules among the attributes of ``stage`` and in the components of its pipelines."""
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
