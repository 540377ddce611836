"""A client's dataset as rows of tensors: what ``dataset[i]`` gives, as a DataLoader takes it.

tensors    pairs of tensors, Rows, a plain TensorDataset and plain Subsets of one: used as they are
examples   any other map-style dataset is asked for each example, and its tensors are never looked at

Examples that differ from one reading to the next (an augmentation in ``__getitem__``) are read anew for each
epoch. That they differ shows in what was drawn meanwhile, and in the second epoch, which is read and
compared; where there is one epoch only, in a few examples that are read twice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset, TensorDataset

from evenload.clients.generators import Drawn, seeded
from evenload.clients.step.function_state import generator_states
from evenload.clients.values.data import Batch, Rows, cast_rows, leaves_of, unflattened
from evenload.clients.values.recipe import Recipe
from evenload.errors import ConfigError, quoted

AT_ONCE = 64  # examples that a dataset is asked for at a time, at most; so many are read twice
TWICE = 16  # examples that are read beside workers


@dataclass(frozen=True, slots=True)
class ReadRows:
    """A client's rows for all of its training.

    rows       the ``n`` rows of a dataset; if it ``is_fresh``, those of each epoch after one another
    is_fresh   the dataset gives other examples each time that it is read
    """

    rows: Rows
    n: int
    is_fresh: bool = False


def is_lazy(dataset: Any) -> bool:
    """Is it a function that loads when it is called?"""
    return callable(dataset) and not hasattr(dataset, "__getitem__")


def as_rows(dataset: Any, dtype: torch.dtype) -> Rows:
    """Rows of what a user gives for a client; floating inputs become ``dtype``, the model's.

    dataset  Rows, a pair (x, y) of tensors or arrays, of which x may be a dict or a tuple of them; a dict, or
             more than two, of tensors for a recipe with an objective; a map-style Dataset of such examples; a
             DataLoader of one; or a function without arguments that returns one of these
    Raises ConfigError for anything else; what the dataset itself raises passes through.
    """
    dataset = dataset() if is_lazy(dataset) else dataset
    rows = _of_tensors(dataset)
    if rows is None:
        rows = _joined(list(_Reader(dataset).batches()))
    return cast_rows(rows, dtype)


def read_for(
    dataset: Any, dtype: torch.dtype, seed: int, n_epochs: Callable[[int], int], batch_size: int = AT_ONCE
) -> ReadRows:
    """The rows that a training shows: ``as_rows``, again for each of ``n_epochs(n)`` epochs if it is fresh.

    seed  of the generators while the dataset is read, which are then put back; an epoch is read in the order
          of its examples' numbers, whatever order they are shown in, ``batch_size`` at a time
    """
    dataset = dataset() if is_lazy(dataset) else dataset
    rows = _of_tensors(dataset)
    if rows is not None:
        return ReadRows(cast_rows(rows, dtype), len(rows))
    reader = _Reader(dataset, batch_size)
    with seeded(seed, []):
        epochs, n, is_fresh = _read_epochs(reader, n_epochs)
    rows = epochs[0] if len(epochs) == 1 else _joined(epochs)
    return ReadRows(cast_rows(rows, dtype), n, is_fresh)


def _read_epochs(reader: "_Reader", n_epochs: Callable[[int], int]) -> tuple[list[Rows], int, bool]:
    """The rows of an epoch, or of all of them if they differ; how many an epoch has; and whether they do.

    Raises ConfigError if the dataset has another number of examples afterwards, or in another epoch.
    """
    own, batches, drawn = generator_states(reader.dataset), reader.batches(), Drawn()
    epochs = [_joined(list(batches))]
    n = len(epochs[0])
    is_fresh = bool(drawn) or own != generator_states(reader.dataset) or reader.draws_in_workers()
    begun: list[Rows] = []  # of the next epoch: as many batches as it takes to see that it differs
    batches = reader.batches() if n else iter(())
    for batch in () if is_fresh else batches:
        begun.append(batch)
        at = sum(map(len, begun))
        is_fresh = not _are_equal(epochs[0], batch, at - len(batch))
        if is_fresh or (n_epochs(n) == 1 and at >= min(n, AT_ONCE)):
            break
    if is_fresh and n:
        _refuse_size(epochs[0], n_epochs(n))
        for _ in range(1, n_epochs(n)):
            epochs.append(_joined([*begun, *batches]))
            begun, batches = [], reader.batches()
    other = next((m for m in (*map(len, epochs), len(reader.dataset)) if m != n), n)
    if other != n:
        raise ConfigError(
            f"a client's dataset has {n} examples in its first epoch, and {other} later",
            hint="let its length stay; train each part by a call of its own, from start=result.state",
        )
    return epochs, n, is_fresh


def drawn_rows(dataset: Any, draws: Sequence[np.random.Generator]) -> list[Any]:
    """For each generator as many examples as there are, drawn with replacement and read as the dataset's."""
    dataset = dataset() if is_lazy(dataset) else dataset
    rows = _of_tensors(dataset)
    if rows is None:
        examples: Any = dataset.dataset if isinstance(dataset, DataLoader) else dataset
        _refuse_kind(examples)
        n = len(examples)
        return [Subset(examples, draw.choice(n, n).tolist()) for draw in draws]
    own = np.arange(len(rows)) if rows.rows is None else rows.rows
    return [Rows(rows.x, rows.y, draw.choice(own, len(own))) for draw in draws]


def size_of(dataset: Any) -> int | None:
    """The number of examples of a dataset; None if it is not known without loading it."""
    if isinstance(dataset, Rows):
        return len(dataset)
    if isinstance(dataset, DataLoader):
        return size_of(dataset.dataset)
    if (parts := _parts(dataset)) is not None:
        first = parts if isinstance(parts, dict) else parts[-1]
        return len(next(iter(first.values())) if isinstance(first, dict) else first)
    return len(dataset) if hasattr(dataset, "__len__") else None


def refuse_loader(dataset: Any, recipe: Recipe) -> None:
    """Raise ConfigError for a DataLoader whose batches are others than the recipe's."""
    if not isinstance(dataset, DataLoader):
        return
    sampler, collate_fn = dataset.sampler, dataset.collate_fn
    if collate_fn is not torch.utils.data.default_collate:
        raise ConfigError(
            f"a client's DataLoader has a collate_fn of its own, {quoted(collate_fn)}",
            hint="let the dataset return what a row is, and give the dataset",
        )
    has_iter = type(dataset).__iter__ is not DataLoader.__iter__
    if has_iter or type(dataset.batch_sampler) is not BatchSampler or dataset.batch_size is None:
        raise ConfigError(
            f"a client's {type(dataset).__name__} has {'an __iter__' if has_iter else 'batches'} of its own",
            hint="give its dataset, and say in the recipe what a batch is: Recipe(batch_size=32)",
        )
    if type(sampler) not in (SequentialSampler, RandomSampler) or getattr(sampler, "replacement", False):
        raise ConfigError(
            f"a client's DataLoader has a {type(sampler).__name__}",
            hint="rows drawn once can be given as Rows(x, y, np.array(list(sampler)))",
        )
    n_taken, n = len(sampler), len(dataset.dataset)  # pyrefly: ignore
    if n_taken != n:
        raise ConfigError(
            f"a client's {type(sampler).__name__} takes {n_taken} of {n} examples",
            hint="give torch.utils.data.Subset(dataset, rows)",
        )
    theirs = dataset.batch_size, isinstance(sampler, RandomSampler), dataset.drop_last
    if theirs != (recipe.batch_size, recipe.shuffle, recipe.drop_last):
        typed = "Recipe(batch_size={}, shuffle={}, drop_last={})".format(*theirs)
        raise ConfigError(f"a client's DataLoader makes other batches than the recipe: {typed}", hint=typed)


# --- tensors -----------------------------------------------------------------------------------


def _of_tensors(dataset: Any) -> Rows | None:
    """Rows of tensors that are the examples themselves, or None."""
    if isinstance(dataset, Rows):
        return dataset
    if (parts := _parts(dataset)) is not None:
        return _rows_of(parts)
    if type(dataset) is TensorDataset and len(dataset.tensors) >= 2:
        return _rows_of(dataset.tensors)
    if type(dataset) is Subset and isinstance(whole := _of_tensors(dataset.dataset), Rows):
        chosen = np.asarray(dataset.indices, np.int64)
        chosen = np.where(chosen < 0, chosen + len(whole), chosen)
        return Rows(whole.x, whole.y, chosen if whole.rows is None else whole.rows[chosen])
    return None


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
    if isinstance(parts, tuple) and len(parts) == 2:
        return Rows(_tensors(parts[0]), _tensor(parts[1]))
    x = _tensors(parts)
    return Rows(x, torch.zeros(len(leaves_of(x)[0]), 0))


def _tensors(x: Any) -> Batch:
    if isinstance(x, dict):
        return {str(name): _tensor(t) for name, t in x.items()}
    return tuple(map(_tensor, x)) if isinstance(x, tuple) else _tensor(x)


def _tensor(value: Any) -> Tensor:
    """The value as a tensor. Raises ConfigError for texts, pictures, frames and other things."""
    if isinstance(value, Tensor):
        return value
    try:
        is_plain = not hasattr(value, "dtype")  # Python's own numbers, which torch would take for float32
        found = torch.as_tensor(value)
        is_rounded = is_plain and found.is_floating_point()
        return torch.as_tensor(value, dtype=torch.float64) if is_rounded else found
    except (TypeError, ValueError, RuntimeError) as error:
        kind, hint = type(value).__name__, "let the dataset return tensors, arrays or numbers"
        if isinstance(value, str | bytes):
            hint = "numbers are trained on: let the dataset return the ids that a tokenizer gives, padded"
        elif hasattr(value, "convert") and hasattr(value, "getpixel"):
            hint = "let the dataset turn pictures into tensors: torch.from_numpy(np.array(picture)), say"
        elif hasattr(value, "to_numpy"):
            hint = "give numbers: frame[columns].to_numpy()"
        raise ConfigError(f"{quoted(value)} of a client, a {kind}, is no tensor", hint=hint) from error


# --- examples ----------------------------------------------------------------------------------


class _Reader:
    """A reader of one dataset's examples in order, with the workers of its DataLoader if it has some.

    batch_size  examples at a time; a DataLoader that was given has its own
    """

    def __init__(self, given: Any, batch_size: int = AT_ONCE):
        loader: Any = given if isinstance(given, DataLoader) else None
        self.dataset = given if loader is None else loader.dataset
        _refuse_kind(self.dataset)
        is_asked_for_batches = hasattr(self.dataset, "__getitems__")  # which may depend on what is in one
        self._options: dict[str, Any] = {
            "batch_size": batch_size if is_asked_for_batches else min(batch_size, AT_ONCE)
        }
        if loader is not None and loader.num_workers:
            names = ("num_workers", "worker_init_fn", "multiprocessing_context", "prefetch_factor", "timeout")
            self._options |= {name: getattr(loader, name) for name in names}
            self._options["batch_size"] = loader.batch_size or 1

    def batches(self) -> Iterator[Rows]:
        """Batches, each read and copied when it is asked for; the generator of their workers' seeds drew."""
        return map(_collate, iter(DataLoader(self.dataset, collate_fn=list, **self._options)))

    def draws_in_workers(self) -> bool:
        """Do its workers draw numbers, whose generators are out of sight? Seen by reading some here."""
        if not self._options.get("num_workers"):
            return False
        with seeded(0, []):
            drawn = Drawn()
            for i in range(min(TWICE, len(self.dataset))):
                self.dataset[i]
            return bool(drawn)


def _refuse_kind(dataset: Any) -> None:
    """Raise ConfigError for what cannot be asked for its examples by number."""
    hint = "give (x, y), a dict of tensors, a Dataset, Rows, or a function that returns one of them"
    if hasattr(dataset, "iloc"):
        hint = "give (frame[columns].to_numpy(), frame[target].to_numpy())"
    has_rows = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    is_other = isinstance(dataset, Mapping | str | bytes | torch.utils.data.IterableDataset)
    if has_rows and not is_other and not hasattr(dataset, "iloc"):
        return
    raise ConfigError(f"a client's dataset is a {type(dataset).__name__}", hint=hint)


def _collate(examples: Sequence[Any]) -> Rows:
    """Rows of examples: pairs (x, y), dicts, or tuples of more than two."""
    if not examples:
        return Rows(torch.empty(0), torch.empty(0, dtype=torch.int64))
    first = examples[0]
    if isinstance(first, Mapping):
        return _rows_of(_stacked(examples))
    if not all(isinstance(e, tuple | list) and len(e) == len(first) >= 2 for e in examples):
        raise ConfigError(
            f"an example of a client is {quoted(first)}, not a pair (x, y)",
            hint="let the dataset return (x, y), or a dict",
        )
    return _rows_of(tuple(_stacked([e[i] for e in examples]) for i in range(len(first))))


def _stacked(values: Sequence[Any]) -> Any:
    """One part of all examples, along axis 0."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: _stacked([v[name] for v in values]) for name in first}
    if isinstance(first, tuple) and first:
        return tuple(_stacked([v[i] for v in values]) for i in range(len(first)))
    tensors = [_tensor(v) for v in values]
    odd = next((t for t in tensors if t.shape != tensors[0].shape), None)
    if odd is not None:
        raise ConfigError(
            f"examples of one client have shapes {tuple(tensors[0].shape)} and {tuple(odd.shape)}",
            hint="pad them to one length, with a mask beside them",
        )
    return torch.stack(tensors)


def _joined(parts: Sequence[Rows]) -> Rows:
    """The rows of batches, or of epochs, one after the other. Raises ConfigError if they are of two kinds."""
    if len(parts) < 2:
        return parts[0] if parts else _collate([])
    odd = next((one for one in parts if one.kind != parts[0].kind), None)
    if odd is not None:
        raise ConfigError(
            f"examples of one client have shapes and kinds {_words(parts[0])} and {_words(odd)}",
            hint="pad them to one length, with a mask beside them; let all have the same names and dtypes",
        )
    leaves = zip(*([*leaves_of(one.x), one.y] for one in parts), strict=True)
    *x, y = (torch.cat(part) for part in leaves)
    return Rows(unflattened(parts[0].x, x), y)


def _words(rows: Rows) -> str:
    """The shapes and kinds of a row's tensors, in words."""
    return ", ".join(f"{tuple(t.shape[1:])} {t.dtype}" for t in (*leaves_of(rows.x), rows.y))


def _refuse_size(rows: Rows, n_epochs: int) -> None:
    """Raise ConfigError if the rows of all epochs would not fit into half of the free memory."""
    n_bytes = n_epochs * sum(t.numel() * t.element_size() for t in (*leaves_of(rows.x), rows.y))
    if n_epochs > 1 and 2 * n_bytes > (free := psutil.virtual_memory().available):
        raise ConfigError(
            f"a dataset that gives other examples each time takes {n_bytes:,} bytes in {n_epochs} epochs, "
            f"and {free:,} are free",
            hint="let it give the examples as they are, and augment batches: Recipe(augment=fn)",
        )


def _are_equal(rows: Rows, others: Rows, at: int) -> bool:
    """Are those others ``rows`` from ``at`` on? NaN equals NaN."""
    if rows.kind != others.kind or at + len(others) > len(rows):
        return False
    pairs = zip((*leaves_of(rows.x), rows.y), (*leaves_of(others.x), others.y), strict=True)
    return all(torch.equal(torch.nan_to_num(a[at : at + len(b)]), torch.nan_to_num(b)) for a, b in pairs)
