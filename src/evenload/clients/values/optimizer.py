"""Optimisers as values: torch's own for one client, and the same rule over stacked clients.

The stacked rule takes its numbers as tensors [K], one per client: learning rates, bias corrections and decay
may differ, and a change of the rate compiles nothing anew. ``scalars`` makes them in float64, as torch does.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from evenload.errors import ConfigError, quoted

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
Numbers = Mapping[str, np.ndarray]


class Elementwise:
    """An optimiser of torch.optim whose step of one number depends on this number's own gradients.

    A subclass is a dataclass with torch's own names and defaults, ``lr`` and ``weight_decay`` among them.
    ``numbers`` gives what enters a step in float64, as torch's scalars are; ``rule`` is the step over stacked
    clients, whose tensors are [K, ...], and numbers broadcast along them.

    What else a recipe takes for an optimiser (``OwnOptimizer``, ``ParameterGroups``) has the public methods
    of this class; an attribute ``why_not_fused`` is the reason if it has no stacked rule.
    """

    __slots__ = ()
    _slots: ClassVar[tuple[str, ...]] = ()
    _flags: ClassVar[tuple[str, ...]] = ()  # fields that decide the code of a step
    _parts: ClassVar[tuple[str, ...]] = ()  # numbers whose part of the code is left out if all have 0

    def __post_init__(self) -> None:
        check_numbers(self, *_numbers_of(self))
        betas = getattr(self, "betas", (0.0, 0.0))
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(f"betas={quoted(betas)} are not two numbers in [0, 1)")

    def build(self, named: Mapping[str, Any]) -> Any:
        return build_groups(type(self).__name__, [(list(named.values()), values_of(self))])

    def code(self) -> tuple:
        """The parts that clients of one fused step must share."""
        return type(self), *(getattr(self, name) for name in self._flags)

    @classmethod
    def form(cls, all_of_them: Sequence[Any]) -> tuple[str, ...]:
        """The parts of the stacked rule that any of these clients needs, which decide its code."""
        flags = [name for name in cls._flags if getattr(all_of_them[0], name)]
        parts = [name for name in cls._parts if any(getattr(o, name) for o in all_of_them)]
        return (cls.__name__, *flags, *parts, *["decay"] * any(o.weight_decay for o in all_of_them))

    @classmethod
    def state_names(cls, form: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the state kept per parameter."""
        return cls._slots

    @classmethod
    def scalars(
        cls, form: tuple[str, ...], opts: Sequence[Any], factor: np.ndarray, t: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The numbers of each client's ``t``-th step (from 1); ``factor`` scales the learning rate.

        opts are one per client or one for all; factor and t [steps, clients], or [steps, 1] for all, or
        factor [1] for all steps, too; each number broadcasts to [steps, clients], and has one axis only if
        all steps share it.
        """
        given = {n: np.array([getattr(o, n) for o in opts], dtype=float) for n in _numbers_of(opts[0])}
        if hasattr(opts[0], "betas"):
            given |= {f"beta{i + 1}": np.array([o.betas[i] for o in opts]) for i in (0, 1)}
        lr = factor * given["lr"]
        numbers = {**cls.numbers(form, {**given, "lr": lr}, opts, t)}
        if "decay" in form:
            is_decoupled = "decoupled_weight_decay" in form
            numbers["decay"] = 1 - lr * given["weight_decay"] if is_decoupled else given["weight_decay"]
        return numbers

    @classmethod
    def update(
        cls, form: tuple[str, ...], params: Tensors, grads: Tensors, state: Mapping[str, Tensors], s: Tensors
    ) -> None:
        """One step in place; every tensor [K, ...], every number [K]."""
        slots, decays = cls.state_names(form), "decay" in form
        is_decoupled = decays and "decoupled_weight_decay" in form
        for name, p in params.items():
            numbers, g = {n: along(v, p) for n, v in s.items()}, grads[name]
            if is_decoupled:
                p.mul_(numbers["decay"])
            elif decays:
                g = g + p * numbers["decay"]
            cls.rule(form, p, g, {slot: state[slot][name] for slot in slots}, numbers)

    @classmethod
    def numbers(cls, form: tuple[str, ...], o: Numbers, opts: Sequence[Any], t: np.ndarray) -> Numbers:
        """The numbers of the ``t``-th step (from 1), from fields by name; of ``t``'s shape at most."""
        raise NotImplementedError

    @staticmethod
    def rule(form: tuple[str, ...], p: "Tensor", g: "Tensor", state: Any, s: Any) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SGD(Elementwise):
    """A stochastic gradient descent, as ``torch.optim.SGD``."""

    lr: float = 0.01
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    _flags: ClassVar[tuple[str, ...]] = ("nesterov",)
    _parts: ClassVar[tuple[str, ...]] = ("momentum",)

    def __post_init__(self) -> None:
        check_numbers(self, "lr", "momentum", "weight_decay")
        if self.nesterov and (self.momentum <= 0 or self.dampening):
            raise ConfigError("nesterov needs a momentum above 0 and no dampening")

    @classmethod
    def state_names(cls, form: tuple[str, ...]) -> tuple[str, ...]:
        return ("momentum",) if "momentum" in form else ()

    @classmethod
    def numbers(cls, form: tuple[str, ...], o: Numbers, opts: Sequence[Any], t: np.ndarray) -> Numbers:
        if "momentum" not in form:
            return {"minus_lr": -o["lr"]}
        momentum, gain = o["momentum"], 1.0 - o["dampening"]
        if np.any(gain != 1):  # a client without momentum has no dampening, nor has anyone's first step
            gain = np.where((t == 1) | (momentum == 0), 1.0, gain)
        return {"minus_lr": -o["lr"], "momentum": momentum, "gain": gain}

    @staticmethod
    def rule(form: tuple[str, ...], p: "Tensor", g: "Tensor", state: Any, s: Any) -> None:
        if "momentum" in form:
            buffer = state["momentum"].mul_(s["momentum"]).addcmul_(g, s["gain"])
            g = g + buffer * s["momentum"] if "nesterov" in form else buffer
        p.addcmul_(g, s["minus_lr"])


def numbers_of_moments(o: Numbers) -> Numbers:
    return {"new1": 1 - o["beta1"], "beta2": o["beta2"], "new2": 1 - o["beta2"], "eps": o["eps"]}


def moments(g: "Tensor", state: Any, s: Any) -> tuple["Tensor", "Tensor"]:
    """The running means of a gradient and of its square, with ``g`` taken in; see ``numbers_of_moments``."""
    mean = state["mean"].lerp_(g, s["new1"].expand_as(g))
    return mean, state["square"].mul_(s["beta2"]).addcmul_(g * g, s["new2"])


@dataclass(frozen=True, slots=True)
class Adam(Elementwise):
    """The optimiser Adam, as ``torch.optim.Adam``; weight decay is added to the gradient."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    decoupled_weight_decay: ClassVar[bool] = False
    _flags: ClassVar[tuple[str, ...]] = ("amsgrad", "decoupled_weight_decay")

    @classmethod
    def state_names(cls, form: tuple[str, ...]) -> tuple[str, ...]:
        return ("mean", "square", *["largest"] * ("amsgrad" in form))

    @classmethod
    def numbers(cls, form: tuple[str, ...], o: Numbers, opts: Sequence[Any], t: np.ndarray) -> Numbers:
        rate, root = -o["lr"] / (1 - o["beta1"] ** t), np.sqrt(1 - o["beta2"] ** t)
        return {"minus_step": rate, "root": root, **numbers_of_moments(o)}

    @staticmethod
    def rule(form: tuple[str, ...], p: "Tensor", g: "Tensor", state: Any, s: Any) -> None:
        mean, square = moments(g, state, s)
        if "amsgrad" in form:
            square = state["largest"].copy_(state["largest"].maximum(square))
        denominator = square.sqrt().div_(s["root"]).add_(s["eps"])
        p.addcmul_(mean / denominator, s["minus_step"])


@dataclass(frozen=True, slots=True)
class AdamW(Adam):
    """The optimiser AdamW, as ``torch.optim.AdamW``; weight decay shrinks the parameters themselves."""

    weight_decay: float = 1e-2
    decoupled_weight_decay: ClassVar[bool] = True


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


def _numbers_of(optimizer: Any) -> list[str]:
    """The fields of an optimiser that are numbers."""
    return [n for n, value in values_of(optimizer).items() if not isinstance(value, tuple | list | bool)]


def check_numbers(optimizer: Any, *names: str) -> None:
    """Raise ConfigError unless each of these fields is a finite number of 0 or more."""
    for name in names:
        value = getattr(optimizer, name)
        if not (isinstance(value, int | float) and np.isfinite(value) and value >= 0):
            raise ConfigError(
                f"{type(optimizer).__name__}({name}={quoted(value)}) is not a finite number >= 0"
            )
