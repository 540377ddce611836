"""Run any ``torch.nn.Module`` on pictures or tensors as a stage."""

from collections.abc import Mapping, Sequence
from typing import Any

from evenload._private_files import plain_file
from evenload.errors import ConfigError, FormatError, reason_of
from evenload.pipeline.artifacts import read_picture, read_tensors
from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.stages.loading import torch_on
from evenload.pipeline.target import load_target, locate_target


class TorchModule:
    """A stage that calls a module and outputs what it returns under the name ``output``.

    module   file.py:Class of the module, relative to the job file, or package.module:Class
    weights  a safetensors file or a state dict; none for the weights that it is made with
    args     for the module's constructor
    input    column with a picture (as float [1, 3, height, width] in 0..1) or a safetensors file
    output   its name; a picture [1, 1 or 3, height, width] is given as [height, width, channels]
    threads  of torch on the CPU; more than one may change the last bits
    """

    def __init__(
        self,
        context: StageContext,
        *,
        module: str,
        weights: str | None = None,
        args: dict[str, Any] | None = None,
        input: str = "path",
        output: str = "output",
        dtype: str = "float32",
        threads: int | None = 1,
    ):
        torch = torch_on(context, threads)
        self._input, self._output = input, output
        self._dtype, self._device = getattr(torch, dtype), context.torch_devices[0]
        made = load_target(locate_target(module, context.folder))(**(args or {}))
        if weights is not None:
            made.load_state_dict(_read_weights(torch, context.path(weights)))
        self._module = made.to(self._device, self._dtype).eval().requires_grad_(False)

    def __call__(self, inputs: Mapping[str, Any], item: Item) -> dict[str, Any]:
        import torch

        with torch.inference_mode():
            return {self._output: _unwrapped(self._module(*self._arguments(torch, inputs[self._input])))}

    def batch(self, inputs: Sequence[Mapping[str, Any]], items: Sequence[Item]) -> list[dict[str, Any]]:
        """Call the module once if shapes are equal and it returns a row for each item; else one by one."""
        import torch

        arguments = [self._arguments(torch, one[self._input]) for one in inputs]
        shapes = {tuple(tuple(tensor.shape) for tensor in one) for one in arguments}
        if len(shapes) == 1 and all(shape[:1] == (1,) for shape in next(iter(shapes))):
            with torch.inference_mode():
                rows = self._module(*(torch.cat(column) for column in zip(*arguments, strict=True)))
            if getattr(rows, "ndim", 0) and len(rows) == len(items):
                return [{self._output: _unwrapped(rows[at : at + 1])} for at in range(len(items))]
        return [self(one, item) for one, item in zip(inputs, items, strict=True)]

    def _arguments(self, torch: Any, path: str) -> list[Any]:
        if str(path).endswith(".safetensors"):
            return [tensor.to(self._device, self._dtype) for _, tensor in sorted(read_tensors(path).items())]
        pixels = torch.from_numpy(read_picture(path).transpose(2, 0, 1).copy())[None]
        return [pixels.to(self._device, self._dtype)]


def _unwrapped(value: Any) -> Any:
    """Return one number as a float, a batch of one picture as a picture, other values as they are."""
    if not hasattr(value, "ndim"):
        return value
    if value.numel() == 1:
        return float(value)
    if value.ndim == 4 and value.shape[0] == 1 and value.shape[1] in (1, 3, 4):
        return value[0].permute(1, 2, 0).float().cpu().numpy()
    return value


def _read_weights(torch: Any, path: Any) -> Any:
    try:
        if path.suffix == ".safetensors":
            return read_tensors(path)
        with plain_file(path) as file:
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}", hint="correct params.weights") from None
    except Exception as error:
        raise FormatError(
            f"{path} holds no weights that can be read: {reason_of(error)}", hint="save or copy it again"
        ) from error
