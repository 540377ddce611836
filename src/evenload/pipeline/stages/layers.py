"""Spread a model's blocks over several devices, or stream them to one that is too small, by hooks.

    place_layers(transformer, ["cuda:0", "cuda:1"], [30, 30])   30 blocks on the first, 30 on the second
    stream_layers(transformer, "cuda:0", n_resident=27)   27 blocks stay, the others are copied when needed

A block's inputs are moved to its device. The hooks keep nothing between calls, so that several items may be
in the same model at once, each in another part of it.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from evenload.errors import ConfigError
from evenload.pipeline.model.meta_model import largest_block_list


def blocks_of(module: Any) -> Any:
    """Return the list of blocks that holds most of the weights. Raises ConfigError if there is none."""
    blocks = largest_block_list(module, n_bytes_of)
    if blocks is None:
        raise ConfigError(
            f"{type(module).__name__} has no list of blocks to split", hint="run it whole, on one device"
        )
    return blocks


def place_layers(module: Any, devices: Sequence[str], counts: Sequence[int] = ()) -> None:
    """Spread the blocks of ``module`` over ``devices``, the rest on the first.

    ``counts``: blocks on each device; by default as equal as they can be. The module's outputs are moved
    back to the first device. Equal names among ``devices`` are one device. Raises ConfigError if ``counts``
    do not fit.
    """
    import torch

    blocks, n = blocks_of(module), len(devices)
    counts = counts or [len(blocks) * (at + 1) // n - len(blocks) * at // n for at in range(n)]
    if sum(counts) != len(blocks) or len(counts) != n:
        raise ConfigError(
            f"{'+'.join(map(str, counts))} blocks over {n} devices, but "
            f"{type(module).__name__} has {len(blocks)}",
            hint="plan again: the model is another than the one that was planned",
        )
    _move_all_but(blocks, module, devices[0])
    places = [device for device, n in zip(devices, counts, strict=True) for _ in range(n)]
    for block, device in zip(blocks, places, strict=True):
        block.to(device)
        block.register_forward_pre_hook(_bring(torch.device(device)), with_kwargs=True, prepend=True)
    _bring_back(blocks, module, torch.device(devices[0]))


def _move_all_but(blocks: Iterable[Any], module: Any, device: Any) -> None:
    """Move the weights of ``module`` that are in none of ``blocks``."""
    inside = {id(tensor) for block in blocks for tensor in _tensors_of(block)}
    for part in module.modules():
        for tensor in itertools.chain(part._parameters.values(), part._buffers.values()):
            if tensor is not None and id(tensor) not in inside:
                tensor.data = tensor.data.to(device)


def _bring_back(blocks: Any, module: Any, device: Any) -> None:
    """Have all that comes after the last block get its inputs on ``device``."""
    inside = {id(part) for part in blocks.modules()}
    around = {id(part) for part in module.modules() if any(child is blocks for child in part.modules())}
    for part in module.modules():
        if id(part) not in inside and id(part) not in around and not list(part.children()):
            part.register_forward_pre_hook(_bring(device), with_kwargs=True, prepend=True)
    blocks[-1].register_forward_hook(lambda _module, _inputs, outputs: _moved(outputs, device))


def _bring(device: Any) -> Any:
    """Return a hook that moves a module's inputs to ``device``."""

    def hook(_module: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return _moved(args, device), _moved(kwargs, device)

    return hook


def _moved(value: Any, device: Any) -> Any:
    """Return ``value`` with every tensor on ``device``; a tensor that is moved often is copied once."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.device == device:
            return value
        copies: dict = vars(value).setdefault("_evenload_copies", {})  # pyrefly: ignore
        if device not in copies or copies[device][0] != value._version:
            copies[device] = (value._version, value.to(device, non_blocking=True))
        return copies[device][1]
    if isinstance(value, tuple | list):
        moved = [_moved(one, device) for one in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    if isinstance(value, dict):
        return type(value)((name, _moved(one, device)) for name, one in value.items())
    return value


def stream_layers(module: Any, device: str, n_resident: int) -> None:
    """Keep ``n_resident`` blocks of ``module`` and all else on ``device``; copy other blocks when they run.

    The weights of those stay in host memory, pinned if the device is a GPU. One item at a time.
    """
    import torch

    blocks = blocks_of(module)
    streamed = list(blocks)[max(0, n_resident) :]
    target = torch.device(device)
    _move_all_but(streamed, module, target)
    for block in streamed:
        home = {tensor: _pinned(tensor.data, target) for tensor in _tensors_of(block)}
        block.register_forward_pre_hook(_fetch(home, target), prepend=True)
        block.register_forward_hook(_drop(home), always_call=True)


def _pinned(tensor: Any, device: Any) -> Any:
    return tensor.cpu().pin_memory() if device.type == "cuda" else tensor.cpu()


def _fetch(home: dict[Any, Any], device: Any) -> Any:
    def hook(_module: Any, _inputs: Any) -> None:
        for tensor, kept in home.items():
            tensor.data = kept.to(device, non_blocking=True)

    return hook


def _drop(home: dict[Any, Any]) -> Any:
    def hook(_module: Any, _inputs: Any, _outputs: Any) -> None:
        for tensor, kept in home.items():
            tensor.data = kept

    return hook


def _tensors_of(module: Any) -> list[Any]:
    return [*module.parameters(), *module.buffers()]


def n_bytes_of(module: Any) -> int:
    """Return the bytes of a module's parameters."""
    return sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())
