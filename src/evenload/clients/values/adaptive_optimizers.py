"""Optimisers of torch.optim that work element by element, but SGD and Adam: see ``Elementwise``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from evenload.clients.values.optimizer import (
    Elementwise,
    Numbers,
    build_groups,
    moments,
    numbers_of_moments,
    values_of,
)
from evenload.errors import ConfigError, quoted


@dataclass(frozen=True, slots=True)
class _Adaptive(Elementwise):
    """The settings that all of these optimisers have, in this order."""

    lr: float = 1e-2
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class RMSprop(_Adaptive):
    """The optimiser RMSprop, as ``torch.optim.RMSprop``."""

    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False
    _slots: ClassVar[tuple[str, ...]] = ("square", "mean", "momentum")
    _flags: ClassVar[tuple[str, ...]] = ("centered",)

    @classmethod
    def numbers(cls, form: tuple[str, ...], o: Numbers, opts: Sequence[Any], t: np.ndarray) -> Numbers:
        kept = {n: o[n] for n in ("alpha", "eps", "momentum")}
        return {"minus_lr": -o["lr"], "new": 1 - o["alpha"], **kept}

    @staticmethod
    def rule(form: tuple[str, ...], p: Tensor, g: Tensor, state: Any, s: Any) -> None:
        square = state["square"].mul_(s["alpha"]).addcmul_(g * g, s["new"])
        if "centered" in form:
            state["mean"].lerp_(g, s["new"].expand_as(g))
            square = square - state["mean"] * state["mean"]
        step = state["momentum"].mul_(s["momentum"]).add_(g / (square.sqrt() + s["eps"]))
        p.addcmul_(step, s["minus_lr"])


@dataclass(frozen=True, slots=True)
class Adagrad(_Adaptive):
    """The optimiser Adagrad, as ``torch.optim.Adagrad``."""

    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    _slots: ClassVar[tuple[str, ...]] = ("sum",)

    @classmethod
    def numbers(cls, form: tuple[str, ...], o: Numbers, opts: Sequence[Any], t: np.ndarray) -> Numbers:
        rate = -o["lr"] / (1 + (t - 1) * o["lr_decay"])
        return {"minus_lr": rate, "eps": o["eps"], "first": o["initial_accumulator_value"]}

    @staticmethod
    def rule(form: tuple[str, ...], p: Tensor, g: Tensor, state: Any, s: Any) -> None:
        total = state["sum"].add_(g * g) + s["first"]
        p.addcmul_(g / (total.sqrt() + s["eps"]), s["minus_lr"])


@dataclass(frozen=True, slots=True)
class Adadelta(_Adaptive):
    """The optimiser Adadelta, as ``torch.optim.Adadelta``."""

    lr: float = 1.0
    rho: float = 0.9
    eps: float = 1e-6
    _slots: ClassVar[tuple[str, ...]] = ("square", "steps")

    @classmethod
    def numbers(cls, form: tuple[str, ...], o: Numbers, opts: Sequence[Any], t: np.ndarray) -> Numbers:
        return {"minus_lr": -o["lr"], "rho": o["rho"], "new": 1 - o["rho"], "eps": o["eps"]}

    @staticmethod
    def rule(form: tuple[str, ...], p: Tensor, g: Tensor, state: Any, s: Any) -> None:
        square = state["square"].mul_(s["rho"]).addcmul_(g * g, s["new"])
        step = (state["steps"] + s["eps"]).sqrt() / (square + s["eps"]).sqrt() * g
        state["steps"].mul_(s["rho"]).addcmul_(step * step, s["new"])
        p.addcmul_(step, s["minus_lr"])


@dataclass(frozen=True, slots=True)
class Adamax(_Adaptive):
    """The optimiser Adamax, as ``torch.optim.Adamax``."""

    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    _slots: ClassVar[tuple[str, ...]] = ("mean", "largest")

    @classmethod
    def numbers(cls, form: tuple[str, ...], o: Numbers, opts: Sequence[Any], t: np.ndarray) -> Numbers:
        rate = -o["lr"] / (1 - o["beta1"] ** t)
        return {"minus_step": rate, "new1": 1 - o["beta1"], "beta2": o["beta2"], "eps": o["eps"]}

    @staticmethod
    def rule(form: tuple[str, ...], p: Tensor, g: Tensor, state: Any, s: Any) -> None:
        mean, largest = state["mean"], state["largest"]
        mean.lerp_(g, s["new1"].expand_as(g))
        largest.copy_(torch.maximum(largest * s["beta2"], g.abs() + s["eps"]))
        p.addcmul_(mean / largest, s["minus_step"])


@dataclass(frozen=True, slots=True)
class NAdam(_Adaptive):
    """The optimiser NAdam, as ``torch.optim.NAdam``."""

    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False
    _slots: ClassVar[tuple[str, ...]] = ("mean", "square")
    _flags: ClassVar[tuple[str, ...]] = ("decoupled_weight_decay",)

    @classmethod
    def numbers(cls, form: tuple[str, ...], o: Numbers, opts: Sequence[Any], t: np.ndarray) -> Numbers:
        steps = np.arange(1, int(t.max()) + 2)[:, None]
        shares = o["beta1"] * (1 - 0.5 * 0.96 ** (steps * o["momentum_decay"]))  # [steps, clients]
        products = np.cumprod(shares.astype(np.float32), 0)  # torch keeps them in float32
        at = np.broadcast_arrays(t, np.arange(shares.shape[1]))
        now, following = shares[at[0] - 1, at[1]], shares[at[0], at[1]]
        product = products[at[0] - 1, at[1]].astype(float)
        return {
            "of_gradient": -o["lr"] * (1 - now) / (1 - product),
            "of_mean": -o["lr"] * following / (1 - product * following),
            "root": np.sqrt(1 - o["beta2"] ** t),
            **numbers_of_moments(o),
        }

    @staticmethod
    def rule(form: tuple[str, ...], p: Tensor, g: Tensor, state: Any, s: Any) -> None:
        mean, square = moments(g, state, s)
        denominator = square.sqrt().div_(s["root"]).add_(s["eps"])
        p.addcmul_(g / denominator, s["of_gradient"]).addcmul_(mean / denominator, s["of_mean"])


@dataclass(frozen=True, slots=True)
class RAdam(_Adaptive):
    """The optimiser RAdam, as ``torch.optim.RAdam``."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decoupled_weight_decay: bool = False
    _slots: ClassVar[tuple[str, ...]] = ("mean", "square")
    _flags: ClassVar[tuple[str, ...]] = ("decoupled_weight_decay",)

    @classmethod
    def numbers(cls, form: tuple[str, ...], o: Numbers, opts: Sequence[Any], t: np.ndarray) -> Numbers:
        beta2, left2 = o["beta2"], 1 - o["beta2"] ** t
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * t * beta2**t / left2
        is_known = length > 5.0  # of the variance; before that, a step is the mean alone
        used, most = np.where(is_known, length, 6.0), np.where(longest > 5.0, longest, 6.0)
        scale = (used - 4) * (used - 2) * most / ((most - 4) * (most - 2) * used)
        rate = -o["lr"] / (1 - o["beta1"] ** t)
        return {
            "of_mean": np.where(is_known, 0.0, rate),
            "of_quotient": np.where(is_known, rate * np.sqrt(scale * left2), 0.0),
            **numbers_of_moments(o),
        }

    @staticmethod
    def rule(form: tuple[str, ...], p: Tensor, g: Tensor, state: Any, s: Any) -> None:
        mean, square = moments(g, state, s)
        p.addcmul_(mean, s["of_mean"] + s["of_quotient"] / (square.sqrt() + s["eps"]))


@dataclass(frozen=True, slots=True)
class Rprop(_Adaptive):
    """The optimiser Rprop, as ``torch.optim.Rprop``; it has no weight decay."""

    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50.0)
    _slots: ClassVar[tuple[str, ...]] = ("before", "size")

    def __post_init__(self) -> None:
        Elementwise.__post_init__(self)
        low, high = self.etas
        if not 0 < low < 1 < high or self.weight_decay:
            raise ConfigError(
                f"etas={quoted(self.etas)}, weight_decay={self.weight_decay}: use 0 < a < 1 < b, and 0"
            )

    def build(self, named: Mapping[str, Any]) -> Any:
        values = {n: v for n, v in values_of(self).items() if n != "weight_decay"}
        return build_groups("Rprop", [(list(named.values()), values)])

    @classmethod
    def numbers(cls, form: tuple[str, ...], o: Numbers, opts: Sequence[Any], t: np.ndarray) -> Numbers:
        pairs = {"less": "etas", "more": "etas", "low": "step_sizes", "high": "step_sizes"}
        at = {"less": 0, "more": 1, "low": 0, "high": 1}
        given = {n: np.array([getattr(one, pair)[at[n]] for one in opts]) for n, pair in pairs.items()}
        return {**given, "first": np.where(t == 1, o["lr"], 0.0), "later": np.where(t == 1, 0.0, 1.0)}

    @staticmethod
    def rule(form: tuple[str, ...], p: Tensor, g: Tensor, state: Any, s: Any) -> None:
        before, size = state["before"], state["size"]
        turn = torch.sign(g * before)
        scale = torch.where(turn > 0, s["more"], torch.where(turn < 0, s["less"], 1.0))
        fresh = (size * s["later"] + s["first"]) * scale
        size.copy_(torch.minimum(torch.maximum(fresh, s["low"]), s["high"]))
        g = torch.where(turn < 0, 0.0, g)
        p.sub_(torch.sign(g) * size)
        before.copy_(g)
