"""Low-rank adapters of linear layers: W x + scale B A x, with W frozen.

Source: Hu et al., "LoRA: low-rank adaptation of large language models", arXiv:2106.09685.
"""

import fnmatch
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenload.clients.step.module_state import copy_model
from evenload.errors import ConfigError, quoted

A, B = "lora_A", "lora_B"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRA:
    """The form of an adapter.

    rank     of its two factors
    alpha    the scale is ``alpha / rank``; the rank itself if None, so that the scale is 1
    targets  patterns of the names of linear layers that get an adapter ("*q_proj", "*.value"); all by default
    dropout  of the adapter's inputs
    also     patterns of the base's parameters that are trained for each adapter, too ("score.*", say)
    """

    rank: int = 8
    alpha: float | None = None
    targets: tuple[str, ...] = ("*",)
    dropout: float = 0.0
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise ConfigError(f"LoRA(rank={quoted(self.rank)}): use an int above 0")
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ConfigError(f"LoRA(dropout={quoted(self.dropout)}) is not in [0, 1)")
        is_number = isinstance(self.alpha, int | float)
        if self.alpha is not None and not (is_number and math.isfinite(self.alpha) and self.alpha > 0):
            raise ConfigError(f"LoRA(alpha={quoted(self.alpha)}) is not a finite number above 0")
        for name in ("targets", "also"):
            given = getattr(self, name)
            patterns = (given,) if isinstance(given, str) else given
            if not isinstance(patterns, tuple | list) or not all(isinstance(one, str) for one in patterns):
                raise ConfigError(
                    f"LoRA({name}={quoted(given)})", hint='give patterns of names: ("*q_proj",)'
                )
            object.__setattr__(self, name, tuple(patterns))

    @property
    def scale(self) -> float:
        return (self.rank if self.alpha is None else self.alpha) / self.rank


class _Adapted:
    """Mixed into a linear layer's class: its outputs plus the adapter's."""

    def forward(self, x: Tensor) -> Tensor:
        layer: Any = self
        inner = F.linear(layer.lora_dropout(x), layer.lora_A)
        return super().forward(x) + F.linear(inner, layer.lora_B) * layer.lora_scale  # pyrefly: ignore


class AdaptedLinear(_Adapted, nn.Linear):  # pyrefly: ignore
    """A linear layer with an adapter; its weight and bias keep their names."""


def with_adapters(base: nn.Module, lora: LoRA) -> nn.Module:
    """A copy of ``base``, frozen but for adapters in its linear layers and the parameters of ``lora.also``.

    B is zero, so that the copy gives what ``base`` gives. Raises ConfigError where no layer fits, for a
    pattern of ``also`` that names nothing, and for a base that has adapters already.
    """
    if any(isinstance(module, _Adapted) for module in base.modules()):
        raise ConfigError("the base has adapters already", hint="give what `merged()` of such an adapter is")
    model = copy_model(base)
    named = dict(model.named_parameters())
    for name, p in named.items():
        p.requires_grad_(any(fnmatch.fnmatchcase(name, pattern) for pattern in lora.also))
    for pattern in lora.also:
        if not fnmatch.filter(named, pattern):
            raise ConfigError(f"no parameter is named like {quoted(pattern)}", hint=_some(list(named)))
    layers = adapted_layers(model, lora)
    if not layers:
        kinds = [name for name, m in model.named_modules() if _sizes(m)]
        raise ConfigError(
            f"no linear layer is named like {', '.join(map(quoted, lora.targets))}", hint=_some(kinds)
        )
    for layer in layers.values():
        _adapt(layer, lora)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # or evaluation reads the weights and never calls the layers
    return model


def adapted_layers(model: nn.Module, lora: LoRA) -> dict[str, nn.Module]:
    """The layers by name that have an adapter of this form, or would get one."""
    return {
        name: module
        for name, module in model.named_modules()
        if _sizes(module) and any(fnmatch.fnmatchcase(name, pattern) for pattern in lora.targets)
    }


def start_of(layer: Any, generator: torch.Generator) -> dict[str, Tensor]:
    """An adapter's start: A as torch draws a linear layer's weight, B zero."""
    bound = 1 / math.sqrt(layer.lora_A.shape[1])
    drawn = torch.rand(layer.lora_A.shape, generator=generator, dtype=torch.float64)
    return {A: ((2 * drawn - 1) * bound).to(layer.lora_A), B: torch.zeros_like(layer.lora_B)}


def _adapt(layer: Any, lora: LoRA) -> None:
    n_in, n_out = _sizes(layer) or (0, 0)
    like = layer.weight
    layer.lora_A = nn.Parameter(like.new_zeros(lora.rank, n_in))
    layer.lora_B = nn.Parameter(like.new_zeros(n_out, lora.rank))
    layer.lora_scale, layer.lora_dropout = (
        lora.scale,
        nn.Dropout(lora.dropout) if lora.dropout else nn.Identity(),
    )
    kind = type(layer)
    layer.__class__ = (
        AdaptedLinear if kind is nn.Linear else type(f"Adapted{kind.__name__}", (_Adapted, kind), {})
    )


def _sizes(module: Any) -> tuple[int, int] | None:
    """(inputs, outputs) of a linear layer, of torch or of transformers (Conv1D); None for other modules."""
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return None  # of nn.MultiheadAttention, which reads its weight and never calls it
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if type(module).__name__ in ("Conv1D", "AdaptedConv1D") and hasattr(module, "nf"):
        return module.weight.shape[0], module.weight.shape[1]
    return None


def _some(names: list[str]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > 8 else ""
    return f"names: {', '.join(names[:8])}{more}"
