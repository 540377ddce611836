"""FedNova: Wang et al., "Tackling the objective inconsistency problem", NeurIPS 2020."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evenload.clients.algorithms.base import Orders, Server, mean_of
from evenload.clients.values.optimizer import SGD
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FedNova:
    """FedAvg of changes per step taken, so that clients of more steps do not count for more.

    momentum  of the clients' SGD: its steps count by how far they carry
    """

    momentum: float = 0.0

    def init(self, server: Server) -> Server:
        return server

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        own = recipe.optimizer.momentum if isinstance(recipe.optimizer, SGD) else None
        if own is None or abs(own - self.momentum) > 1e-12:
            raise ConfigError(
                f"FedNova(momentum={self.momentum}) with {recipe.optimizer}",
                hint="let clients use SGD of this momentum",
            )
        return [Orders(recipe, server.state)]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        results: list[ClientResult] = passes[0]
        rows = sum(r.n_rows for r in results)
        lengths = {r.client: self._length(r.steps) for r in results}
        effective = sum(r.n_rows / rows * lengths[r.client] for r in results)
        state = mean_of(results)
        for n in server.params:
            pull = torch.zeros_like(server.state[n])
            for r in results:
                pull += (r.state[n] - server.state[n]) * (r.n_rows / rows / lengths[r.client])
            state[n] = server.state[n] + effective * pull
        return server.after(state)

    def _length(self, steps: int) -> float:
        """|a_i| of the paper: how much the gradients of so many steps weigh together."""
        rho = self.momentum
        return float(steps) if rho == 0 else (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
