"""The part of ``evenload.datasets`` in a worker: reads a batch, calls the function, tells what it changed.

A batch is formatted by datasets' own code, as ``Dataset.map`` does it, so that the function sees what it
would see there. Columns that the function left alone do not travel.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from datasets.formatting import format_table, get_formatter
from datasets.formatting.formatting import LazyDict

from evenload.executor.task.hybrid import Implementation
from evenload.integrations.built_function import BuiltFunction

SAME = (str, bytes, int, bool, type(None))  # values that cannot change, and are equal if they compare equal


@dataclass(frozen=True, slots=True)
class Calling:
    """The way in which the function is called, by the names of ``Dataset.map``."""

    batched: bool
    with_indices: bool
    input_columns: tuple[str, ...] | None
    fn_kwargs: Mapping[str, Any]

    def call(self, function: Any, inputs: Any, indices: Any) -> Any:
        given = [inputs] if self.input_columns is None else [inputs[name] for name in self.input_columns]
        return function(*given, *([indices] if self.with_indices else []), **self.fn_kwargs)


@dataclass(frozen=True, slots=True)
class Edits:
    """The differences of a batch to what was read: columns that were set, and columns that were removed."""

    changed: dict[str, Any] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    @classmethod
    def of(cls, inputs: LazyDict) -> "Edits":
        seen = {name: value for name, value in inputs.data.items() if name not in inputs.keys_to_format}
        known = set(inputs.pa_table.column_names)
        changed = {
            name: value
            for name, value in seen.items()
            if name not in known or not _is_same(value, inputs.format(name))
        }
        return cls(changed, tuple(name for name in inputs.pa_table.column_names if name not in inputs.data))

    def make(self, batch: LazyDict) -> LazyDict:
        """Make the same changes in ``batch``, and return it."""
        for name in self.removed:
            del batch[name]
        for name, value in self.changed.items():
            batch[name] = value
        return batch


@dataclass(frozen=True, slots=True)
class Applied:
    """The effects of one call, in so few words that the caller's ``Dataset.map`` can go on from there.

    inputs    changes that the function made to the batch it was given
    output    what it returned; Edits stand for the batch with these changes
    returns   "output", or "inputs" for the very batch it was given
    replaces  the batch was a table or a frame, of which nothing is kept but the output
    """

    inputs: Edits
    output: Any
    returns: str = "output"
    replaces: bool = False

    def to(self, batch: LazyDict) -> Any:
        """Do to ``batch`` what the function did in the worker, and return what it returned."""
        output = self.output
        if isinstance(output, Edits):
            output = output.make(copy.copy(batch))
        batch = self.inputs.make(batch)
        if self.replaces and output is not None:
            for name in list(batch):
                del batch[name]
        return batch if self.returns == "inputs" else output


class StoredBatches(BuiltFunction):
    """A function over batches of datasets that the worker reads by itself, from the same files.

    built    the function, or class, of the user
    splits   the datasets, by name
    """

    def __init__(self, built: Implementation, splits: Mapping[str, Any], how: Calling, *, device: Any):
        super().__init__(built, device)
        self._how = how
        self._tables = {name: one.with_format("arrow") for name, one in splits.items()}
        self._formatters = {name: _formatter(one, how) for name, one in splits.items()}

    def __call__(self, item: tuple[str, int, int]) -> list[Applied]:
        split, start, stop = item
        table, formatter = self._tables[split][start:stop], self._formatters[split]
        if self._how.batched:
            return [self._applied(table, range(stop - start), formatter, list(range(start, stop)))]
        rows = ((at, table.slice(at - start, 1)) for at in range(start, stop))
        return [self._applied(row, 0, formatter, at) for at, row in rows]

    def _applied(self, table: Any, key: Any, formatter: Any, indices: Any) -> Applied:
        columns = None if self._how.input_columns is None else list(self._how.input_columns)
        inputs = format_table(table, key, formatter=formatter, format_columns=columns)
        output = self._how.call(self._function, inputs, indices)
        if not isinstance(inputs, LazyDict):
            return Applied(Edits(), output, replaces=not isinstance(inputs, Mapping))
        if output is inputs:
            return Applied(Edits.of(inputs), None, returns="inputs")
        return Applied(Edits.of(inputs), Edits.of(output) if isinstance(output, LazyDict) else output)


class StreamedBatches(BuiltFunction):
    """A function over batches that are sent to the worker, with the columns that it leaves as they are.

    removed  columns that the result shall not have
    """

    def __init__(self, built: Implementation, how: Calling, removed: tuple[str, ...], *, device: Any):
        super().__init__(built, device)
        self._how = how
        self._removed = removed

    def __call__(self, item: tuple[int, dict[str, Any]]) -> dict[str, Any]:
        start, batch = item
        kept = {name: value for name, value in batch.items() if name not in self._removed}
        indices: Any = start
        if self._how.batched:
            indices = list(range(start, start + len(next(iter(batch.values()), ()))))
        output = self._how.call(self._function, batch, indices)
        if not isinstance(output, Mapping):
            raise TypeError(f"the function returned a {type(output).__name__}, no dict of columns")
        if output is batch:
            output = {name: value for name, value in output.items() if name not in self._removed}
        merged = {**kept, **output}
        sizes = {name: len(value) for name, value in merged.items()} if self._how.batched else {}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"columns of different lengths: {sizes}; remove_columns leaves some out")
        return merged


def _formatter(dataset: Any, how: Calling) -> Any:
    """The formatter that ``Dataset.map`` would use: columns are read when the function asks for them."""
    form = dataset.format
    is_lazy = form["type"] is None and not how.input_columns
    lazily = {"lazy": True} if is_lazy else {}
    return get_formatter(form["type"], features=dataset.features, **form["format_kwargs"], **lazily)


def _is_same(value: Any, read: Any) -> bool:
    """Whether a column is as it was read, as far as that can be said at little cost."""
    if type(value) is not type(read):
        return False
    if type(value) is list:
        kinds = list(map(type, value))
        return set(kinds) <= set(SAME) and kinds == list(map(type, read)) and value == read
    return type(value) in SAME and value == read
