"""One client's training, ready to run: its start, its batches, and what is added to its gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from torch import Tensor

from evenload._arguments import choice, whole
from evenload.clients.values.batches import Batches
from evenload.clients.values.data import Rows
from evenload.clients.values.recipe import Recipe

State = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The options of one call; ``evenload.clients.train`` says what they mean.

    reduce  "mean", a Reducer or None
    Raises ConfigError for an ``on_error`` that is not known.
    """

    start: State | Sequence[State] | None = None
    ids: Sequence[int] | None = None
    anchor: State | Sequence[State] | None = None
    corrections: Sequence[State] | None = None
    round: int = 0
    reduce: Any = None
    on_error: str = "raise"

    @classmethod
    def among(cls, given: Mapping[str, Any]) -> Self:
        """Take the options out of the arguments of a call, which are called the same."""
        return cls(**{one.name: given[one.name] for one in fields(cls)})

    def __post_init__(self) -> None:
        whole("round", self.round, most=None)
        choice("on_error", self.on_error, ("raise", "return"))


@dataclass(frozen=True, slots=True, eq=False)
class ClientTask:
    """One client's training.

    client      its id, which with the seed decides all randomness
    recipe      its own
    rows        its examples; if it ``is_fresh``, those of each epoch after one another
    n_rows      examples of its dataset
    batches     which of them in which step
    start       state dict to start from
    anchor      parameters that the proximal term pulls to; the start's if None
    correction  added to every gradient (control variates); parameter name -> tensor, or None
    seed        of the generators that the whole process shares, if its model draws from them
    draws       it is known to do so
    is_keyed    the model calls functions that draw numbers, which are counted from the steps' keys
    """

    client: int
    recipe: Recipe
    rows: Rows
    n_rows: int
    batches: Batches
    start: State
    anchor: State | None = None
    correction: State | None = None
    seed: int = 0
    draws: bool = False
    is_keyed: bool = False
    is_fresh: bool = False
