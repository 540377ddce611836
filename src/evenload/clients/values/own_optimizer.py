"""Optimisers that evenload has no rule for: a user's own as two functions, and any of torch.optim."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenload.clients.values.optimizer import along
from evenload.errors import ConfigError, UnknownName, quoted

__all__ = ["OwnOptimizer", "TorchOptimizer"]

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
        if not np.isfinite(self.lr) or self.lr < 0:
            raise ConfigError(f"OwnOptimizer(lr={quoted(self.lr)}) is not a finite number >= 0")

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
                        fresh, kept["state"] = own.step(p, p.grad, state, lr, t)
                        p.copy_(fresh)

        return Serial(list(named.values()), {"lr": self.lr})

    def code(self) -> tuple:
        """The parts that clients of one fused step must share."""
        return type(self), self.init, self.step

    @classmethod
    def form(cls, all_of_them: Sequence["OwnOptimizer"]) -> tuple:
        first = all_of_them[0]
        return ("OwnOptimizer", first.init, first.step, tuple(first.init(torch.zeros(2, 2))))

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
            fresh, kept = torch.func.vmap(step)(p, grads[name], own, s["lr"], s["t"])
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
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise ConfigError(f"{quoted(self.kind)} is no class of torch.optim", hint="use 'ASGD', say")
        if kind in (torch.optim.LBFGS, torch.optim.SparseAdam):
            raise ConfigError(
                f"{kind.__name__} needs more than a gradient in each step", hint="write a `step`"
            )
        object.__setattr__(self, "kind", kind)
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

    @staticmethod
    def scalars(form: Any, opts: Any, factor: np.ndarray, t: np.ndarray) -> dict[str, np.ndarray]:
        raise NotImplementedError("never fused")

    @staticmethod
    def update(form: Any, params: Any, grads: Any, state: Any, s: Any) -> None:
        raise NotImplementedError("never fused")


def _checked(state: State, p: Tensor) -> State:
    for name, t in state.items():
        if t.shape != p.shape:
            raise ConfigError(
                f"the optimizer's state {quoted(name)} has shape {tuple(t.shape)}, "
                f"its parameter {tuple(p.shape)}",
                hint="init(p) returns tensors of the parameter's shape: torch.zeros_like(p), say",
            )
    return state
