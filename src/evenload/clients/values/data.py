"""A client's examples as rows of two tensors, made from whatever a user gives when its client is due."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenload.errors import ConfigError

__all__ = ["Batch", "Rows", "as_rows", "batch_of", "leaves_of", "map_batch", "size_of", "unflattened"]

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
        """The same examples in tensors of their own, to send elsewhere."""
        if self.rows is None and all(map(_fills_its_storage, (*leaves_of(self.x), self.y))):
            return self
        x, y = self.at(np.arange(len(self)))
        return Rows(x, y, has_ignored=self.has_ignored)


def _kind(x: dict[str, Tensor] | tuple[Tensor, ...]) -> tuple:
    names = tuple(x) if isinstance(x, dict) else len(x)
    return (tuple((t.shape[1:], t.dtype) for t in leaves_of(x)), names)


def as_rows(dataset: Any, dtype: torch.dtype) -> Rows:
    """Rows of what a user gives for a client; floating inputs become ``dtype``, the model's.

    dataset  Rows, a pair (x, y) of tensors or arrays, of which x may be a dict or a tuple of them; a dict, or
             more than two, of tensors for a recipe with an objective; a TensorDataset or a Subset of one; any
             map-style Dataset of such examples; or a function without arguments that returns one of these
    Raises ConfigError for anything else; what the dataset itself raises passes through.
    """
    if isinstance(dataset, Rows):
        return _cast(dataset, dtype)
    if (parts := _parts(dataset)) is not None:
        return _cast(_rows_of(parts), dtype)
    if callable(dataset) and not hasattr(dataset, "__getitem__"):
        return as_rows(dataset(), dtype)
    tensors = getattr(dataset, "tensors", ())
    if len(tensors) >= 2:
        return _cast(_rows_of(tuple(tensors)), dtype)
    if isinstance(dataset, torch.utils.data.Subset) and len(getattr(dataset.dataset, "tensors", ())) >= 2:
        whole = _rows_of(tuple(dataset.dataset.tensors))  # pyrefly: ignore
        return _cast(Rows(whole.x, whole.y, np.asarray(dataset.indices, np.int64)), dtype)
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return _cast(_collect(dataset), dtype)
    raise ConfigError(
        f"a client's dataset is a {type(dataset).__name__}",
        hint="give (x, y), a dict of tensors, a Dataset, Rows, or a function that returns one of them",
    )


def size_of(dataset: Any) -> int | None:
    """The number of examples of a dataset; None if it is not known without loading it."""
    if isinstance(dataset, Rows):
        return len(dataset)
    if (parts := _parts(dataset)) is not None:
        first = parts if isinstance(parts, dict) else parts[-1]
        return len(next(iter(first.values())) if isinstance(first, dict) else first)
    return len(dataset) if hasattr(dataset, "__len__") else None


def _parts(dataset: Any) -> Any:
    """The dataset as a dict or tuple of tensors, or a pair of one of these and a tensor; or None."""
    if isinstance(dataset, Mapping) and dataset and all(hasattr(v, "shape") for v in dataset.values()):
        return dict(dataset)
    if not isinstance(dataset, tuple | list) or len(dataset) < 2:
        return None
    if all(hasattr(part, "shape") for part in dataset):
        return tuple(dataset)
    inner = None if len(dataset) != 2 or not hasattr(dataset[1], "shape") else dataset[0]
    inner = _parts(inner) if isinstance(inner, Mapping) or (isinstance(inner, tuple) and inner) else None
    return None if inner is None else (inner, dataset[1])


def _rows_of(parts: Any) -> Rows:
    """Rows of a pair (x, y), or of tensors without targets beside them."""

    def tensors(x: Any) -> Batch:
        if isinstance(x, dict):
            return {str(name): torch.as_tensor(t) for name, t in x.items()}
        return tuple(map(torch.as_tensor, x)) if isinstance(x, tuple) else torch.as_tensor(x)

    if isinstance(parts, tuple) and len(parts) == 2:
        return Rows(tensors(parts[0]), torch.as_tensor(parts[1]))
    x = tensors(parts)
    return Rows(x, torch.zeros(len(leaves_of(x)[0]), 0))


def _collect(dataset: Any) -> Rows:
    examples = [dataset[i] for i in range(len(dataset))]
    if not examples:
        return Rows(torch.empty(0), torch.empty(0, dtype=torch.int64))
    first = examples[0]
    if isinstance(first, Mapping):
        return _rows_of({name: _stacked([example[name] for example in examples]) for name in first})
    if not all(isinstance(e, tuple | list) and len(e) == len(first) >= 2 for e in examples):
        raise ConfigError(
            "an example of a client is not a pair (x, y)", hint="let the dataset return (x, y), or a dict"
        )
    if isinstance(first[0], Mapping) and len(first) == 2:
        x = {name: _stacked([e[0][name] for e in examples]) for name in first[0]}
        return _rows_of((x, _stacked([e[1] for e in examples])))
    return _rows_of(tuple(_stacked([e[i] for e in examples]) for i in range(len(first))))


def _stacked(values: list) -> Tensor:
    tensors = [torch.as_tensor(v) for v in values]
    odd = next((t for t in tensors if t.shape != tensors[0].shape), None)
    if odd is not None:
        raise ConfigError(
            f"examples of one client have shapes {tuple(tensors[0].shape)} and {tuple(odd.shape)}",
            hint="pad them to one length, with a mask beside them",
        )
    return torch.stack(tensors)


def _cast(rows: Rows, dtype: torch.dtype) -> Rows:
    """Cast floating numbers to ``dtype``, and whole targets to int64, which torch's losses need."""
    y = rows.y
    is_floating = y.is_floating_point() and rows.has_targets
    y_dtype = dtype if is_floating else torch.int64 if _is_whole(y) else y.dtype
    is_right = all(t.dtype == dtype or not t.is_floating_point() for t in leaves_of(rows.x))
    if is_right and y_dtype == y.dtype:
        return rows
    if rows.rows is not None:  # of tensors that clients share, only this one's part
        rows = Rows(*rows.at(np.arange(len(rows))))
    return Rows(map_batch(lambda t: t.to(dtype) if t.is_floating_point() else t, rows.x), rows.y.to(y_dtype))


def _is_whole(t: Tensor) -> bool:
    return not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)


def _fills_its_storage(t: Tensor) -> bool:
    return t.is_contiguous() and t.untyped_storage().nbytes() == t.numel() * t.element_size()


Datasets = Sequence[Any | Callable[[], Any]]
