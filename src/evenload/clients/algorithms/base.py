"""The shape of a federated algorithm: three pure functions over the server's state.

init(start) ──► server      orders(server, ids) ──► what clients do      step(server, results) ──► server
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from evenload.clients.algorithms.reduce import Mean, Reducer
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.clients.values.task import State


@dataclass(frozen=True, slots=True)
class Server:
    """The state of a federation between two rounds, which is what a checkpoint holds.

    state      the global model
    params     names of its parameters (the rest are buffers)
    n_clients  in the whole federation
    memory     what the algorithm remembers: tensors by name, or by client
    """

    state: dict[str, Tensor]
    params: tuple[str, ...]
    n_clients: int
    round: int = 0
    seed: int = 0
    memory: dict[str, Any] = field(default_factory=dict)

    def after(self, state: Mapping[str, Tensor], **memory: Any) -> "Server":
        """The server of the next round."""
        return replace(self.remembering(**memory), state=dict(state), round=self.round + 1)

    def remembering(self, **memory: Any) -> "Server":
        """The server with more in its memory."""
        return replace(self, memory={**self.memory, **memory})


@dataclass(frozen=True, slots=True)
class Orders:
    """A pass of training for a round's clients, one entry each or one for all (see ``train``)."""

    recipe: Recipe
    start: State | Sequence[State]
    anchor: State | Sequence[State] | None = None
    corrections: Sequence[State] | None = None
    reduce: Reducer | None = None


class Algorithm(Protocol):
    """A federated algorithm: three pure functions over the server's state.

    Those that are not written remember nothing, and train each client from the global model.
    """

    __slots__ = ()

    def init(self, server: Server) -> Server:
        """The server with the algorithm's memory."""
        return server

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        """The passes over the cohort; ``step`` gets their results in turn."""
        return [Orders(recipe, server.state)]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        """The next round's server; ``passes``: of each its reducer's value, or the usable results."""
        ...


def mean_of(results: Sequence[ClientResult], *, by_rows: bool = True) -> dict[str, Tensor]:
    """Mean of states. Raises ConfigError if there are none."""
    mean = Mean(by_rows=by_rows)
    mean.take(results)
    return mean.value()


def minus(a: State, b: State, names: Sequence[str]) -> dict[str, Tensor]:
    return {name: a[name] - b[name] for name in names}


def zeros(server: Server) -> dict[str, Tensor]:
    """A zero for each of the global model's parameters."""
    return {name: torch.zeros_like(server.state[name]) for name in server.params}


def usable(results: Sequence[ClientResult]) -> list[ClientResult]:
    """The usable results in the order of their ids: sums do not depend on who came first."""
    return sorted((r for r in results if r.is_usable), key=lambda r: r.client)
