"""A client's examples as rows of two tensors, and what a batch of them is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenload.errors import ConfigError

Batch = Tensor | dict[str, Tensor] | tuple[Tensor, ...]  # what a model is called with, rows along axis 0


def leaves_of(x: Batch) -> list[Tensor]:
    """The tensors of a batch, in order."""
    return [x] if isinstance(x, Tensor) else list(x.values() if isinstance(x, dict) else x)


def map_batch(fn: Callable[..., Tensor], x: Batch, *others: Batch) -> Batch:
    """``fn`` of each tensor of ``x``, with those of ``others`` in the same place."""
    if isinstance(x, Tensor):
        return fn(x, *others)
    return unflattened(x, [fn(*line) for line in zip(*map(leaves_of, (x, *others)), strict=True)])


def unflattened(like: Batch, leaves: Sequence[Tensor]) -> Batch:
    """A batch of ``like``'s structure from its tensors in order."""
    if isinstance(like, Tensor):
        return leaves[0]
    return dict(zip(like, leaves, strict=True)) if isinstance(like, dict) else tuple(leaves)


def batch_of(x: Batch, y: Tensor) -> Any:
    """A batch as the dataset had it: without targets ``x`` alone, else ``(x, y)``."""
    return (x, y) if _has_targets(y) else x


def _has_targets(y: Tensor) -> bool:
    return y.dim() != 2 or y.shape[1] > 0


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A client's examples: ``rows`` of ``x`` [n, ...] and ``y`` [n, ...]; all of them if ``rows`` is None.

    ``x`` may be a dict or a tuple of such tensors; ``y`` is [n, 0] where there are no targets beside them.
    Clients that are rows of one pair of tensors are trained without copying it; ``rows`` is int64 [m].
    ``has_ignored``: some labels are those that the loss leaves out.
    """

    x: Batch
    y: Tensor
    rows: np.ndarray | None = None
    has_ignored: bool = False
    kind: tuple = field(init=False, repr=False)  # what rows must share to be in one batch

    def __post_init__(self) -> None:
        x, y = self.x, self.y
        of_x = (x.shape[1:], x.dtype) if isinstance(x, Tensor) else _kind(x)
        object.__setattr__(self, "kind", (*of_x, y.shape[1:], y.dtype))
        for t in leaves_of(x):
            if len(t) != len(y):
                raise ConfigError(
                    f"{len(t)} inputs, but {len(y)} targets"
                    if _has_targets(y)
                    else f"tensors of {len(t)} and of {len(y)} rows in one dataset",
                    hint="give one target per input: all tensors have the rows along axis 0",
                )

    def __len__(self) -> int:
        return self.y.shape[0] if self.rows is None else len(self.rows)  # a tensor's own len() takes longer

    @property
    def has_targets(self) -> bool:
        return _has_targets(self.y)

    def at(self, positions: np.ndarray) -> tuple[Batch, Tensor]:
        """The examples at ``positions`` among this client's, as x and y."""
        chosen = torch.from_numpy(positions if self.rows is None else self.rows[positions])
        # A row is copied as a whole here; indexing would look up each of its numbers, four times as long.
        return map_batch(lambda t: t.index_select(0, chosen), self.x), self.y.index_select(0, chosen)

    def own(self) -> "Rows":
        """The examples in tensors of their own, to send elsewhere."""
        if self.rows is None and all(map(_fills_its_storage, (*leaves_of(self.x), self.y))):
            return self
        x, y = self.at(np.arange(len(self)))
        return Rows(x, y, has_ignored=self.has_ignored)


def _kind(x: dict[str, Tensor] | tuple[Tensor, ...]) -> tuple:
    names = tuple(x) if isinstance(x, dict) else len(x)
    return (tuple((t.shape[1:], t.dtype) for t in leaves_of(x)), names)


def dtype_of(tensors: Iterable[Tensor]) -> torch.dtype:
    """The dtype of the first floating tensor, or of the parts of the first complex one; float32 for none."""
    kinds = (t.dtype.to_real() for t in tensors if t.is_floating_point() or t.is_complex())
    return next(kinds, torch.float32)


def cast_rows(rows: Rows, dtype: torch.dtype) -> Rows:
    """Cast floating numbers to ``dtype``, and whole targets to int64, which torch's losses need."""
    y = rows.y
    is_floating = y.is_floating_point() and rows.has_targets
    y_dtype = dtype if is_floating else torch.int64 if is_whole(y) else y.dtype
    is_right = all(t.dtype == dtype or not t.is_floating_point() for t in leaves_of(rows.x))
    if is_right and y_dtype == y.dtype:
        return rows
    if rows.rows is not None:  # of tensors that clients share, only this one's part
        rows = Rows(*rows.at(np.arange(len(rows))))
    return Rows(map_batch(lambda t: t.to(dtype) if t.is_floating_point() else t, rows.x), rows.y.to(y_dtype))


def is_whole(t: Tensor) -> bool:
    """Does it hold whole numbers, which may be labels or indices?"""
    return not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)


def _fills_its_storage(t: Tensor) -> bool:
    return t.is_contiguous() and t.untyped_storage().nbytes() == t.numel() * t.element_size()
