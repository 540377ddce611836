"""FedBuff: Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022.

Asynchronous on a virtual clock: clients begin with the model of the moment; when ``buffer`` of them have come
back, the server takes their changes, the staler the less, and the freed places go to other clients.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from evenload.clients.algorithms.base import Algorithm, Orders, Server, minus, zeros
from evenload.clients.algorithms.reduce import as_dtype
from evenload.clients.values.keys import SAMPLE, key
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FedBuff(Algorithm):
    """Asynchronous aggregation of buffered changes.

    buffer       changes per server step
    concurrency  clients under way at any time
    lr           of the server

    What a client will have done is decided when it begins, so those of one buffer are trained together, each
    from its own model. The memory holds the clients under way: (end_s, turn, client, version, start).
    """

    buffer: int = 10
    concurrency: int = 20
    lr: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.buffer <= self.concurrency:
            raise ConfigError(
                f"buffer={self.buffer}, concurrency={self.concurrency}: the buffer would never fill"
            )

    acts_alone: ClassVar[bool] = True  # who came back leaves the buffer, even if nobody's result is usable

    def init(self, server: Server) -> Server:
        if self.concurrency > server.n_clients:
            raise ConfigError(f"{self.concurrency} clients at a time, of {server.n_clients}")
        return server.remembering(flying=[], turn=0, now_s=0.0)

    def fill(self, server: Server, seconds: dict[int, float]) -> Server:
        """Let idle clients begin, drawn by key, until ``concurrency`` are under way."""
        flying, turn = list(server.memory["flying"]), server.memory["turn"]
        busy = {entry[2] for entry in flying}
        while len(flying) < self.concurrency:
            idle = [i for i in range(server.n_clients) if i not in busy]
            client = idle[key(SAMPLE, server.seed, turn, 3) % len(idle)]
            end_s = server.memory["now_s"] + seconds[client]
            flying.append((end_s, turn, client, server.round, server.state))
            busy.add(client)
            turn += 1
        return server.remembering(flying=sorted(flying, key=lambda e: e[:2]), turn=turn)

    def next_to_return(self, server: Server) -> list[tuple]:
        """The next ``buffer`` clients to come back, in the order of their clock."""
        return heapq.nsmallest(self.buffer, server.memory["flying"], key=lambda entry: entry[:2])

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        """For ``ids`` = the clients of ``next_to_return``, each from the model that it began with."""
        starts = {entry[2]: entry[4] for entry in server.memory["flying"]}
        return [Orders(recipe, [starts[i] for i in ids])]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        results: list[ClientResult] = passes[0] if passes else []
        returned = self.next_to_return(server)
        began = {client: (version, start) for _, _, client, version, start in returned}
        total = zeros(server)
        weights = [(1 + server.round - began[r.client][0]) ** -0.5 for r in results]
        for r, weight in zip(results, weights, strict=True):
            for n, d in minus(r.state, began[r.client][1], server.params).items():
                total[n].add_(d, alpha=weight)
        state = self._with_buffers(server, results, weights)
        for n, t in total.items():
            state[n] = server.state[n] + self.lr * t / self.buffer
        gone = {entry[1] for entry in returned}
        flying = [entry for entry in server.memory["flying"] if entry[1] not in gone]
        return server.after(state, flying=flying, now_s=returned[-1][0])

    def _with_buffers(
        self, server: Server, results: list[ClientResult], weights: list[float]
    ) -> dict[str, torch.Tensor]:
        """The server's state, its buffers on the way to those of the clients (batch statistics, counts).

        They are no changes to add up: a mean of what there is stays a variance above 0.
        """
        state, left = dict(server.state), 1 - sum(weights) / self.buffer
        for n in state.keys() - set(server.params):
            mean = left * state[n].double()
            for r, weight in zip(results, weights, strict=True):
                mean += (weight / self.buffer) * r.state[n].double()
            state[n] = as_dtype(mean, state[n].dtype)
        return state
