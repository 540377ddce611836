"""Trace the activations of one item: run the real class once on fake tensors, which have shapes and no bytes.

Needs torch and diffusers, no weights, no GPU, and a second or two. A trace sees every tensor that a run has;
allocators and libraries take some more. Blocks are alike, so that two of them are enough.
"""

import importlib
import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from evenload.pipeline.planning.estimates.work_estimate import (
    AREA,
    PIXELS_PER_VISION_TOKEN,
    TEXT_TOKENS,
    output_pixels,
)

TRACED = ("QwenImageTransformer2DModel", "AutoencoderKLQwenImage")


def trace_activation_bytes(
    class_name: str, config: Mapping[str, Any], call: Mapping[str, Any], vae: Mapping[str, Any], dtype: str
) -> dict[str, int]:
    """Return the most bytes that live at once in each method of the class: forward, or encode and decode.

    config  of the component; ``vae``: that of the pipeline's autoencoder
    call    arguments of the stage: height, width, area
    Raises ImportError without the libraries, ValueError
    for a class that is not among TRACED.
    """
    torch = importlib.import_module("torch")
    diffusers = importlib.import_module("diffusers")
    fake = importlib.import_module("torch._subclasses.fake_tensor")
    if class_name not in TRACED:
        raise ValueError(f"{class_name} cannot be traced")
    settings = {key: value for key, value in config.items() if not key.startswith("_")}
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with fake.FakeTensorMode(), torch.no_grad():
            if class_name == "AutoencoderKLQwenImage":
                return _autoencoder(torch, diffusers.AutoencoderKLQwenImage(**settings), settings, call)
            short = {**settings, "num_layers": min(2, settings.get("num_layers", 60))}
            model = diffusers.QwenImageTransformer2DModel(**short)
            return {"forward": _transformer(torch, model, settings, call, vae)}
    finally:
        torch.set_default_dtype(before)


def _shrink(vae: Mapping[str, Any]) -> int:
    """Return how many pixels of a picture's side make one of the latents' side."""
    return 2 ** len(vae.get("temperal_downsample", (0, 0, 0)))


def _autoencoder(
    torch: Any, model: Any, config: Mapping[str, Any], call: Mapping[str, Any]
) -> dict[str, int]:
    side = math.isqrt(output_pixels(call))
    latents = torch.randn(1, config.get("z_dim", 16), 1, side // _shrink(config), side // _shrink(config))
    picture = torch.randn(1, 3, 1, side, side)
    weights = [*model.parameters(), *model.buffers()]
    return {
        "encode": peak_tensor_bytes(lambda: model.encode(picture), weights),
        "decode": peak_tensor_bytes(lambda: model.decode(latents, return_dict=False), weights),
    }


def _transformer(
    torch: Any, model: Any, config: Mapping[str, Any], call: Mapping[str, Any], vae: Mapping[str, Any]
) -> int:
    side = math.isqrt(output_pixels(call)) // _shrink(vae) // 2
    given = math.isqrt(int(call.get("area") or AREA)) // _shrink(vae) // 2
    n_text = TEXT_TOKENS + int(call.get("area") or AREA) // PIXELS_PER_VISION_TOKEN
    tokens = torch.randn(1, side * side + given * given, config.get("in_channels", 64))
    text = torch.randn(1, n_text, config.get("joint_attention_dim", 3584))
    mask = torch.ones(1, n_text, dtype=torch.long)
    shapes = [[(1, side, side), (1, given, given)]]

    def forward() -> None:
        model(
            hidden_states=tokens,
            encoder_hidden_states=text,
            encoder_hidden_states_mask=mask,
            timestep=torch.ones(1),
            img_shapes=shapes,
            return_dict=False,
        )

    return peak_tensor_bytes(forward, [*model.parameters(), *model.buffers()])


# --- Measure how many bytes of tensors live at once while something runs; tensors may be real or fake ---


def peak_tensor_bytes(run: Callable[[], Any], outside: Iterable[Any] = ()) -> int:
    """Return the most bytes of storages that ``run`` made and that lived at the same time.

    outside  tensors that exist anyway, such as weights: they do not count
    A driver reports more, as allocators round up and keep what was freed; least so for large tensors.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    count = _StorageCount({tensor.untyped_storage()._cdata for tensor in outside})

    class CountStorages(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for tensor in tree_iter(made):
                if hasattr(tensor, "untyped_storage"):
                    count.add(tensor.untyped_storage())
            return made

    with CountStorages():
        run()
    return count.peak_bytes


class _StorageCount:
    """The bytes of all storages that live now, and their peak. ``seen``: keys of storages not to count."""

    def __init__(self, seen: set[int]):
        self._seen = seen
        self._kept: dict[int, Any] = {}
        self._now_bytes = self.peak_bytes = 0

    def add(self, storage: Any) -> None:
        """Count ``storage`` until it is freed."""
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        n_bytes = storage.nbytes()
        self._now_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self._now_bytes)

        def forget(_reference: Any) -> None:
            self._now_bytes -= n_bytes
            self._seen.discard(key)
            self._kept.pop(key, None)

        self._kept[key] = weakref.ref(storage, forget)
