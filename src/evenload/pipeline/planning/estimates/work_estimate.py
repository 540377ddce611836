"""Estimate what an item costs in operations and activations, from configs and call arguments alone.

For the architectures that ``parameter_counts`` knows. Measured times of an earlier run take precedence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

AREA = 1024 * 1024  # pixels that the edit pipelines scale their input to
TEXT_TOKENS = 200  # of a prompt with its template; the picture's own tokens come on top
PIXELS_PER_VISION_TOKEN = 28 * 28
ACTIVATION_BYTES = 2  # of one number, in 16 bits
# Tensors that live at once, traced at 1 Mpixel in 16 bits (see ``trace_activation``):
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
