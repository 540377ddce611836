"""Finished batches of a dataset's map, kept beside the cache file until that is whole."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import is_caching_enabled

from evenload.errors import EvenloadError
from evenload.executor.journal.journal import Journal

__all__ = ["KeptBatches"]

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
