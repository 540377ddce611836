"""Many adapters of one frozen base, trained together: its products are over the rows of all of them."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from evenload.clients.lora.form import LoRA, adapted_layers, start_of, with_adapters
from evenload.clients.tune.trainer import Trainer
from evenload.clients.values.keys import MODEL, key
from evenload.clients.values.options import TrainOptions
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult, TrainResult
from evenload.clients.values.strategy import Strategy, TrainingPlan
from evenload.errors import ConfigError

__all__ = ["Adapter", "AdaptersResult", "adapters"]


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A trained adapter: the tensors that are its own, and how its training went.

    weights  name -> tensor: of each adapted layer ``lora_A`` [rank, inputs] and ``lora_B`` [outputs, rank],
             and the parameters of ``lora.also``
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
        """A copy of the base, of its own class, with this adapter added to its weights."""
        found, own = copy.deepcopy(self._base), dict(self.weights)
        with torch.no_grad():
            for name, layer in adapted_layers(found, self.lora).items():
                prefix = f"{name}." if name else ""
                change = own.pop(f"{prefix}lora_B") @ own.pop(f"{prefix}lora_A") * self.lora.scale
                weight: Any = layer.weight
                weight += change if isinstance(layer, nn.Linear) else change.T
        found.load_state_dict(own, strict=False)
        return found.eval()


@dataclass(frozen=True, slots=True, eq=False)
class AdaptersResult(Sequence[Adapter]):
    """A sequence of trained adapters, in the order of the datasets.

    plans  how those of each form were trained
    """

    adapters: tuple[Adapter, ...]
    plans: Mapping[LoRA, TrainingPlan]

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
    Raises ConfigError for what cannot be used, TaskError if an adapter fails (see ``train``).
    """
    if not isinstance(base, nn.Module):
        raise ConfigError(f"the base is a {type(base).__name__}", hint="give an nn.Module with its weights")
    n = len(datasets)
    forms: list[LoRA] = _one_each("forms", lora or LoRA(), n)
    recipes: list[Recipe] = _one_each("recipes", recipe or Recipe(), n)
    found: dict[int, Adapter] = {}
    plans: dict[LoRA, TrainingPlan] = {}
    for form in dict.fromkeys(forms):
        at = [i for i in range(n) if forms[i] == form]
        model = with_adapters(base, form)
        with Trainer(model, strategy=strategy, devices=devices, seed=seed) as trainer:
            starts = [{**trainer.start, **_start(model, form, seed, i)} for i in at]
            options = TrainOptions(start=starts, ids=at, on_error=on_error)
            run = trainer.run([datasets[i] for i in at], [recipes[i] for i in at], options)
        plans[form] = run.plan
        found |= zip(at, _trained(base, model, form, run), strict=True)
    return AdaptersResult(tuple(found[i] for i in range(n)), plans)


def _one_each(what: str, given: Any, n: int) -> list[Any]:
    each = [given] * n if isinstance(given, LoRA | Recipe) else list(given)
    if len(each) != n:
        raise ConfigError(f"{len(each)} {what} for {n} datasets", hint="give one, or one for each")
    return each


def _trained(base: nn.Module, model: nn.Module, lora: LoRA, run: TrainResult) -> list[Adapter]:
    own = [name for name, p in model.named_parameters() if p.requires_grad]
    return [
        Adapter(lora, {n: result.state[n].clone() for n in own}, result.without_state(), base)
        for result in run
    ]


def _start(model: nn.Module, lora: LoRA, seed: int, place: int) -> dict[str, Tensor]:
    """The start of the adapter at ``place``: by layer, in the order of their names."""
    generator = torch.Generator().manual_seed(key(MODEL, seed, place))
    start: dict[str, Tensor] = {}
    for name, layer in adapted_layers(model, lora).items():
        start |= {f"{name}.{part}" if name else part: t for part, t in start_of(layer, generator).items()}
    return start
