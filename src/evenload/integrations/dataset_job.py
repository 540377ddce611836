"""One mapping of datasets: stored ones by their own ``Dataset.map``, streams while they are read.

``Dataset.map`` asks for one batch after the other. What it calls takes the batch from the workers, who read
the rows from the same files and are further ahead: types, columns, cache file and progress are the library's.
"""

import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset, is_caching_enabled
from datasets.arrow_dataset import transmit_format
from datasets.fingerprint import update_fingerprint
from datasets.iterable_dataset import ExamplesIterable

from evenload.errors import EvenloadError
from evenload.executor.executor import Executor
from evenload.executor.journal.journal import Journal
from evenload.executor.task.hybrid import Implementation
from evenload.executor.task.prepare import name_of, named
from evenload.integrations.dataset_batches import Applied, Calling, StoredBatches, StreamedBatches
from evenload.same_code import fingerprint_code

ROW_CHUNKS = 256  # parts of a dataset that is mapped row by row: for many devices, and few files to keep
NO_MATTER = ("cache_file_name", "desc", "load_from_cache_file", "new_fingerprint")  # to what comes out


@dataclass(frozen=True)
class DatasetJob:
    """A function to be mapped over datasets, and how.

    built    the function, ready to be sent
    size     rows in a batch; 0 for all of them
    removed  columns that the result shall not have
    opened   gives the executor to use, for a ``with`` block
    options  of the executor's map
    more     of ``Dataset.map``
    """

    function: Any
    built: Implementation
    how: Calling
    size: int
    removed: tuple[str, ...]
    opened: Callable[[], AbstractContextManager[Executor]]
    options: Mapping[str, Any]
    more: Mapping[str, Any]

    def stored(self, splits: Mapping[str, Dataset]) -> dict[str, Dataset]:
        """The datasets, mapped. No worker starts before ``Dataset.map`` asks for a batch."""
        task = named(name_of(self.function), StoredBatches, self.built, splits, self.how)
        task.journal_name = "batches"  # the folder's name has the fingerprint
        prints = {name: self._fingerprint(one) for name, one in splits.items()}
        mapped: dict[str, Dataset] = {}
        with ExitStack() as until_done:
            executor = functools.cache(lambda: until_done.enter_context(self.opened()))
            for name, one in splits.items():
                kept = KeptBatches.beside(one, prints[name], self.more)
                batches = self._batches(name, len(one))

                @functools.cache
                def answers(batches: Any = tuple(batches), kept: KeptBatches = kept) -> Iterator[Applied]:
                    made = kept.mapped(functools.partial(executor().map, task, batches, **self.options))
                    return chain.from_iterable(made)

                mapped[name] = self._mapped(
                    one, prints[name], lambda batch, answers=answers: next(answers()).to(batch)
                )
                if answers.cache_info().currsize:
                    for _ in answers():  # to the end of the run, which frees what it kept
                        pass
                kept.discard()
        return mapped

    def _mapped(self, dataset: Dataset, fingerprint: str, function: Callable[[Any], Any]) -> Any:
        """What ``dataset.map(function)`` gives, which is asked for batches that are not formatted."""

        def unformatted(dataset: Dataset) -> Any:
            size, removed = self.size or None, list(self.removed) or None
            options = {
                "batched": self.how.batched,
                "batch_size": size,
                "remove_columns": removed,
                **self.more,
            }
            return dataset.with_format(None).map(function, **{"new_fingerprint": fingerprint, **options})

        return transmit_format(unformatted)(dataset)

    def _batches(self, name: str, n_rows: int) -> list[tuple[str, int, int]]:
        size = self.size or n_rows
        if not self.how.batched:  # which rows go together is then no matter to the function
            size = max(1, min(size, n_rows // ROW_CHUNKS))
        end = n_rows // size * size if self.more.get("drop_last_batch") and self.how.batched else n_rows
        return [(name, start, min(start + size, end)) for start in range(0, end, size)]

    def _fingerprint(self, dataset: Any) -> str:
        """A name for the result: by datasets' own hash, and by all the code that the function can reach."""
        matters = {name: value for name, value in self.more.items() if name not in NO_MATTER}
        how = {name: getattr(self.how, name) for name in self.how.__slots__}
        facts = {
            "function": self.function,
            "code": fingerprint_code(functools.partial(self.function, **self.how.fn_kwargs)),
            "batch_size": self.size,
        }
        facts |= {"remove_columns": self.removed, "format": dataset.format, **how, **matters}
        return update_fingerprint(dataset._fingerprint, "evenload.datasets.map", facts)

    def streamed(self, dataset: IterableDataset) -> IterableDataset:
        """A stream of what ``dataset`` gives, mapped while it is read."""
        described = dataset.info.copy()
        described.features = self.more.get("features")
        rows = ExamplesIterable(functools.partial(self._rows, dataset), {})
        return IterableDataset(rows, described, dataset.split, dataset._formatting)

    def _rows(self, dataset: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        task = named(name_of(self.function), StreamedBatches, self.built, self.how, self.removed)
        with self.opened() as executor:
            n_rows = 0
            for batch in executor.map(task, self._read(dataset), **self.options):
                columns = batch if self.how.batched else {name: [value] for name, value in batch.items()}
                for values in zip(*columns.values(), strict=True):
                    yield n_rows, dict(zip(columns, values, strict=True))
                    n_rows += 1

    def _read(self, dataset: Any) -> Iterator[tuple[int, Any]]:
        """What is sent of a stream: each batch, or row, behind the number of its first row."""
        if not self.how.batched:
            yield from enumerate(dataset)
            return
        size, start = self.size or sys.maxsize, 0
        for batch in dataset.iter(size, drop_last_batch=bool(self.more.get("drop_last_batch"))):
            yield start, batch
            start += size


FORGOTTEN_S = 30 * 24 * 3600.0  # what nobody has come back for


@dataclass(frozen=True, slots=True)
class KeptBatches:
    """A journal of batches. ``folder``: None if none are kept."""

    folder: Path | None

    @classmethod
    def beside(cls, dataset: Any, fingerprint: str, more: Mapping[str, Any]) -> "KeptBatches":
        """Return the place for batches of the result ``fingerprint`` of mapping ``dataset``.

        None are kept if the result is not, or if what was done before is not wanted.
        """
        is_wanted = more.get("load_from_cache_file") is not False and not more.get("keep_in_memory")
        if not (is_wanted and is_caching_enabled() and dataset.cache_files):
            return cls(None)
        cache = more.get("cache_file_name") or dataset.cache_files[0]["filename"]
        return cls(Path(cache).absolute().parent / f"evenload-{fingerprint}.batches")

    def mapped(self, run: Callable[..., Iterator[Any]]) -> Iterator[Any]:
        """Begin a map that takes up what is kept, and keeps what it does.

        While another program has the folder, or where it cannot be written, nothing is kept.
        """
        if self.folder is not None:
            try:
                return run(journal=self.folder, on_change="rerun")
            except EvenloadError:  # of any other fault the next one says the same
                pass
        return run()

    def discard(self) -> None:
        """Delete what was kept, and what was kept beside it and forgotten."""
        if self.folder is None:
            return
        Journal.discard(self.folder)
        for other in self.folder.parent.glob("evenload-*.batches"):
            try:
                is_forgotten = other.stat().st_mtime < time.time() - FORGOTTEN_S
            except OSError:
                continue
            if is_forgotten:
                Journal.discard(other)
