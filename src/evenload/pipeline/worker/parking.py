"""Choose which models are parked in host memory while another one is on the device, and move their weights.

A model that will be needed again is worth parking if bringing it back takes less time than loading it, and if
it fits into the budget of host memory. The model that is needed next comes first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

UPLOAD_BYTES_S = 10e9  # from pinned host memory to a device, at the least
SHARE = 0.5  # of free host memory, for parked models
PIN_BYTES_S = 2e9  # from a device into host memory that is pinned for it


@dataclass(frozen=True, slots=True)
class ParkableModel:
    """A model that may be parked.

    n_bytes    bytes that it takes
    load_s     seconds that it took to load
    is_parked  it is in host memory already
    is_moved   its device has memory of its own; False on the CPU, where a parked model stays in place
    """

    stage: int
    n_bytes: int
    load_s: float
    is_parked: bool = False
    is_moved: bool = True


def unpark_s(model: ParkableModel) -> float:
    """Return the seconds until a parked model is back on its device."""
    return model.n_bytes / UPLOAD_BYTES_S if model.is_moved else 0.0


def parking_budget(free_bytes: int | None, streamed_bytes: int, n_workers: int) -> int:
    """Return the host memory that one worker's parked models may take: half of what is free, in equal parts.

    streamed_bytes  bytes that the plan pins for blocks which are streamed to devices
    """
    if free_bytes is None:
        return 0
    return max(0, int(SHARE * (free_bytes - streamed_bytes)) // max(1, n_workers))


def stages_to_park(
    models: Sequence[ParkableModel], later: Sequence[int], budget_bytes: int, free_bytes: int
) -> tuple[int, ...]:
    """Return the stages whose models are parked, in the order in which they are needed; others are dropped.

    later         stages that are needed again, the next one first
    budget_bytes  host memory that all parked models may take
    free_bytes    host memory that is free, less what the model to be loaded may need
    """
    by_stage = {model.stage: model for model in models}
    parked: list[int] = []
    for stage in dict.fromkeys(later):
        model = by_stage.get(stage)
        if model is None:
            continue
        is_new = model.is_moved and not model.is_parked  # it takes more host memory than now
        cost_s = unpark_s(model) + (model.n_bytes / PIN_BYTES_S if is_new else 0.0)
        more_bytes = model.n_bytes if is_new else 0
        has_room = 0 < budget_bytes >= model.n_bytes and more_bytes <= free_bytes and free_bytes >= 0
        if model.load_s > cost_s and has_room:
            parked.append(stage)
            budget_bytes -= model.n_bytes
            free_bytes -= more_bytes
    return tuple(parked)


class HostCopy:
    """A copy of a stage's weights in pinned host memory, made when it is first needed and kept from then on.

    The weights are those of the modules among the stage's attributes and in its pipelines' components. They
    do not change: later only the device's copy is freed. On the CPU they stay where they are.
    """

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
