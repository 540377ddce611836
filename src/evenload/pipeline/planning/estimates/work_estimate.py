"""Estimate what an item costs in operations and activations, from configs and call arguments alone.

For the architectures that ``parameter_counts`` knows. Measured times of an earlier run take precedence.
"""

import importlib
import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

AREA = 1024 * 1024  # pixels that the edit pipelines scale their input to
TEXT_TOKENS = 200  # of a prompt with its template; the picture's own tokens come on top
PIXELS_PER_VISION_TOKEN = 28 * 28
ACTIVATION_BYTES = 2  # of one number, in 16 bits
# Tensors that live at once, traced at 1 Mpixel in 16 bits (see ``trace_activation_bytes``):
LIVE_HIDDEN = 14.5  # of a block's width: two streams, q, k, v, and a 4x wide MLP
MAPS_DECODED = 18  # of full size and the first level's width, in the autoencoder's decoder
MAPS_ENCODED = 10.1  # in its encoder


@dataclass(frozen=True, slots=True)
class ItemWork:
    """The cost of one item.

    flop              operations
    n_passes          forwards through the blocks
    activation_bytes  while it is computed
    waiting_bytes     while it waits between devices that share the layers
    """

    flop: float
    n_passes: int
    activation_bytes: int
    waiting_bytes: int


def estimate_work(
    class_name: str, config: Mapping[str, Any], call: Mapping[str, Any], vae: Mapping | None
) -> ItemWork | None:
    """Estimate what one item costs the component ``class_name``; None if it is not known here."""
    if class_name == "QwenImageTransformer2DModel":
        return _denoise(config, call, vae)
    if class_name == "Qwen2_5_VLForConditionalGeneration":
        return _read_pictures(config, call)
    if class_name == "AutoencoderKLQwenImage":
        return _decode(config, call)
    return None


def _decode(config: Mapping[str, Any], call: Mapping[str, Any]) -> ItemWork:
    """Count the decoder's convolutions, from the smallest map on; one frame, 3 x 3 x 3 kernels."""
    base, factors = config.get("base_dim", 96), config.get("dim_mult", [1, 2, 4, 4])
    area = output_pixels(call)
    maps = area / 4 ** (len(factors) - 1)
    top = base * factors[-1]
    flop = 2.0 * 27 * 4 * top * top * maps  # the middle
    before = top
    for level, factor in enumerate(reversed(factors)):
        n_in, n_out = (before if level == 0 else before // 2), base * factor
        n_convs = 2 * config.get("num_res_blocks", 2) + 1
        flop += 2.0 * 27 * maps * (n_in * n_out + n_convs * n_out * n_out)
        if level < len(factors) - 1:
            maps *= 4
            flop += 2.0 * 9 * maps * n_out * (n_out // 2)
        before = n_out
    return ItemWork(flop, 1, MAPS_DECODED * area * base * ACTIVATION_BYTES, 0)


def output_pixels(call: Mapping[str, Any]) -> int:
    """Return the pixels of the picture that is drawn."""
    if call.get("height") and call.get("width"):
        return int(call["height"]) * int(call["width"])
    return int(call.get("area") or AREA)


def _denoise(config: Mapping[str, Any], call: Mapping[str, Any], vae: Mapping | None) -> ItemWork:
    """Count two streams with joint attention; the given picture's tokens join those that are drawn."""
    dim = config.get("attention_head_dim", 128) * config.get("num_attention_heads", 24)
    layers = config.get("num_layers", 60)
    area = output_pixels(call)
    shrink = (16 if vae is None else 2 ** len(vae.get("temperal_downsample", (0, 0, 0))) * 2) ** 2
    picture = (area + int(call.get("area") or AREA)) // shrink
    text = TEXT_TOKENS + int(call.get("area") or AREA) // PIXELS_PER_VISION_TOKEN
    tokens = picture + text
    forward = layers * (24.0 * dim * dim * tokens + 4.0 * dim * tokens * tokens)
    n_passes = int(call.get("num_inference_steps") or 50)
    n_passes *= (
        2 if call.get("negative_prompt") is not None and float(call.get("true_cfg_scale") or 4.0) > 1 else 1
    )
    hidden_bytes = tokens * dim * ACTIVATION_BYTES
    maps = area * (96 if vae is None else vae.get("base_dim", 96)) * ACTIVATION_BYTES
    maps *= MAPS_DECODED if call.get("decodes", True) else MAPS_ENCODED
    return ItemWork(forward * n_passes, n_passes, int(max(LIVE_HIDDEN * hidden_bytes, maps)), hidden_bytes)


def _read_pictures(config: Mapping[str, Any], call: Mapping[str, Any]) -> ItemWork:
    """Count one pass over the tokens of the pictures and the prompt."""
    text = {**config, **config.get("text_config", {})}
    vision = config.get("vision_config", {})
    hidden, wide, layers = text["hidden_size"], text["intermediate_size"], text["num_hidden_layers"]
    n_pictures = int(call.get("n_pictures") or 2)
    area = int(call.get("area") or AREA)
    patches = n_pictures * area // vision.get("patch_size", 14) ** 2
    tokens = TEXT_TOKENS + n_pictures * area // PIXELS_PER_VISION_TOKEN
    kv = hidden * text.get("num_key_value_heads", 4) / text["num_attention_heads"]
    per_token = 2.0 * layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * wide)
    eye = vision.get("hidden_size", 1280)
    per_patch = (
        2.0 * vision.get("depth", 32) * (4 * eye * eye + 3 * eye * vision.get("intermediate_size", 3420))
    )
    flop = per_token * tokens + 4.0 * layers * hidden * tokens * tokens + per_patch * patches
    live = max(
        tokens * (4 * hidden + 3 * wide), patches * (4 * eye + 3 * vision.get("intermediate_size", 3420))
    )
    logits = tokens * text["vocab_size"] * ACTIVATION_BYTES
    return ItemWork(flop, 1, int(live * ACTIVATION_BYTES + logits), tokens * hidden * ACTIVATION_BYTES)


# --- traces -------------------------------------------------------------------------------------------

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


# --- bytes of tensors that live at once, real or fake ---------------------------------------------------


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
