"""Many adapters of one frozen base, trained together: its products are over the rows of all of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from evenload.clients.lora.form import LoRA, adapted_layers, start_of, with_adapters
from evenload.clients.step.module_state import copy_model
from evenload.clients.trainer import Trainer
from evenload.clients.values.keys import MODEL, key
from evenload.clients.values.options import TrainOptions
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult, StateRow, TrainResult
from evenload.clients.values.strategy import ClientPlan, Strategy
from evenload.errors import ConfigError, TaskError, quoted


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
