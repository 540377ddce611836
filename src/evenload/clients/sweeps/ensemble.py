"""An ensemble: one model many times, from different starts, trained and asked together."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from evenload._arguments import suggests_arguments
from evenload.clients.load.datasets import drawn_rows
from evenload.clients.step.objective import outputs_of
from evenload.clients.trainer import Trainer, template_of
from evenload.clients.values.data import Batch, dtype_of, leaves_of, map_batch
from evenload.clients.values.keys import MODEL, key
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import TrainResult
from evenload.clients.values.strategy import Strategy
from evenload.clients.values.task import TrainOptions
from evenload.errors import ConfigError, quoted

BATCH = 1024


class Ensemble:
    """A trained ensemble, whose members are asked in one fused forward pass where vmap can do the model.

    result      of the training: ``result.plan`` says how
    states      of the members that ended well
    why_one_by_one  why members are asked one after the other, or None
    """

    def __init__(self, model: nn.Module, result: TrainResult):
        self.result = result
        self.states = [r.state for r in result if r.is_usable]
        if not self.states:
            raise ConfigError("no member of the ensemble was trained to its end", hint=result.plan.explain())
        self.why_one_by_one: str | None = None
        self._model = copy.deepcopy(model).eval()
        self._stack = {n: torch.stack([s[n] for s in self.states]) for n in self.states[0]}

    def __len__(self) -> int:
        return len(self.states)

    @torch.no_grad()
    def outputs(self, x: Any) -> Tensor:
        """Every member's outputs: [members, rows, ...]; ``x`` as the model takes it, rows along axis 0.

        Raises ConfigError for what is no tensor, and what the model raises.
        """
        dtype = dtype_of(self._model.parameters())
        try:
            x = x if isinstance(x, dict | tuple) else torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"x={quoted(x)} is no tensor, array or list of numbers") from error
        x = map_batch(lambda t: t.to(dtype) if t.is_floating_point() else t, x)
        n = len(leaves_of(x)[0])
        parts = [map_batch(lambda t, at=at: t[at : at + BATCH], x) for at in range(0, max(1, n), BATCH)]
        return torch.cat([self._asked(part) for part in parts], 1)

    def predict(self, x: Any) -> Tensor:
        """The mean over members: [rows, ...]; of logits ``predict_proba`` is the better mean."""
        return self.outputs(x).mean(0)

    def predict_proba(self, x: Any) -> Tensor:
        """The mean of the members' probabilities [rows, classes], of models that give logits of classes.

        Raises ConfigError for a model with one output per row.
        """
        outputs = self.outputs(x)
        if outputs.dim() < 3 or outputs.shape[2] < 2:
            raise ConfigError(
                f"outputs of shape {tuple(outputs.shape[1:])} are no logits of classes",
                hint="use predict(x), or outputs(x).sigmoid().mean(0) of one logit for yes or no",
            )
        return outputs.softmax(2).mean(0)

    def std(self, x: Any) -> Tensor:
        """How far members are apart: the standard deviation of their outputs, [rows, ...]."""
        return self.outputs(x).std(0, correction=0)

    def _asked(self, x: Batch) -> Tensor:
        def one(state: Mapping[str, Tensor]) -> Tensor:
            def call(*args: Any, **kw: Any) -> Any:  # of tied weights the state has each name's
                return functional_call(self._model, dict(state), args, kw, tie_weights=False)

            return outputs_of(call, x)

        why = self.why_one_by_one
        if why is None:
            try:
                return vmap(one)(self._stack)
            except Exception as error:
                why = f"{type(error).__name__}: {error}".splitlines()[0]
        found = torch.stack([one(state) for state in self.states])
        self.why_one_by_one = why  # unless x is what the model cannot take
        return found


@suggests_arguments
def ensemble(
    model: nn.Module | Callable[[], nn.Module],
    data: Any,
    n: int = 8,
    *,
    recipe: Recipe | Sequence[Recipe] | None = None,
    bootstrap: bool = False,
    strategy: str | Strategy = "auto",
    devices: Any = "all",
    seed: int = 0,
) -> Ensemble:
    """Train ``n`` members on ``data``, each from a start and with an order of its own.

    model      a function that makes one: member i's start is drawn with a seed of ``seed`` and i.
               With an nn.Module all start the same, which only ``bootstrap`` makes different enough
    bootstrap  each member gets as many rows as there are, drawn with replacement
    Raises ConfigError for fewer than one member, or members that would all be the same start.
    """
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise ConfigError(f"an ensemble of n={quoted(n)} members", hint="use an int above 0")
    if n < 1:
        raise ConfigError(f"an ensemble of n={n} members", hint="use 1 or more")
    if isinstance(model, nn.Module) and not bootstrap and n > 1:
        raise ConfigError(
            "all members would start from one nn.Module",
            hint="give a function that makes a model, or bootstrap=True",
        )
    with Trainer(model, strategy=strategy, devices=devices, seed=seed) as trainer:
        starts: Any = None
        if not isinstance(model, nn.Module):
            made = [template_of(model, key(MODEL, seed, member)) for member in range(n)]
            starts = [{name: t.detach() for name, t in m.state_dict().items()} for m in made]
        datasets = [data] * n
        if bootstrap:
            draws = [np.random.default_rng(key(MODEL, seed, member, 1)) for member in range(n)]
            datasets = drawn_rows(data, draws)
        result = trainer.train_with(datasets, recipe or Recipe(), TrainOptions(start=starts))
        return Ensemble(trainer.model, result)
