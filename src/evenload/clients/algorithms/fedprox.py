"""FedProx: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenload.clients.algorithms.base import Orders, Server
from evenload.clients.algorithms.reduce import Mean
from evenload.clients.values.recipe import Recipe
from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FedProx:
    """A FedAvg whose clients stay near the global model by a term mu/2 |w - w_global|^2."""

    mu: float = 0.01
    by_rows: bool = True

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise ConfigError(f"mu={self.mu} is below 0")

    def init(self, server: Server) -> Server:
        return server

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        return [
            Orders(dataclasses.replace(recipe, prox=self.mu), server.state, reduce=Mean(by_rows=self.by_rows))
        ]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        return server.after(passes[0])
