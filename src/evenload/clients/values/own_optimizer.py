"""Optimisers that evenload has no rule for: a user's own as two functions, and any of torch.optim."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenload.clients.values.optimizer import along, check_numbers
from evenload.errors import ConfigError, UnknownName, quoted

State = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class OwnOptimizer:
    """An optimiser of the user's own, as two functions of one parameter; fused like the others.

    init  ``init(p) -> state``: a dict of tensors of the parameter's shape, for its first step
    step  ``step(p, g, state, lr, t) -> (p, state)``: new tensors; ``g`` is the gradient, ``lr`` (with the
          schedule in it) and ``t`` (from 1) are tensors without axes
    """

    init: Callable[[Tensor], State]
    step: Callable[[Tensor, Tensor, State, Tensor, Tensor], tuple[Tensor, State]]
    lr: float = 1e-2
    has_functions = True

    def __post_init__(self) -> None:
        if not (callable(self.init) and callable(self.step)):
            raise ConfigError(
                f"OwnOptimizer(init={quoted(self.init)}, step={quoted(self.step)})",
                hint="both are functions: init(p) -> state, step(p, g, state, lr, t) -> (p, state)",
            )
        check_numbers(self, "lr")

    def build(self, named: Mapping[str, Any]) -> Any:
        own = self

        class Serial(torch.optim.Optimizer):
            @torch.no_grad()
            def step(self, closure: Any = None) -> Any:
                for group in self.param_groups:
                    for p in (p for p in group["params"] if p.grad is not None):
                        kept = self.state[p]
                        kept["t"] = kept.get("t", 0) + 1
                        state = kept["state"] if "state" in kept else _checked(own.init(p), p)
                        lr, t = (p.new_tensor(float(v)) for v in (group["lr"], kept["t"]))
                        fresh, kept["state"] = _stepped(own.step(p, p.grad, state, lr, t), p)
                        p.copy_(fresh)

        return Serial(list(named.values()), {"lr": self.lr})

    def code(self) -> tuple:
        """The parts that clients of one fused step must share."""
        return type(self), self.init, self.step

    @classmethod
    def form(cls, all_of_them: Sequence["OwnOptimizer"]) -> tuple:
        first, p = all_of_them[0], torch.zeros(2, 2)
        try:
            names = tuple(_state(first.init(p)))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"the optimizer's init(p) of a 2 x 2 parameter raised {type(error).__name__}: {error}",
                hint="init(p) returns a dict of tensors of the parameter's shape",
            ) from error
        return ("OwnOptimizer", first.init, first.step, names)

    @staticmethod
    def state_names(form: tuple) -> tuple[str, ...]:
        return form[3]

    @staticmethod
    def scalars(
        form: tuple, opts: Sequence["OwnOptimizer"], factor: np.ndarray, t: np.ndarray
    ) -> dict[str, np.ndarray]:
        return {"lr": factor * np.array([o.lr for o in opts]), "t": t.astype(float)}

    @staticmethod
    def update(
        form: tuple,
        params: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        state: Mapping[str, Mapping[str, Tensor]],
        s: Mapping[str, Tensor],
    ) -> None:
        """One step in place; every tensor [K, ...], every number [K]."""
        _, init, step, names = form
        is_first = s["t"] == 1
        for name, p in params.items():
            began = torch.func.vmap(lambda p: _checked(init(p), p))(p)
            own = {n: torch.where(along(is_first, p), began[n], state[n][name]) for n in names}
            by_row = torch.func.vmap(lambda p, *others: _stepped(step(p, *others), p))
            fresh, kept = by_row(p, grads[name], own, s["lr"], s["t"])
            for n in names:
                state[n][name].copy_(kept[n])
            p.copy_(fresh)


@dataclass(frozen=True, slots=True)
class TorchOptimizer:
    """An optimiser of torch.optim (a class or its name) with its options, for clients one by one.

    It is never fused: SGD, Adam and the others that evenload has values for are.
    """

    kind: Any
    lr: float = 1e-3
    options: Any = ()
    has_functions = True

    def __post_init__(self) -> None:
        kind = getattr(torch.optim, self.kind, None) if isinstance(self.kind, str) else self.kind
        if isinstance(self.kind, str) and kind is None:
            known = [n for n, v in vars(torch.optim).items() if isinstance(v, type)]
            raise UnknownName("torch.optim optimizer", self.kind, known)
        is_class = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        if not is_class or kind is torch.optim.Optimizer:
            raise ConfigError(f"{quoted(self.kind)} is no class of torch.optim", hint="use 'ASGD', say")
        if kind in (torch.optim.LBFGS, torch.optim.SparseAdam):
            raise ConfigError(
                f"{kind.__name__} needs more than a gradient in each step", hint="write a `step`"
            )
        object.__setattr__(self, "kind", kind)
        check_numbers(self, "lr")
        if not isinstance(self.options, Mapping | tuple | list):
            raise ConfigError(
                f"TorchOptimizer(options={quoted(self.options)})", hint='give a dict: {"lambd": 0.01}'
            )
        object.__setattr__(self, "options", tuple(dict(self.options).items()))

    @property
    def why_not_fused(self) -> str:
        return f"there is no fused rule for TorchOptimizer({self.kind.__name__})"

    def build(self, named: Mapping[str, Any]) -> Any:
        return self.kind(list(named.values()), lr=self.lr, **dict(self.options))

    def code(self) -> tuple:
        """The parts that clients of one fused step must share."""
        return type(self), self.kind

    @staticmethod
    def form(all_of_them: Sequence["TorchOptimizer"]) -> tuple[str, ...]:
        return ("TorchOptimizer", all_of_them[0].kind.__name__)

    @staticmethod
    def state_names(form: tuple[str, ...]) -> tuple[str, ...]:
        return ()


def _stepped(found: Any, p: Tensor) -> tuple[Tensor, State]:
    """What a step returned. Raises ConfigError unless it is a parameter of p's shape and a state."""
    is_pair = isinstance(found, tuple | list) and len(found) == 2
    if not (is_pair and isinstance(found[0], Tensor) and isinstance(found[1], dict)):
        raise ConfigError(
            f"the optimizer's step returned a {type(found).__name__}",
            hint="step(p, g, state, lr, t) returns (p, state): a tensor and a dict",
        )
    if found[0].shape != p.shape:  # which would be broadcast
        raise ConfigError(
            f"the optimizer's step returned a parameter of shape {tuple(found[0].shape)} "
            f"for one of {tuple(p.shape)}"
        )
    return tuple(found)


def _state(state: Any) -> State:
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise ConfigError(
            f"the optimizer's init returned {quoted(state)}",
            hint='init(p) returns a dict of tensors: {"mean": torch.zeros_like(p)}, or {}',
        )
    return state


def _checked(state: Any, p: Tensor) -> State:
    for name, t in _state(state).items():
        if t.shape != p.shape:
            raise ConfigError(
                f"the optimizer's state {quoted(name)} has shape {tuple(t.shape)}, "
                f"its parameter {tuple(p.shape)}",
                hint="init(p) returns tensors of the parameter's shape: torch.zeros_like(p), say",
            )
    return state
