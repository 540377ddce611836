"""Trace the activations of one item: run the real class once on fake tensors, which have shapes and no bytes.

Needs torch and diffusers, no weights, no GPU, and a second or two. A trace sees every tensor that a run has;
allocators and libraries take some more. Blocks are alike, so that two of them are enough.
"""

import importlib
import math
from collections.abc import Mapping
from typing import Any

from evenload.pipeline.planning.estimates.live_bytes import peak_tensor_bytes
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
