"""A folder in a store of remote files, into which files are put.

folder = RemoteFolder("s3://bucket/runs/stretch")
folder.put(Path("outputs/a.png"), "outputs/a.png")     there whole, or not at all
"""

import contextlib
import os
import urllib.parse
from pathlib import Path
from typing import Any

from evenload.pipeline.job.remote.stores import FETCHED, WRITTEN, open_store, store_error

_MOST_LISTED = 5_000_000
_BUSY = frozenset((408, 425, 429))


class RemoteFolder:
    """A folder in a store. ``url`` is its address. May be used by several threads at once."""

    def __init__(self, url: str):
        """Open the store. Raises ConfigError and MissingExtra as ``open_store``."""
        self.url = url.rstrip("/")
        self._protocol = url.partition("://")[0]
        self._store, path = open_store(self.url, WRITTEN, "writing to")
        self._path = path.rstrip("/")

    @property
    def n_at_once(self) -> int:
        """How many files may be put at once: not every package shares its connection between threads."""
        return 4 if self._protocol in FETCHED else 1

    def put(self, source: Path, relative: str) -> None:
        """Copy the file ``source`` to ``relative`` in this folder, in place of what is there.

        It appears when it is whole; its size is asked for afterwards. Raises what the store raises, OSError
        if it has another size then.
        """
        target, n_bytes = self._place(relative), source.stat().st_size
        if self._protocol in FETCHED:  # a file of these appears when it is whole
            self._put(source, target, n_bytes)
            return
        draft = f"{target}.{os.urandom(4).hex()}.part"
        self._store.makedirs(draft.rpartition("/")[0], exist_ok=True)
        try:
            self._put(source, draft, n_bytes)
            self._store.mv(draft, target)
        except BaseException:
            with contextlib.suppress(Exception):
                self._store.rm_file(draft)
            raise

    def sizes(self) -> dict[str, int] | None:
        """Return the bytes of each file in this folder; None if the store does not list them.

        Raises nothing: who may write need not be allowed to look.
        """
        if self._protocol in ("http", "https"):
            return None
        try:
            self._store.invalidate_cache()
            found: dict[str, Any] = self._store.find(self._path, detail=True)
        except FileNotFoundError:
            return {}
        except Exception:  # each store has its own
            return None
        begin = len(self._path.strip("/")) + 1
        return {
            name.strip("/")[begin:]: facts["size"]
            for name, facts in list(found.items())[:_MOST_LISTED]
            if isinstance(facts.get("size"), int)
        }

    def error(self, fault: BaseException) -> str:
        """Return what went wrong in one sentence without secrets."""
        known = fault if isinstance(fault, Exception) else RuntimeError(str(fault))
        return store_error(self.url, known, "be written to").message

    def _place(self, relative: str) -> str:
        is_address = self._protocol in ("http", "https")
        return f"{self._path}/{urllib.parse.quote(relative) if is_address else relative}"

    def _put(self, source: Path, target: str, n_bytes: int) -> None:
        if self._protocol in ("http", "https"):
            self._store.put_file(str(source), target, method="put")
        else:
            self._store.put_file(str(source), target)
        there = self._size_of(target)
        if there is not None and there != n_bytes:
            raise OSError(f"{there} bytes of {n_bytes} are there")

    def _size_of(self, target: str) -> int | None:
        """Return the bytes of a file that was just written; None where the store does not say."""
        try:
            self._store.invalidate_cache(target)
            size = self._store.info(target).get("size")
        except Exception:  # who may write need not be allowed to look
            return None
        return size if isinstance(size, int) else None


def is_worth_another_try(fault: BaseException) -> bool:
    """Return whether what a store raised may be otherwise in a while: it is neither refused nor unknown."""
    status = getattr(fault, "status", None)
    if isinstance(status, int) and 400 <= status < 500:
        return status in _BUSY
    return not isinstance(fault, FileNotFoundError | PermissionError | NotADirectoryError | TypeError)
