"""Results of training: each client's state, losses and counts, and the plan that made them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenload.clients.values.strategy import TrainingPlan
from evenload.errors import TaskError

__all__ = ["ClientResult", "FlatStates", "StateRow", "TrainResult"]


class FlatStates:
    """Stacked tensors of one dtype as columns of one tensor, so that one operation serves them all.

    flat    [rows, numbers]
    shapes  those of a row's tensors, by name, in the order of the columns
    """

    __slots__ = ("_known", "flat", "shapes")

    def __init__(self, flat: Tensor, shapes: Mapping[str, torch.Size]):
        self.flat, self.shapes = flat, shapes
        self._known: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if not self._known:
            parts = self.flat.split([shape.numel() for shape in self.shapes.values()], 1)
            views = (part.view(-1, *s) for part, s in zip(parts, self.shapes.values(), strict=True))
            self._known = dict(zip(self.shapes, views, strict=True))
        return self._known[name]


class StateRow(Mapping[str, Tensor]):
    """One client's state dict: a row of stacked tensors, sliced when asked for.

    ``names`` maps a name of the state dict to that of its tensor in ``stack``.
    """

    __slots__ = ("names", "row", "stack")

    def __init__(self, stack: Mapping[str, Tensor] | FlatStates, row: int, names: Mapping[str, str]):
        self.stack, self.row, self.names = stack, row, names

    def __getitem__(self, name: str) -> Tensor:
        return self.stack[self.names[name]][self.row]

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
        """The same, the state dict left out."""
        return ClientResult(
            self.client, {}, self.losses, self.metrics, self.examples, self.n_rows, self.status, self.error
        )

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
    plan: TrainingPlan
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


Reduce = Callable[[Sequence[ClientResult]], Any]
