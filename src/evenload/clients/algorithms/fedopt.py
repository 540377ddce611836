"""Server optimisers: the clients' mean change is a gradient that an optimiser of the server follows.

FedAvgM: Hsu, Qi, Brown, arXiv:1909.06335. FedAdam, FedYogi, FedAdagrad: Reddi et al., "Adaptive federated
optimization", ICLR 2021, algorithm 2 (without bias correction, as there). Buffers are averaged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evenload.clients.algorithms.base import Algorithm, Orders, Server, minus, zeros
from evenload.clients.algorithms.reduce import Mean
from evenload.clients.values.recipe import Recipe


class _ByMean(Algorithm):
    """An algorithm whose server needs the clients' mean alone."""

    __slots__ = ()

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        return [Orders(recipe, server.state, reduce=Mean())]


@dataclass(frozen=True, slots=True)
class FedAvgM(_ByMean):
    """Momentum of the server: v <- beta v + change; w <- w + lr v."""

    lr: float = 1.0
    momentum: float = 0.9

    def init(self, server: Server) -> Server:
        return server.remembering(velocity=zeros(server))

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        change = minus(passes[0], server.state, server.params)
        velocity = {n: self.momentum * server.memory["velocity"][n] + d for n, d in change.items()}
        state = {**passes[0], **{n: server.state[n] + self.lr * v for n, v in velocity.items()}}
        return server.after(state, velocity=velocity)


@dataclass(frozen=True, slots=True)
class _Adaptive(_ByMean):
    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def init(self, server: Server) -> Server:
        square = {n: torch.full_like(server.state[n], self.tau**2) for n in server.params}
        return server.remembering(mean=zeros(server), square=square)

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        change = minus(passes[0], server.state, server.params)
        mean = {n: self.beta1 * server.memory["mean"][n] + (1 - self.beta1) * d for n, d in change.items()}
        square = {n: self._square(server.memory["square"][n], d * d) for n, d in change.items()}
        moved = {n: server.state[n] + self.lr * mean[n] / (square[n].sqrt() + self.tau) for n in change}
        return server.after({**passes[0], **moved}, mean=mean, square=square)

    def _square(self, v: Tensor, d2: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FedAdam(_Adaptive):
    """A server that takes steps of Adam with the mean change as gradient."""

    def _square(self, v: Tensor, d2: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * d2


@dataclass(frozen=True, slots=True)
class FedYogi(_Adaptive):
    """A server that takes steps of Yogi with the mean change as gradient."""

    def _square(self, v: Tensor, d2: Tensor) -> Tensor:
        return v - (1 - self.beta2) * d2 * torch.sign(v - d2)


@dataclass(frozen=True, slots=True)
class FedAdagrad(_Adaptive):
    """A server that takes steps of Adagrad with the mean change as gradient."""

    beta1: float = 0.0

    def _square(self, v: Tensor, d2: Tensor) -> Tensor:
        return v + d2
