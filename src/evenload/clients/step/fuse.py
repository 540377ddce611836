"""One step of K clients at once: each with its own weights, rows, optimiser state and randomness.

    gradients   vmap over clients of one client's loss, and the gradient of all clients' sum: no client's loss
                has another's parameters in it
    terms       proximal term, correction, clipping: per client
    update      the optimiser's stacked rule, in place

A client whose loss is not finite is left as it was before the step, and is not ``alive`` from then on.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_leaves

from evenload.clients.step.dropout import KEY, keyed_layers
from evenload.clients.step.functions import ReplacedFunctions
from evenload.clients.step.norm import ROW_WEIGHT, MaskedBatchNorm, with_masked_norm
from evenload.clients.step.objective import BatchLoss
from evenload.clients.values.data import Batch, leaves_of, map_batch, unflattened
from evenload.clients.values.losses import metrics_of
from evenload.clients.values.optimizer import along
from evenload.clients.values.recipe import Recipe
from evenload.errors import ConfigError

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class StepForm:
    """The parts of a fused step that all of its clients share, and that decide its code.

    trained    parameters that get gradients
    frozen     other parameters and buffers that never change
    buffers    buffers that a forward pass in training changes
    replaces   the model calls functions of torch that are replaced: see ``functions``
    """

    trained: tuple[str, ...]
    frozen: tuple[str, ...]
    buffers: tuple[str, ...]
    optimizer: tuple[str, ...]
    prox: bool = False
    correction: bool = False
    shares_frozen: bool = True
    replaces: bool = False


@dataclass(slots=True)
class StackedClients:
    """The state of K clients, stacked as rows [K, ...] of every tensor; steps change it in place."""

    params: dict[str, Tensor]
    state: dict[str, dict[str, Tensor]]
    buffers: dict[str, Tensor]
    frozen: dict[str, Tensor]
    anchor: dict[str, Tensor]
    correction: dict[str, Tensor]
    alive: Tensor
    _flat: list[Tensor] | None = None

    def tables(self) -> tuple:
        """The fields that hold tensors, in order."""
        return self.params, self.state, self.buffers, self.frozen, self.anchor, self.correction, self.alive

    def flat(self) -> list[Tensor]:
        """All tensors, in the order of ``tables``; the list is made once, for many steps."""
        if self._flat is None:
            self._flat = tree_leaves(self.tables())
        return self._flat

    def changing(self) -> list[Tensor]:
        """Every tensor that a step writes, but ``alive``."""
        return tree_leaves((self.params, self.state, self.buffers))


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The losses [K] of a step, and for each metric the mean over the batch's real rows [K]."""

    losses: Tensor
    metrics: dict[str, Tensor]


class StackedStep:
    """The fused step of one model, recipe and form, not for two threads at once.

    ``functional_call`` swaps the parameters of the one module.

    is_inside  take gradients inside of vmap, as a traced step does: each client's own operations are then
               differentiated, whatever vmap makes of them
    """

    def __init__(self, model: nn.Module, recipe: Recipe, form: StepForm, is_inside: bool = False):
        self._base = with_masked_norm(copy.deepcopy(model).train())
        self._recipe, self._form = recipe, form
        self._loss = BatchLoss(recipe, ReplacedFunctions() if form.replaces else None)
        self._metrics = metrics_of(recipe)
        self._update = functools.partial(recipe.optimizer.update, form.optimizer)
        self._call = _Call(self._base) if recipe.objective is not None else None
        self._keys = [f"{name}.{KEY}" for name in keyed_layers(self._base)]
        self._layers = list(keyed_layers(self._base).values())
        self._weights = [
            f"{name}.{ROW_WEIGHT}" for name, m in self._base.named_modules() if isinstance(m, MaskedBatchNorm)
        ]
        self._is_inside = is_inside
        dims = (0, None if form.shares_frozen else 0, 0, 0)
        self._gradients = vmap(grad_and_value(self._objective, has_aux=True), in_dims=dims)
        self._losses = vmap(self._objective, in_dims=dims)
        self._outputs = vmap(self._forward, in_dims=dims)

    def move(self, device: str) -> "StackedStep":
        """Move what is not stacked (buffers outside the state dict) to the device."""
        self._base.to(device)
        return self

    def __call__(self, clients: StackedClients, given: "StepArguments") -> StepOutput:
        """Step every client in place."""
        s = given.s
        grads, losses, buffers, metrics = self._eager(clients, given.batch)
        clients.alive &= losses.isfinite()
        dead = None if bool(clients.alive.all()) else (~clients.alive).nonzero().flatten()
        changing = [] if dead is None else clients.changing()
        kept = [t[dead] for t in changing]
        self._update(clients.params, self._terms(clients, grads, s), clients.state, s)
        for name, t in clients.buffers.items():
            t.copy_(buffers[name])
        for t, rows in zip(changing, kept, strict=True):
            t[dead] = rows
        return StepOutput(losses, metrics)

    def traced(self, clients: StackedClients, given: "StepArguments") -> StepOutput:
        """The step without branches on numbers, so that it is one graph: ``where`` keeps dead rows.

        ``inductor.rewrite`` finds plain descent in the graph by this very form: clone, ``addcmul_``,
        where, copy.
        """
        grads, losses, buffers, metrics = self._forward_backward(clients, given.batch)
        alive = clients.alive & losses.isfinite()
        params = {name: t.clone() for name, t in clients.params.items()}
        state = {slot: {name: t.clone() for name, t in ts.items()} for slot, ts in clients.state.items()}
        self._update(params, self._terms(clients, grads, given.s), state, given.s)
        _copy_where(alive, clients.params, params)
        for slot, tensors in clients.state.items():
            _copy_where(alive, tensors, state[slot])
        _copy_where(alive, clients.buffers, buffers)
        clients.alive.copy_(alive)
        return StepOutput(losses, metrics)

    def _objective(self, params: Tensors, frozen: Tensors, buffers: Tensors, batch: "StepBatch"):
        """One client's loss, and its new buffers."""
        draw, x, y, w = batch
        fresh, tensors = self._tensors(params, frozen, buffers, draw, w)
        if self._call is None:
            value, outputs = self._loss(self._bound(tensors), x, y, draw, w)
        else:  # the objective may use any of the model's methods
            named = {f"model.{name}": t for name, t in tensors.items()}
            value, outputs = functional_call(
                self._call, named, (lambda model: self._loss(model, x, y, draw, w),)
            )
        metrics = {name: (metric(outputs.detach(), y) * w).sum() for name, metric in self._metrics.items()}
        return value, (fresh, metrics)

    def _forward(self, params: Tensors, frozen: Tensors, buffers: Tensors, batch: "StepBatch"):
        """One client's outputs, and its new buffers."""
        draw, x, _, w = batch
        fresh, tensors = self._tensors(params, frozen, buffers, draw, w)
        return self._loss.outputs(self._bound(tensors), x, draw), fresh

    def _tensors(
        self, params: Tensors, frozen: Tensors, buffers: Tensors, draw: Tensor, w: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """One client's new buffers, cloned as modules write them in place; and all tensors of a call."""
        fresh = {name: t.clone() for name, t in buffers.items()}
        extra = {**dict.fromkeys(self._keys, draw), **dict.fromkeys(self._weights, w)}
        for layer in self._layers:
            layer.n_calls = 0
        return fresh, {**params, **frozen, **fresh, **extra}

    def _bound(self, tensors: dict[str, Tensor]) -> Callable[..., Any]:
        return lambda *args, **kwargs: functional_call(self._base, tensors, args, kwargs)

    def _eager(self, clients: StackedClients, batch: "StepBatch"):
        """Gradients, losses, new buffers and metrics, by the way that works for this model."""
        if not self._is_inside:
            try:
                return self._forward_then_backward(clients, batch)
            except Exception:  # vmap knows some operations only while each client's gradient is taken
                self._is_inside = True
        return self._forward_backward(clients, batch)

    def _forward_then_backward(self, clients: StackedClients, batch: "StepBatch"):
        """What ``_forward_backward`` returns, with all clients' gradients taken at once, outside of vmap.

        Half of functorch's work for each operation is left out, and torch's compiler is not loaded for it.
        """
        params = {name: t.detach().requires_grad_() for name, t in clients.params.items()}
        with torch.enable_grad():
            losses, buffers, metrics = self._losses_of(params, clients, batch)
            total = losses.sum()
        grads = torch.autograd.grad(total, list(params.values()), materialize_grads=True)
        grads = dict(zip(params, grads, strict=True))
        return grads, losses.detach(), _detached(buffers), _detached(metrics)

    def _losses_of(
        self, params: Tensors, clients: StackedClients, batch: "StepBatch"
    ) -> tuple[Tensor, Tensors, Tensors]:
        """Losses [K], new buffers and metrics [K]. A named loss is that of all clients' rows in one call."""
        if not self._loss.is_named:
            losses, (buffers, metrics) = self._losses(params, clients.frozen, clients.buffers, batch)
            return losses, buffers, metrics
        outputs, buffers = self._outputs(params, clients.frozen, clients.buffers, batch)
        _, _, y, w = batch
        if outputs.shape[:2] != y.shape[:2]:
            raise ConfigError(f"outputs of shape {tuple(outputs.shape[1:])} for {y.shape[1]} rows")
        outputs, targets = outputs.flatten(0, 1), y.flatten(0, 1)
        losses = self._loss.total(self._loss.of_outputs(outputs, targets).view_as(w), y, w)
        outputs = outputs.detach()
        metrics = {n: (metric(outputs, targets).view_as(w) * w).sum(1) for n, metric in self._metrics.items()}
        return losses, buffers, metrics

    def _forward_backward(self, clients: StackedClients, batch: "StepBatch"):
        """Gradients, losses, new buffers and metrics of all clients, by gradients inside of vmap."""
        grads, (losses, (buffers, metrics)) = self._gradients(
            clients.params, clients.frozen, clients.buffers, batch
        )
        return grads, losses, buffers, metrics

    def _terms(self, clients: StackedClients, grads: dict[str, Tensor], s: Tensors) -> dict[str, Tensor]:
        if self._form.prox:
            for name, p in clients.params.items():
                grads[name] = grads[name] + (p - clients.anchor[name]) * along(s["prox"], p)
        if self._form.correction:
            grads = {name: g + clients.correction[name] for name, g in grads.items()}
        if self._recipe.clip is not None:
            # Of a single number, [K] has no axis 1 to begin at.
            flat = [g.unsqueeze(-1).flatten(1) for g in grads.values()]
            norms = torch.stack([g.norm(dim=1) for g in flat]).norm(dim=0)
            scale = (s["clip"] / (norms + 1e-6)).clamp(max=1.0)
            grads = {name: g * along(scale, g) for name, g in grads.items()}
        return grads


class _Call(nn.Module):
    """A module that calls what it is given with the model."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, fn: Callable[[nn.Module], Any]) -> Any:
        return fn(self.model)


StepBatch = tuple[Tensor, Batch, Tensor, Tensor]


class StepArguments(NamedTuple):
    """The arguments of one step of K clients.

    draw  int64 [K] dropout keys;  x [K, rows, ...];  y [K, rows, ...]
    w     [K, rows]: 1/n for the n real rows, 0 for padding
    s     the optimiser's scalars, and "prox", "clip" if there are any, each [K]
    """

    draw: Tensor
    x: Batch
    y: Tensor
    w: Tensor
    s: Tensors

    @property
    def batch(self) -> StepBatch:
        return self[:4]


StepFn = Callable[[StackedClients, StepArguments], StepOutput]


class StepInputs(NamedTuple):
    """The inputs of several steps, with a row of each for every step; ``scalars``: the numbers of each."""

    draws: Tensor
    x: Batch
    y: Tensor
    w: Tensor
    scalars: Sequence[Tensors]

    def first(self) -> StepArguments:
        x = map_batch(lambda t: t[0], self.x)
        return StepArguments(self.draws[0], x, self.y[0], self.w[0], self.scalars[0])

    def each(self) -> Iterator[StepArguments]:
        """The arguments of each step."""
        leaves = zip(*(t.unbind(0) for t in leaves_of(self.x)), strict=True)
        batches = [unflattened(self.x, line) for line in leaves]
        draws, ys, ws = (t.unbind(0) for t in (self.draws, self.y, self.w))
        yield from map(StepArguments, draws, batches, ys, ws, self.scalars)


def _detached(tensors: Tensors) -> dict[str, Tensor]:
    return {name: t.detach() for name, t in tensors.items()}


def _copy_where(alive: Tensor, into: Tensors, values: Tensors) -> None:
    for name, t in into.items():
        t.copy_(torch.where(along(alive, t), values[name], t))
