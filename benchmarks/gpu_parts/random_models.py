"""Models of the real classes with random weights, on disk: an edit pipeline and a scorer, large or tiny.

Weights are drawn on the device, in bfloat16, and saved as real checkpoints are. The sizes of layers are those
of Qwen-Image-Edit and Qwen2.5-VL-3B; there are fewer of them.
"""

from pathlib import Path
from typing import Any

from evenload.pipeline.stages import tiny

N_BLOCKS, N_READER_LAYERS, N_SCORER_LAYERS, VISION_DEPTH = 10, 8, 12, 16
WIDTH, MOST_PIXELS = 2048, 1024 * 1024
NEEDED_BYTES = 16 << 30  # on disk: what is built, and room for what a run writes


def build(folder: Path, has_diffusers: bool, pretend: bool, device: str) -> None:
    """Write ``folder/edit`` (without diffusers ``folder/first``, a second scorer) and ``folder/scorer``."""
    if pretend and has_diffusers:
        tiny.build(folder)
        return
    tokenizer = tiny._tokenizer()
    if pretend:
        for seed, name in enumerate(("first", "scorer")):
            tiny._scorer(folder / name, tokenizer, seed)
        return
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device), torch.no_grad():
            if has_diffusers:
                edit_pipeline(folder / "edit", tokenizer)
            else:
                scorer(folder / "first", tokenizer, N_READER_LAYERS)
            scorer(folder / "scorer", tokenizer, N_SCORER_LAYERS)
    finally:
        torch.set_default_dtype(before)
        torch.cuda.empty_cache()


def edit_pipeline(folder: Path, tokenizer: Any) -> None:
    import diffusers

    transformer = diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=64, out_channels=16, num_layers=N_BLOCKS, attention_head_dim=128,
        num_attention_heads=24, joint_attention_dim=WIDTH, axes_dims_rope=(16, 56, 56),
    )  # fmt: skip
    pipeline = diffusers.QwenImageEditPipeline(
        transformer=transformer,
        vae=diffusers.AutoencoderKLQwenImage(),  # as it is published
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        text_encoder=vision_language(tokenizer, N_READER_LAYERS),
        tokenizer=tokenizer,
        processor=tiny._processor(tokenizer, MOST_PIXELS),
    )
    pipeline.to(dtype=transformer.dtype)
    pipeline.save_pretrained(folder)
    tiny._name_processor(folder)


def scorer(folder: Path, tokenizer: Any, n_layers: int) -> None:
    vision_language(tokenizer, n_layers).save_pretrained(folder)
    tiny._processor(tokenizer, MOST_PIXELS).save_pretrained(folder)


def vision_language(tokenizer: Any, n_layers: int) -> Any:
    """A Qwen2.5-VL with the layers of the one of 3 billion parameters, and as many as asked for."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    config = tiny._vl_config(tokenizer)
    config.text_config.update(
        {
            "hidden_size": WIDTH, "intermediate_size": 11008, "num_hidden_layers": n_layers,
            "num_attention_heads": 16, "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6},
            "layer_types": ["full_attention"] * n_layers, "dtype": "bfloat16",
        }
    )  # fmt: skip
    config.vision_config.update(
        {
            "depth": VISION_DEPTH, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
            "out_hidden_size": WIDTH, "fullatt_block_indexes": list(range(7, VISION_DEPTH, 8)),
            "window_size": 112, "dtype": "bfloat16",
        }
    )  # fmt: skip
    return Qwen2_5_VLForConditionalGeneration(config)
