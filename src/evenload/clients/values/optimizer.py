"""Optimisers as values: torch's own for one client, and the same rule over stacked clients.

The stacked rule takes its numbers as tensors [K], one per client: learning rates, bias corrections and decay
may differ, and a change of the rate compiles nothing anew. ``scalars`` makes them in float64, as torch does.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from evenload.errors import ConfigError, quoted

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]


@dataclass(frozen=True, slots=True)
class SGD:
    """A stochastic gradient descent, as ``torch.optim.SGD``."""

    lr: float = 0.01
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, lr=(0, None), momentum=(0, None), weight_decay=(0, None))
        if self.nesterov and (self.momentum <= 0 or self.dampening):
            raise ConfigError("nesterov needs a momentum above 0 and no dampening")

    def build(self, named: Mapping[str, Any]) -> Any:
        return build_groups("SGD", [(list(named.values()), values_of(self))])

    def code(self) -> tuple:
        """The parts that clients of one fused step must share."""
        return SGD, self.nesterov

    @staticmethod
    def form(all_of_them: Sequence["SGD"]) -> tuple[str, ...]:
        """The parts of the stacked rule that any of these clients needs, which decide its code."""
        parts = {
            "momentum": any(o.momentum for o in all_of_them),
            "decay": any(o.weight_decay for o in all_of_them),
        }
        return (
            "SGD",
            *(part for part, is_on in parts.items() if is_on),
            *["nesterov"] * all_of_them[0].nesterov,
        )

    @staticmethod
    def state_names(form: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the state kept per parameter."""
        return ("momentum",) if "momentum" in form else ()

    @staticmethod
    def scalars(
        form: tuple[str, ...], opts: Sequence["SGD"], factor: np.ndarray, t: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The numbers of each client's ``t``-th step (from 1); ``factor`` scales the learning rate.

        opts are one per client or one for all; factor and t [steps, clients], or [steps, 1] for all, or
        factor [1] for all steps, too; each number broadcasts to [steps, clients], and has one axis only if
        all steps share it.
        """
        numbers = {"minus_lr": -factor * np.array([o.lr for o in opts])}
        if "momentum" in form:
            momentum = numbers["momentum"] = np.array([o.momentum for o in opts])
            # A client without momentum has no dampening either, nor has anyone's first step.
            gain = 1.0 - np.array([o.dampening for o in opts])
            is_damped = bool((gain != 1).any())
            numbers["gain"] = np.where((t == 1) | (momentum == 0), 1.0, gain) if is_damped else gain
        if "decay" in form:
            numbers["decay"] = np.array([o.weight_decay for o in opts])
        return numbers

    @staticmethod
    def update(
        form: tuple[str, ...], params: Tensors, grads: Tensors, state: Mapping[str, Tensors], s: Tensors
    ) -> None:
        """One step in place; every tensor [K, ...], every scalar [K]."""
        for name, p in params.items():
            g = grads[name]
            if "decay" in form:
                g = g + p * along(s["decay"], p)
            if "momentum" in form:
                buffer = state["momentum"][name]
                buffer.mul_(along(s["momentum"], p)).addcmul_(g, along(s["gain"], p))
                g = g + buffer * along(s["momentum"], p) if "nesterov" in form else buffer
            p.addcmul_(g, along(s["minus_lr"], p))


@dataclass(frozen=True, slots=True)
class Adam:
    """The optimiser Adam, as ``torch.optim.Adam``; weight decay is added to the gradient."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    _name: ClassVar[str] = "Adam"

    def __post_init__(self) -> None:
        check_numbers(self, lr=(0, None), weight_decay=(0, None), eps=(0, None))
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas={self.betas} are not both in [0, 1)")

    def build(self, named: Mapping[str, Any]) -> Any:
        return build_groups(self._name, [(list(named.values()), values_of(self))])

    def code(self) -> tuple:
        """The parts that clients of one fused step must share."""
        return type(self), self.amsgrad

    @classmethod
    def form(cls, all_of_them: Sequence["Adam"]) -> tuple[str, ...]:
        is_decayed = any(o.weight_decay for o in all_of_them)
        return (cls._name, *["decay"] * is_decayed, *["amsgrad"] * all_of_them[0].amsgrad)

    @staticmethod
    def state_names(form: tuple[str, ...]) -> tuple[str, ...]:
        return ("mean", "square", *["largest"] * ("amsgrad" in form))

    @staticmethod
    def scalars(
        form: tuple[str, ...], opts: Sequence["Adam"], factor: np.ndarray, t: np.ndarray
    ) -> dict[str, np.ndarray]:
        lr = factor * np.array([o.lr for o in opts])
        beta1, beta2 = (np.array([o.betas[i] for o in opts]) for i in (0, 1))
        decay = np.array([o.weight_decay for o in opts])
        return {
            "minus_step": -lr / (1 - beta1**t),
            "root": np.sqrt(1 - beta2**t),
            "new1": 1 - beta1,
            "beta2": beta2,
            "new2": 1 - beta2,
            "eps": np.array([o.eps for o in opts]),
            "decay": decay,
            "keep": 1 - lr * decay,
        }

    @staticmethod
    def update(
        form: tuple[str, ...], params: Tensors, grads: Tensors, state: Mapping[str, Tensors], s: Tensors
    ) -> None:
        for name, p in params.items():
            g, mean, square = grads[name], state["mean"][name], state["square"][name]
            if "decay" in form and form[0] == "AdamW":
                p.mul_(along(s["keep"], p))
            elif "decay" in form:
                g = g + p * along(s["decay"], p)
            mean.lerp_(g, along(s["new1"], p).expand_as(g))
            square.mul_(along(s["beta2"], p)).addcmul_(g * g, along(s["new2"], p))
            if "amsgrad" in form:
                largest = state["largest"][name]
                square = largest.copy_(largest.maximum(square))
            denominator = square.sqrt().div_(along(s["root"], p)).add_(along(s["eps"], p))
            p.addcmul_(mean / denominator, along(s["minus_step"], p))


@dataclass(frozen=True, slots=True)
class AdamW(Adam):
    """The optimiser AdamW, as ``torch.optim.AdamW``; weight decay shrinks the parameters themselves."""

    weight_decay: float = 1e-2
    _name: ClassVar[str] = "AdamW"


class Optimizer(Protocol):
    """An optimiser as a value: torch's for one client, and the same rule over stacked clients.

    An attribute ``why_not_fused`` is the reason if it has no such rule.
    """

    @property
    def lr(self) -> float: ...

    def build(self, named: Mapping[str, Any]) -> Any:
        """torch's optimiser of these parameters."""
        ...

    def code(self) -> tuple:
        """The parts that clients of one fused step must share."""
        ...

    def state_names(self, form: Any) -> tuple[str, ...]:
        """Names of the state kept per parameter."""
        ...

    def update(
        self, form: Any, params: Tensors, grads: Tensors, state: Mapping[str, Tensors], s: Tensors
    ) -> None:
        """One step in place; every tensor [K, ...], every number [K]."""
        ...


def build_groups(name: str, groups: Sequence[tuple[list[Any], Mapping[str, Any]]]) -> Any:
    """The optimiser of torch.optim called ``name`` over groups of parameters with their options."""
    import torch

    kind = getattr(torch.optim, name)
    with suppress(ImportError):  # this torch has other insides
        from evenload.clients.values.lean_optimizers import lean

        kind = lean(kind)
    of_groups = [{"params": params, **options} for params, options in groups]
    return kind(of_groups, **groups[-1][1])  # Adagrad reads some of its own only


def along(values: "Tensor", like: "Tensor") -> "Tensor":
    return values.view(-1, *[1] * (like.dim() - 1))


def values_of(optimizer: Any) -> dict[str, Any]:
    return {f.name: getattr(optimizer, f.name) for f in fields(optimizer)}


def check_numbers(optimizer: Any, **ranges: tuple[float | None, float | None]) -> None:
    for name, (low, _) in ranges.items():
        value = getattr(optimizer, name)
        if not (isinstance(value, int | float) and np.isfinite(value) and value >= (low or 0)):
            raise ConfigError(
                f"{type(optimizer).__name__}({name}={quoted(value)}) is not a finite number >= {low}"
            )
