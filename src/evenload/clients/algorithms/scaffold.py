"""SCAFFOLD: Karimireddy et al., "Stochastic controlled averaging", ICML 2020, option II."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evenload.clients.algorithms.base import Orders, Server, mean_of, minus
from evenload.clients.values.optimizer import SGD
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Scaffold:
    """A correction by control variates: a client's gradients are corrected by c - c_i. ``lr`` is the
    server's.

    Raises ConfigError for client optimisers other than plain SGD: the variates' rule is SGD's.
    """

    lr: float = 1.0

    def init(self, server: Server) -> Server:
        zeros = {n: torch.zeros_like(server.state[n]) for n in server.params}
        return Server(
            server.state, server.params, server.n_clients, 0, server.seed, {"global": zeros, "own": {}}
        )

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        if not isinstance(recipe.optimizer, SGD) or recipe.optimizer.momentum:
            raise ConfigError(
                "SCAFFOLD's control variates need plain SGD", hint="use SGD(lr=...) without momentum"
            )
        c, zero = server.memory["global"], dict.fromkeys(server.params, 0.0)
        corrections = [{n: c[n] - server.memory["own"].get(i, zero)[n] for n in server.params} for i in ids]
        return [Orders(recipe, server.state, corrections=corrections)]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        results: list[ClientResult] = passes[0]
        c, own = server.memory["global"], dict(server.memory["own"])
        total = {n: torch.zeros_like(t) for n, t in c.items()}
        for r in results:
            before = own.get(r.client) or {n: torch.zeros_like(t) for n, t in c.items()}
            drift = minus(server.state, r.state, server.params)
            rates = sum(recipe.optimizer.lr * recipe.schedule.factor(i, r.steps) for i in range(r.steps))
            own[r.client] = {n: before[n] - c[n] + drift[n] / rates for n in c}
            for n, t in total.items():
                t += own[r.client][n] - before[n]
        mean = mean_of(results, by_rows=False)
        moved = {n: server.state[n] + self.lr * (mean[n] - server.state[n]) for n in server.params}
        fresh = {n: c[n] + t / server.n_clients for n, t in total.items()}
        return server.after({**mean, **moved}, **{"global": fresh, "own": own})
