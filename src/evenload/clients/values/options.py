"""The options of one call of training as one value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from torch import Tensor

from evenload.errors import ConfigError, quoted

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
        if self.on_error not in ("raise", "return"):
            raise ConfigError(f"on_error={quoted(self.on_error)} is unknown", hint="use 'raise' or 'return'")
