"""Results of training: each client's state, losses and counts, and the plan that made them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from evenload.clients.values.strategy import ClientPlan
from evenload.errors import TaskError


class StateRow(Mapping[str, Tensor]):
    """One client's state dict: a row of stacked tensors, sliced when asked for.

    names   a name of the state dict -> that of its tensor in ``stack``
    shared  names in ``stack`` of what others hold, too: each is copied when it is first asked for, so that
            whoever writes into this state changes nothing but this state
    """

    __slots__ = ("_own", "names", "row", "shared", "stack")

    def __init__(
        self,
        stack: Mapping[str, Tensor],
        row: int,
        names: Mapping[str, str],
        shared: Collection[str] = (),
    ):
        self.stack, self.row, self.names, self.shared = stack, row, names, shared
        self._own: dict[str, Tensor] = {}

    @classmethod
    def of_shared(cls, state: Mapping[str, Tensor]) -> "StateRow":
        """A state of a client's own, of which nothing is copied before it is read."""
        return cls({name: t[None] for name, t in state.items()}, 0, {name: name for name in state}, state)

    @property
    def is_as_stacked(self) -> bool:
        """Has nothing been copied, and perhaps written, beside the stack?"""
        return not self._own

    def __getitem__(self, name: str) -> Tensor:
        own = self.names[name]
        if own not in self.shared:
            return self.stack[own][self.row]
        if own not in self._own:
            self._own[own] = self.stack[own][self.row].clone()
        return self._own[own]

    def is_shared(self, name: str) -> bool:
        """Is it what others hold, too, and so as it was at the start?"""
        return self.names[name] in self.shared and self.names[name] not in self._own

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __reduce__(self) -> Any:
        return dict, ({name: self[name].clone() for name in self},)


@dataclass(frozen=True, slots=True, eq=False)
class ClientResult:
    """The result of one client's training.

    client    its id
    state     state dict after training; a Mapping that ``load_state_dict`` takes
    losses    float64 [steps], each step's mean loss before the step
    metrics   name -> mean over the examples seen
    examples  rows seen, counting repetitions; ``n_rows`` are the client's own
    status    "ok"; "diverged": the loss was not finite in step ``len(losses)``, the state is that before it
              (or the last step's weights are not finite); "empty": no rows, state as at the start;
              "failed": ``error`` says why, state as at the start
    """

    client: int
    state: Mapping[str, Tensor]
    losses: np.ndarray
    metrics: Mapping[str, float] = field(default_factory=dict)
    examples: int = 0
    n_rows: int = 0
    status: str = "ok"
    error: Exception | None = None

    @property
    def steps(self) -> int:
        return len(self.losses)

    def without_state(self) -> "ClientResult":
        """The result without its state dict."""
        return replace(self, state={})

    @property
    def is_usable(self) -> bool:
        """Trained to the end with finite numbers."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True, eq=False)
class TrainResult(Sequence[ClientResult]):
    """The results of all clients, in the order of the datasets.

    plan     what ran, why, and what was measured to decide it
    reduced  what ``reduce`` made of the clients' states; None without it
    """

    clients: tuple[ClientResult, ...]
    plan: ClientPlan
    reduced: Mapping[str, Tensor] | None = None

    def __getitem__(self, index: Any) -> Any:
        return self.clients[index]

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def states(self) -> list[Mapping[str, Tensor]]:
        return [c.state for c in self.clients]

    @property
    def not_ok(self) -> list[ClientResult]:
        return [c for c in self.clients if c.status != "ok"]

    def raise_for_failed(self) -> None:
        """Raise the first failed client's TaskError; it carries this result as ``result``."""
        failed = [c for c in self.clients if c.status == "failed"]
        if not failed:
            return
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        error = TaskError(
            f"client {failed[0].client} failed{more}: {failed[0].error}",
            index=failed[0].client,
            hint="the other clients are in this error's `result`; on_error='return' returns them instead",
        )
        error.result = self  # pyrefly: ignore
        raise error from failed[0].error
