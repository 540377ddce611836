"""Make tiny models of the real classes with random weights, offline: for tests and examples.

    build(folder)     folder/edit: a QwenImageEditPipeline, folder/scorer: a Qwen2.5-VL, folder/clip: a CLIP

They are saved as real checkpoints are and loaded by the same code; what they draw is noise. A file
evenload.json beside the edit pipeline says on how many pixels it works.
"""

import json
from pathlib import Path
from typing import Any

from evenload._optional import require

AREA = 64 * 64  # pixels that the edit pipeline works on, instead of its own 1024 x 1024

_MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
          "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]  # fmt: skip
_SPLIT = r"""[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
_WORDS = [
    "describe the key features of the input image then explain how the instruction should alter it",
    "make the sky red", "remove the person on the left", "turn this photo into a watercolor painting",
    "give it a hat", "rate from 0 to 10 how well the second picture follows the instruction",
    "0 1 2 3 4 5 6 7 8 9 10 . , yes no good bad quality",
]  # fmt: skip
_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|>"
    "<|vision_end|>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(folder: str | Path, *, n_layers: int = 2, seed: int = 0, plus: bool = False) -> Path:
    """Write the three models below ``folder`` and return it. Equal arguments give equal weights.

    ``plus``: the edit pipeline is a QwenImageEditPlusPipeline. Raises MissingExtra without the extra
    ``diffusion``.
    """
    require("diffusers", extra="models", why="building tiny models")
    folder = Path(folder)
    tokenizer = _tokenizer()
    _edit(folder / "edit", tokenizer, n_layers, seed, plus)
    _scorer(folder / "scorer", tokenizer, seed + 1)
    _clip(folder / "clip", tokenizer, seed + 2)
    return folder


def picture(seed: int, width: int = 96, height: int = 64) -> Any:
    """Draw a smooth random picture: PIL, RGB."""
    import numpy as np
    from PIL import Image

    rough = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC)


def _tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.NFC()
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, min_frequency=1, show_progress=False
    )
    learner.train_from_iterator(_WORDS * 3, trainer)
    learned = json.loads(learner.to_str())["model"]
    merges: Any = [
        tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in learned["merges"]
    ]
    return Qwen2Tokenizer(vocab=learned["vocab"], merges=merges, extra_special_tokens=_MARKS[1:])


def _vl_config(tokenizer: Any, hidden: int = 16) -> Any:
    from transformers import Qwen2_5_VLConfig

    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in _MARKS}
    text = {
        "vocab_size": len(tokenizer), "hidden_size": hidden, "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default", "mrope_section": [1, 1, hidden // 4 - 2], "rope_theta": 1e6,
        },
        "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": hidden,
        "fullatt_block_indexes": [1], "window_size": 56, "patch_size": 14,
    }  # fmt: skip
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def _processor(tokenizer: Any, most_pixels: int = 112 * 112) -> Any:
    from transformers import Qwen2VLImageProcessorPil

    from evenload.pipeline.stages.loading import pil_processor_class

    images = Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=most_pixels)
    return pil_processor_class()(image_processor=images, tokenizer=tokenizer, chat_template=_CHAT)


def _edit(folder: Path, tokenizer: Any, n_layers: int, seed: int, plus: bool) -> None:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    known: Any = require("diffusers", extra="models", why="building tiny models")
    n_channels, n_levels = 4, 3
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        text_encoder = Qwen2_5_VLForConditionalGeneration(_vl_config(tokenizer))
        vae = known.AutoencoderKLQwenImage(
            base_dim=8, z_dim=n_channels, dim_mult=[1] * (n_levels + 1), num_res_blocks=1,
            temperal_downsample=[False] * n_levels, latents_mean=[0.0] * n_channels,
            latents_std=[1.0] * n_channels,
        )  # fmt: skip
        transformer = known.QwenImageTransformer2DModel(
            patch_size=2, in_channels=4 * n_channels, out_channels=n_channels, num_layers=n_layers,
            attention_head_dim=16, num_attention_heads=2, joint_attention_dim=16, axes_dims_rope=(8, 4, 4),
        )  # fmt: skip
    pipeline_class = known.QwenImageEditPlusPipeline if plus else known.QwenImageEditPipeline
    pipeline_class(
        transformer=transformer,
        vae=vae,
        scheduler=known.FlowMatchEulerDiscreteScheduler(),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        processor=_processor(tokenizer),
    ).save_pretrained(folder)
    _name_processor(folder)
    (folder / "evenload.json").write_text(json.dumps({"area": AREA}) + "\n")


def _name_processor(folder: Path) -> None:
    """Have the saved pipeline name its processor's class as the real checkpoint does."""
    index = folder / "model_index.json"
    entries = json.loads(index.read_text())
    entries["processor"] = ["transformers", "Qwen2VLProcessor"]
    index.write_text(json.dumps(entries, indent=2))


def _scorer(folder: Path, tokenizer: Any, seed: int) -> None:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(_vl_config(tokenizer))
        with torch.no_grad():  # else all scores would be nearly equal
            model.lm_head.weight.mul_(100)
            for name, weight in model.named_parameters():
                if "language_model" in name and name.endswith("_proj.weight") and "self_attn" in name:
                    weight.mul_(30)
    model.save_pretrained(folder)
    _processor(tokenizer).save_pretrained(folder)


def _clip(folder: Path, tokenizer: Any, seed: int) -> None:
    import torch
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {
        **shape, "vocab_size": len(tokenizer), "max_position_embeddings": 77, "projection_dim": 16,
        "bos_token_id": 0, "eos_token_id": len(tokenizer) - 1, "pad_token_id": 0,
    }  # fmt: skip
    vision = {**shape, "image_size": 32, "patch_size": 8, "projection_dim": 16}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(
        folder
    )
