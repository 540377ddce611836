"""FedAvg: McMahan et al., "Communication-efficient learning of deep networks", AISTATS 2017."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenload.clients.algorithms.base import Orders, Server
from evenload.clients.algorithms.reduce import Mean
from evenload.clients.values.recipe import Recipe


@dataclass(frozen=True, slots=True)
class FedAvg:
    """The mean of the clients' models, weighted by their rows (or equally)."""

    by_rows: bool = True

    def init(self, server: Server) -> Server:
        return server

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        return [Orders(recipe, server.state, reduce=Mean(by_rows=self.by_rows))]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        return server.after(passes[0])
