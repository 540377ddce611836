"""FedDyn: Acar et al., "Federated learning based on dynamic regularization", ICLR 2021."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evenload.clients.algorithms.base import Orders, Server, mean_of, minus
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FedDyn:
    """A dynamic regularization: a client's loss minus <h_i, w> plus alpha/2 |w - w_global|^2."""

    alpha: float = 0.01

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ConfigError(f"alpha={self.alpha} is not above 0")

    def init(self, server: Server) -> Server:
        zeros = {n: torch.zeros_like(server.state[n]) for n in server.params}
        return dataclasses.replace(server, memory={"h": zeros, "own": {}})

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        zeros = {n: torch.zeros_like(server.state[n]) for n in server.params}
        own = server.memory["own"]
        corrections = [{n: -own.get(i, zeros)[n] for n in server.params} for i in ids]
        return [Orders(dataclasses.replace(recipe, prox=self.alpha), server.state, corrections=corrections)]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        results: list[ClientResult] = passes[0]
        own = dict(server.memory["own"])
        h = {n: t.clone() for n, t in server.memory["h"].items()}
        for r in results:
            moved = minus(r.state, server.state, server.params)
            before = own.get(r.client) or {n: torch.zeros_like(t) for n, t in moved.items()}
            own[r.client] = {n: before[n] - self.alpha * moved[n] for n in moved}
            for n in h:
                h[n] -= self.alpha / server.n_clients * moved[n]
        mean = mean_of(results, by_rows=False)
        state = {**mean, **{n: mean[n] - h[n] / self.alpha for n in server.params}}
        return server.after(state, h=h, own=own)
