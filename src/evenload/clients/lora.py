"""Many low-rank adapters of one frozen base, trained together: its products are over the rows of all of them.

An adapted layer gives W x + scale B A x, with W frozen. Source: Hu et al., "LoRA: low-rank adaptation of
large language models", arXiv:2106.09685.
"""

import fnmatch
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenload._optional import require
from evenload.clients.step.module_state import copy_model
from evenload.clients.trainer import Trainer
from evenload.clients.values.keys import MODEL, key
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult, StateRow, TrainResult
from evenload.clients.values.strategy import ClientPlan, Strategy
from evenload.clients.values.task import TrainOptions
from evenload.errors import ConfigError, TaskError, quoted

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


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A trained adapter: the tensors that are its own, and how its training went.

    weights  name -> tensor: of each adapted layer ``lora_A`` [rank, inputs] and ``lora_B`` [outputs, rank],
             and the parameters of ``lora.also``; buffers that training changed (a BatchNorm's statistics)
    """

    lora: LoRA
    weights: Mapping[str, Tensor]
    result: ClientResult
    _base: nn.Module = field(repr=False)

    @property
    def losses(self) -> Any:
        return self.result.losses

    @property
    def status(self) -> str:
        return self.result.status

    def model(self) -> nn.Module:
        """A copy of the base with this adapter beside its layers."""
        found = with_adapters(self._base, self.lora)
        found.load_state_dict(dict(self.weights), strict=False)
        return found.eval()

    def merged(self) -> nn.Module:
        """A copy of the base, of its own class, with this adapter added to its weights.

        A weight that an adapted layer shared (with an embedding, say) is its own afterwards. Raises
        ConfigError where a weight is computed from other parameters (``weight_norm``).
        """
        found: Any = copy_model(self._base)
        found.load_state_dict(dict(self.weights), strict=False)
        owners = Counter(id(p) for m in found.modules() for p in m.parameters(recurse=False))
        for name, layer in adapted_layers(found, self.lora).items():
            prefix = f"{name}." if name else ""
            change = self.weights[f"{prefix}lora_B"] @ self.weights[f"{prefix}lora_A"] * self.lora.scale
            weight: Any = layer._parameters.get("weight")
            if weight is None:
                raise ConfigError(
                    f"the weight of {quoted(name)} is computed from other parameters, nothing can be added",
                    hint="use model(), or a base without weight_norm or the like",
                )
            whole = weight.detach() + (change if isinstance(layer, nn.Linear) else change.T)
            layer.weight = nn.Parameter(whole, weight.requires_grad)
            if owners[id(weight)] > 1 and hasattr(found, "config"):  # or transformers ties them anew
                found.config.tie_word_embeddings = False
        return found.eval()


@dataclass(frozen=True, slots=True, eq=False)
class AdaptersResult(Sequence[Adapter]):
    """A sequence of trained adapters, in the order of the datasets.

    plans  how those of each form were trained
    """

    adapters: tuple[Adapter, ...]
    plans: Mapping[LoRA, ClientPlan]

    def __getitem__(self, index: Any) -> Any:
        return self.adapters[index]

    def __len__(self) -> int:
        return len(self.adapters)

    def explain(self) -> str:
        """How the adapters of each form were trained."""
        return "\n".join(f"rank {lora.rank}: {plan.explain()}" for lora, plan in self.plans.items())


def adapters(
    base: nn.Module,
    datasets: Sequence[Any],
    lora: LoRA | Sequence[LoRA] | None = None,
    *,
    recipe: Recipe | Sequence[Recipe] | None = None,
    strategy: str | Strategy = "auto",
    devices: Any = "all",
    seed: int = 0,
    on_error: str = "raise",
) -> AdaptersResult:
    """Train one adapter of ``base`` per dataset; each ends as it would alone.

    base      an nn.Module, which is frozen and never changed: one copy of its weights serves all adapters,
              and its forward and backward passes are products over the rows of all of them
    datasets  one per adapter, as ``train`` takes them
    lora      the form of all adapters, or of each; those of one form are trained together
    recipe    how they are trained, all or each; for a transformer usually with an ``objective``
    seed      with an adapter's place it decides its start, its order and its dropout
    Raises ConfigError for what cannot be used, TaskError if an adapter fails (see ``train``): those that
    did not are in the error's ``result``.
    """
    if not isinstance(base, nn.Module):
        raise ConfigError(f"the base is a {type(base).__name__}", hint="give an nn.Module with its weights")
    if on_error not in ("raise", "return"):
        raise ConfigError(f"on_error={quoted(on_error)} is unknown", hint="use 'raise' or 'return'")
    datasets = list(datasets)
    forms: list[LoRA] = _one_each("forms", lora or LoRA(), len(datasets), LoRA)
    recipes: list[Recipe] = _one_each("recipes", recipe or Recipe(), len(datasets), Recipe)
    options = {"strategy": strategy, "devices": devices, "seed": seed}
    result, trouble = _by_form(base, datasets, forms, recipes, options)
    if trouble is not None and on_error == "raise":
        trouble.result = result  # pyrefly: ignore
        raise trouble
    return result


def _by_form(
    base: nn.Module,
    datasets: list[Any],
    forms: list[LoRA],
    recipes: list[Recipe],
    options: Mapping[str, Any],
) -> tuple[AdaptersResult, TaskError | None]:
    """The adapters of all forms, one form after the other; and the first form's error, if one failed."""
    n, trouble = len(datasets), None
    found: dict[int, Adapter] = {}
    plans: dict[LoRA, ClientPlan] = {}
    for form in dict.fromkeys(forms):
        at = [i for i in range(n) if forms[i] == form]
        model = with_adapters(base, form)
        with Trainer(model, **options) as trainer:
            began = trainer.start
            starts = [{**began, **_start(model, form, options["seed"], i)} for i in at]
            each = TrainOptions(start=starts, ids=at, on_error="return")
            run = trainer.train_with([datasets[i] for i in at], [recipes[i] for i in at], each)
        plans[form] = run.plan
        found |= zip(at, _trained(base, model, form, run, began), strict=True)
        try:
            run.raise_for_failed()
        except TaskError as error:  # the adapters of other forms are trained all the same
            trouble = trouble or error
    return AdaptersResult(tuple(found[i] for i in range(n)), plans), trouble


def _one_each(what: str, given: Any, n: int, kind: type) -> list[Any]:
    each = [given] * n if isinstance(given, kind) else given
    if not isinstance(each, list | tuple) or not all(isinstance(one, kind) for one in each):
        raise ConfigError(f"{quoted(given)} for the {what}", hint=f"give one {kind.__name__}, or a list")
    if len(each) != n:
        raise ConfigError(f"{len(each)} {what} for {n} datasets", hint="give one, or one for each")
    return list(each)


def _trained(
    base: nn.Module, model: nn.Module, lora: LoRA, run: TrainResult, began: Mapping[str, Tensor]
) -> list[Adapter]:
    own = [name for name, p in model.named_parameters() if p.requires_grad]
    buffers = [name for name, _ in model.named_buffers() if name in began]
    found = []
    for result in run:
        state = result.state
        own_buffers = [n for n in buffers if not (isinstance(state, StateRow) and state.is_shared(n))]
        changed = [n for n in own_buffers if not torch.equal(state[n].cpu(), began[n].cpu())]
        weights = {n: state[n].clone() for n in (*own, *changed)}
        found.append(Adapter(lora, weights, result.without_state(), base))
    return found


def _start(model: nn.Module, lora: LoRA, seed: int, place: int) -> dict[str, Tensor]:
    """The start of the adapter at ``place``: by layer, in the order of their names."""
    generator = torch.Generator().manual_seed(key(MODEL, seed, place))
    start: dict[str, Tensor] = {}
    for name, layer in adapted_layers(model, lora).items():
        start |= {f"{name}.{part}" if name else part: t for part, t in start_of(layer, generator).items()}
    return start


PREFIX = "base_model.model."


def save_adapter(adapter: Adapter, folder: str | Path) -> Path:
    """Write an adapter so that ``peft.PeftModel.from_pretrained(base, folder)`` reads it.

    Layers are named one by one as ``target_modules``; trained parameters of the base go along.
    Raises MissingExtra without safetensors, OSError if the folder cannot be written, and ConfigError for what
    PEFT cannot hold: a layer with both an adapter and trained parameters, a base that is one layer.
    """
    safetensors: Any = require("safetensors.torch", extra="clients", why="saving adapters")
    named = {_peft_name(name): t.contiguous().cpu() for name, t in adapter.weights.items()}
    layers = sorted(n.rpartition(".")[0] for n in adapter.weights if n.endswith("lora_A"))
    others = sorted({n.rpartition(".")[0] for n in adapter.weights if "lora_" not in n})
    if both := [name for name in layers if name in others or not name]:
        raise ConfigError(
            f"PEFT has no form for the adapter of {quoted(both[0])}",
            hint="its layer is the whole base, or has trained parameters (`also`) beside it: use merged()",
        )
    whole = adapter.model()
    for name in others:  # PEFT reads modules: what the adapter did not train goes along
        for part, t in whole.get_submodule(name).state_dict().items():
            named.setdefault(f"{PREFIX}{name}.{part}", t.contiguous().cpu().clone())
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "r": adapter.lora.rank,
        "lora_alpha": adapter.lora.scale * adapter.lora.rank,
        "lora_dropout": adapter.lora.dropout,
        "target_modules": _targets(adapter, layers),
        "modules_to_save": others or None,
        "bias": "none",
        "inference_mode": True,
    }
    safetensors.save_file(named, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def _targets(adapter: Adapter, layers: list[str]) -> list[str] | str:
    """The layers' names; as one regular expression if PEFT would take the end of another's for one."""
    named = [name for name, _ in adapter._base.named_modules()]
    is_clear = not any(name.endswith(f".{layer}") for name in named for layer in layers)
    return layers if is_clear else "|".join(map(re.escape, layers))


def _peft_name(name: str) -> str:
    owner, _, part = name.rpartition(".")
    return f"{PREFIX}{owner}.{part}.weight" if part.startswith("lora_") else f"{PREFIX}{name}"
