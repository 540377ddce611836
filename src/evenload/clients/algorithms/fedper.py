"""Personal layers: Arivazhagan et al., "Federated learning with personalization layers", arXiv:1912.00818.

With the norms' names it is FedBN: Li et al., ICLR 2021.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenload.clients.algorithms.base import Orders, Server, mean_of
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FedPer:
    """FedAvg of all tensors but those whose names begin with one of ``personal``: clients keep these.

    They are in the server's memory under "personal", by client. Raises ConfigError if no name fits.
    """

    personal: tuple[str, ...]

    def init(self, server: Server) -> Server:
        if not any(self._is_personal(name) for name in server.state):
            raise ConfigError(
                f"no tensor's name begins with one of {self.personal}", hint=f"names: {list(server.state)}"
            )
        return dataclasses.replace(server, memory={"personal": {}})

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        kept = server.memory["personal"]
        starts = [{**server.state, **kept[i]} if i in kept else server.state for i in ids]
        return [Orders(recipe, starts)]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        results: list[ClientResult] = passes[0]
        kept = dict(server.memory["personal"])
        for r in results:
            kept[r.client] = {n: r.state[n].clone() for n in r.state if self._is_personal(n)}
        mean = mean_of(results)
        state = {n: server.state[n] if self._is_personal(n) else mean[n] for n in server.state}
        return server.after(state, personal=kept)

    def _is_personal(self, name: str) -> bool:
        return name.startswith(self.personal)
