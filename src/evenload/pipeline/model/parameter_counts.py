"""Compute how many parameters a model has from its config alone, for classes whose shapes are known here.

Each function follows the shapes of its class in diffusers or transformers; tests compare every one with the
class itself on torch's meta device.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """The parameters of a model: ``n_blocks`` equal blocks of ``per_block``, and ``rest`` beside them."""

    rest: int
    per_block: int = 0
    n_blocks: int = 0

    @property
    def total(self) -> int:
        return self.rest + self.per_block * self.n_blocks


def with_blocks(total: int, blocks: Sequence[int]) -> ParameterCount:
    """Return the count of a model with these blocks, or without blocks if they are too unequal."""
    largest = max(blocks)
    rest = total - largest * len(blocks)
    return ParameterCount(rest, largest, len(blocks)) if rest >= 0 else ParameterCount(total)


def _linear(n_in: int, n_out: int, bias: bool = True) -> int:
    return n_in * n_out + (n_out if bias else 0)


def _conv(n_in: int, n_out: int, kernel: int) -> int:
    return n_in * n_out * kernel + n_out


def qwen_image_transformer(config: Config) -> ParameterCount:
    """Count QwenImageTransformer2DModel: two streams, each with its own modulation, attention and MLP."""
    head, heads = config.get("attention_head_dim", 128), config.get("num_attention_heads", 24)
    dim, joint = head * heads, config.get("joint_attention_dim", 3584)
    patch = config.get("patch_size", 2)
    channels = config.get("in_channels", 64)
    out = config.get("out_channels", 16) or channels
    attention = 8 * _linear(dim, dim) + 4 * head
    mlp = _linear(dim, 4 * dim) + _linear(4 * dim, dim)
    block = attention + 2 * (_linear(dim, 6 * dim) + mlp)
    time = _linear(256, dim) + _linear(dim, dim)
    time += 2 * dim if config.get("use_additional_t_cond") else 0
    ends = _linear(dim, 2 * dim) + _linear(dim, patch * patch * out)
    rest = time + joint + _linear(channels, dim) + _linear(joint, dim) + ends
    return ParameterCount(rest, block, config.get("num_layers", 60))


def qwen_image_vae(config: Config) -> ParameterCount:
    """Count AutoencoderKLQwenImage: causal 3D convolutions down and up again."""
    base, z = config.get("base_dim", 96), config.get("z_dim", 16)
    factors = config.get("dim_mult", [1, 2, 4, 4])
    n_res, temporal = config.get("num_res_blocks", 2), config.get("temperal_downsample", [False, True, True])
    pixels = config.get("input_channels", 3)
    down = _vae_down([base * f for f in [1, *factors]], n_res, temporal)
    top = base * factors[-1]
    encoder = _conv(pixels, base, 27) + down + _vae_middle(top) + top + _conv(top, 2 * z, 27)
    up = _vae_up([base * f for f in [factors[-1], *reversed(factors)]], n_res, list(reversed(temporal)))
    last = base * factors[0]
    decoder = _conv(z, top, 27) + _vae_middle(top) + up + last + _conv(last, pixels, 27)
    return ParameterCount(encoder + decoder + _conv(2 * z, 2 * z, 1) + _conv(z, z, 1))


def _residual(n_in: int, n_out: int) -> int:
    shortcut = _conv(n_in, n_out, 1) if n_in != n_out else 0
    return n_in + _conv(n_in, n_out, 27) + n_out + _conv(n_out, n_out, 27) + shortcut


def _vae_middle(n: int) -> int:
    return 2 * _residual(n, n) + n + _conv(n, 3 * n, 1) + _conv(n, n, 1)


def _vae_down(dims: Sequence[int], n_res: int, temporal: Sequence[bool]) -> int:
    total = 0
    for level, (n_in, n_out) in enumerate(pairwise(dims)):
        total += _residual(n_in, n_out) + (n_res - 1) * _residual(n_out, n_out)
        if level < len(dims) - 2:
            total += _conv(n_out, n_out, 9) + (_conv(n_out, n_out, 3) if temporal[level] else 0)
    return total


def _vae_up(dims: Sequence[int], n_res: int, temporal: Sequence[bool]) -> int:
    total = 0
    for level, (before, n_out) in enumerate(pairwise(dims)):
        n_in = before if level == 0 else before // 2
        total += _residual(n_in, n_out) + n_res * _residual(n_out, n_out)
        if level < len(dims) - 2:
            total += _conv(n_out, n_out // 2, 9) + (_conv(n_out, 2 * n_out, 3) if temporal[level] else 0)
    return total


def qwen2_5_vl(config: Config) -> ParameterCount:
    """Count Qwen2_5_VLForConditionalGeneration; its blocks are those of the larger of its two towers."""
    text = {**config, **config.get("text_config", {})}
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    head = text.get("head_dim") or hidden // heads
    kv = text.get("num_key_value_heads", heads) * head
    block = _linear(hidden, heads * head) + 2 * _linear(hidden, kv) + _linear(heads * head, hidden, False)
    block += 3 * _linear(hidden, text["intermediate_size"], False) + 2 * hidden
    vocabulary = text["vocab_size"] * hidden
    n_tables = 1 if text.get("tie_word_embeddings") else 2
    ends = n_tables * vocabulary + hidden
    n_blocks, eye = text["num_hidden_layers"], _vision_tower(config.get("vision_config", {}))
    if eye.n_blocks * eye.per_block > n_blocks * block:
        return ParameterCount(ends + n_blocks * block + eye.rest, eye.per_block, eye.n_blocks)
    return ParameterCount(ends + eye.total, block, n_blocks)


def _vision_tower(config: Config) -> ParameterCount:
    hidden, wide = config.get("hidden_size", 3584), config.get("intermediate_size", 3420)
    patch, frames = config.get("patch_size", 14), config.get("temporal_patch_size", 2)
    merged = hidden * config.get("spatial_merge_size", 2) ** 2
    block = _linear(hidden, 3 * hidden) + _linear(hidden, hidden) + 2 * hidden
    block += 2 * _linear(hidden, wide) + _linear(wide, hidden)
    entry = config.get("in_channels", 3) * frames * patch * patch * hidden
    merger = hidden + _linear(merged, merged) + _linear(merged, config.get("out_hidden_size", 3584))
    return ParameterCount(entry + merger, block, config.get("depth", 32))


COUNTS: Mapping[str, Callable[[Config], ParameterCount]] = {
    "QwenImageTransformer2DModel": qwen_image_transformer,
    "AutoencoderKLQwenImage": qwen_image_vae,
    "Qwen2_5_VLForConditionalGeneration": qwen2_5_vl,
}


# --- on the meta device -------------------------------------------------------------------------------


def count_on_meta(config: Mapping[str, Any], class_name: str) -> ParameterCount:
    """Count the class ``class_name`` with this config.

    Raises ImportError if the library is missing or does not know the class, and what the class raises.
    """
    torch = importlib.import_module("torch")
    is_diffusers = "_class_name" in config or "_diffusers_version" in config
    library = importlib.import_module("diffusers" if is_diffusers else "transformers")
    found = getattr(library, class_name, None)
    if found is None:
        raise ImportError(f"{library.__name__} {library.__version__} has no {class_name}")
    with torch.device("meta"):
        if is_diffusers:
            return count_module(found.from_config(dict(config)))
        settings = {key: value for key, value in config.items() if key != "architectures"}
        return count_module(found(found.config_class(**settings)))


def count_module(module: Any) -> ParameterCount:
    """Count the parameters in and beside the list of blocks that holds most of them."""

    def n_of(part: Any) -> int:
        return sum(p.numel() for p in part.parameters())

    blocks = largest_block_list(module, n_of)
    return (
        ParameterCount(n_of(module)) if blocks is None else with_blocks(n_of(module), list(map(n_of, blocks)))
    )


def largest_block_list(module: Any, size_of: Callable[[Any], int]) -> Any:
    """Return the ModuleList in ``module``, of two blocks or more, of the largest size; or None."""
    from torch.nn import ModuleList

    lists = [part for part in module.modules() if isinstance(part, ModuleList) and len(part) > 1]
    return max(lists, key=size_of, default=None)
