"""A client's examples as rows of two tensors, made from whatever a user gives when its client is due."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenload.errors import ConfigError

__all__ = ["Rows", "as_rows", "size_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A client's examples: ``rows`` of ``x`` [n, ...] and ``y`` [n, ...]; all of them if ``rows`` is None.

    Clients that are rows of one pair of tensors are trained without copying it; ``rows`` is int64 [m].
    ``has_ignored``: some labels are those that the loss leaves out.
    """

    x: Tensor
    y: Tensor
    rows: np.ndarray | None = None
    has_ignored: bool = False
    kind: tuple = field(init=False, repr=False)  # what rows must share to be in one batch

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", (self.x.shape[1:], self.x.dtype, self.y.shape[1:], self.y.dtype))
        if len(self.x) != len(self.y):
            raise ConfigError(
                f"{len(self.x)} inputs, but {len(self.y)} targets", hint="give one target per input"
            )

    def __len__(self) -> int:
        return self.x.shape[0] if self.rows is None else len(self.rows)  # a tensor's own len() takes longer

    def at(self, positions: np.ndarray) -> tuple[Tensor, Tensor]:
        """The examples at ``positions`` among this client's, as x and y."""
        chosen = torch.from_numpy(positions if self.rows is None else self.rows[positions])
        return self.x[chosen], self.y[chosen]

    def own(self) -> "Rows":
        """The same examples in tensors of their own, to send elsewhere."""
        if self.rows is None and _fills_its_storage(self.x) and _fills_its_storage(self.y):
            return self
        x, y = self.at(np.arange(len(self)))
        return Rows(x, y, has_ignored=self.has_ignored)


def as_rows(dataset: Any, dtype: torch.dtype) -> Rows:
    """Rows of what a user gives for a client; floating inputs become ``dtype``, the model's.

    dataset  Rows, a pair of tensors or arrays, a TensorDataset or a Subset of one, any map-style Dataset of
             (x, y), or a function without arguments that returns one of these
    Raises ConfigError for anything else; what the dataset itself raises passes through.
    """
    if isinstance(dataset, Rows):
        return _cast(dataset, dtype)
    if (
        isinstance(dataset, tuple | list)
        and len(dataset) == 2
        and all(hasattr(part, "shape") for part in dataset)
    ):
        return _cast(Rows(torch.as_tensor(dataset[0]), torch.as_tensor(dataset[1])), dtype)
    if callable(dataset) and not hasattr(dataset, "__getitem__"):
        return as_rows(dataset(), dtype)
    tensors = getattr(dataset, "tensors", ())
    if len(tensors) == 2:
        return _cast(Rows(*tensors), dtype)
    if isinstance(dataset, torch.utils.data.Subset) and len(getattr(dataset.dataset, "tensors", ())) == 2:
        return _cast(Rows(*dataset.dataset.tensors, np.asarray(dataset.indices, np.int64)), dtype)  # pyrefly: ignore
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return _cast(_collect(dataset), dtype)
    raise ConfigError(
        f"a client's dataset is a {type(dataset).__name__}",
        hint="give (x, y), a Dataset of (x, y), Rows, or a function that returns one of them",
    )


def size_of(dataset: Any) -> int | None:
    """The number of examples of a dataset; None if it is not known without loading it."""
    if (
        isinstance(dataset, tuple | list)
        and len(dataset) == 2
        and all(hasattr(part, "shape") for part in dataset)
    ):
        return len(dataset[0])
    return len(dataset) if hasattr(dataset, "__len__") else None


def _collect(dataset: Any) -> Rows:
    pairs = [dataset[i] for i in range(len(dataset))]
    if not pairs:
        return Rows(torch.empty(0), torch.empty(0, dtype=torch.int64))
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ConfigError("an example of a client is not a pair (x, y)", hint="let the dataset return (x, y)")
    x, y = (torch.stack([torch.as_tensor(pair[i]) for pair in pairs]) for i in (0, 1))
    return Rows(x, y)


def _cast(rows: Rows, dtype: torch.dtype) -> Rows:
    """Cast floating numbers to ``dtype``, and whole targets to int64, which torch's losses need."""
    x_dtype = dtype if rows.x.is_floating_point() else rows.x.dtype
    y_dtype = dtype if rows.y.is_floating_point() else torch.int64 if _is_whole(rows.y) else rows.y.dtype
    if (x_dtype, y_dtype) == (rows.x.dtype, rows.y.dtype):
        return rows
    if rows.rows is not None:  # of tensors that clients share, only this one's part
        rows = Rows(*rows.at(np.arange(len(rows))))
    return Rows(rows.x.to(x_dtype), rows.y.to(y_dtype))


def _is_whole(t: Tensor) -> bool:
    return not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)


def _fills_its_storage(t: Tensor) -> bool:
    return t.is_contiguous() and t.untyped_storage().nbytes() == t.numel() * t.element_size()


Datasets = Sequence[Any | Callable[[], Any]]
