"""Aggregation that is robust against a minority of bad clients.

Median, TrimmedMean: Yin et al., "Byzantine-robust distributed learning", ICML 2018. Krum: Blanchard et al.,
"Machine learning with adversaries", NeurIPS 2017.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evenload.clients.algorithms.base import Algorithm, Server, mean_of
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.errors import ConfigError


class _PerNumber(Algorithm):
    """Aggregates every number by itself, from the clients' tensors stacked along axis 0, as float64."""

    __slots__ = ()

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        results: list[ClientResult] = passes[0]
        state = {}
        for name, old in server.state.items():
            stack = torch.stack([r.state[name] for r in results]).double()
            state[name] = self._one(stack).to(old.dtype)
        return server.after(state)

    def _one(self, stack: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Median(_PerNumber):
    """The middle value of each number; the mean of the two middle ones if there are two."""

    def _one(self, stack: Tensor) -> Tensor:
        ordered, n = stack.sort(0).values, len(stack)
        return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


@dataclass(frozen=True, slots=True)
class TrimmedMean(_PerNumber):
    """The mean of each number without the ``share`` largest and the ``share`` smallest."""

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise ConfigError(f"share={self.share} is not in [0, 0.5)")

    def _one(self, stack: Tensor) -> Tensor:
        cut = int(self.share * len(stack))
        return stack.sort(0).values[cut : len(stack) - cut].mean(0)


@dataclass(frozen=True, slots=True)
class Krum(Algorithm):
    """The mean of the ``keep`` clients nearest to their neighbours; up to ``n_bad`` may be arbitrary.

    Raises ConfigError in a round of fewer than n_bad + 3 clients.
    """

    n_bad: int
    keep: int = 1

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        results: list[ClientResult] = passes[0]
        if len(results) < max(self.n_bad + 3, self.keep):
            raise ConfigError(
                f"{len(results)} clients came back: too few for Krum(n_bad={self.n_bad}, keep={self.keep})"
            )
        flat = torch.stack(
            [torch.cat([r.state[n].flatten().double() for n in server.params]) for r in results]
        )
        distances = torch.cdist(flat, flat).square()
        nearest = distances.sort(1).values[:, 1 : len(results) - self.n_bad - 1]
        best = nearest.sum(1).argsort(stable=True)[: self.keep].tolist()
        return server.after(mean_of([results[i] for i in sorted(best)], by_rows=False))
