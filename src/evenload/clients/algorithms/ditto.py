"""Ditto: Li et al., "Fair and robust federated learning through personalization", ICML 2021."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenload.clients.algorithms.base import Orders, Server
from evenload.clients.algorithms.reduce import Mean
from evenload.clients.values.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Ditto:
    """A FedAvg with a personal model of each client, kept near the global one by lam/2 |v - w|^2.

    The personal models are in the server's memory under "personal", by client.
    """

    lam: float = 0.1

    def init(self, server: Server) -> Server:
        return dataclasses.replace(server, memory={"personal": {}})

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        own = [server.memory["personal"].get(i, server.state) for i in ids]
        personal = dataclasses.replace(recipe, prox=self.lam)
        return [
            Orders(recipe, server.state, reduce=Mean()),
            Orders(personal, own, anchor=server.state),
        ]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        fresh = {r.client: {n: t.clone() for n, t in r.state.items()} for r in passes[1]}
        return server.after(passes[0], personal={**server.memory["personal"], **fresh})
