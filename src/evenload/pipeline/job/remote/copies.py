"""Local copies of remote files: what fsspec reaches (s3://, gs://, hf://, https://, ...), each fetched once.

copies = RemoteCopies(user_cache() / "remote")
copies.of("s3://bucket/pictures/a.png")      a path; fetched again only if the store says that it has changed
"""

import hashlib
import json
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from evenload._memory_sizes import size_text
from evenload._private_files import own_folder, read_own, whole_file, write_own
from evenload.errors import ConfigError, EvenloadError
from evenload.pipeline.job.remote.stores import FETCHED, is_remote, open_store, shown, store_error

MOST_FILE_BYTES = 16 << 30
MOST_FILES = 1_000_000
MOST_NOTE_BYTES = 10_000
_BLOCK_BYTES = 1 << 20
_N_THREADS = 8
_WHAT = "copies of remote files"
# What a store says of a file that changes with its content, by the names that stores have for it.
_VERSIONS = (
    "ETag",
    "etag",
    "checksum",
    "md5",
    "generation",
    "mtime",
    "LastModified",
    "last_modified",
    "created",
)


class RemoteCopies:
    """A folder of copies of remote files, each beside a note of what the store said of it.

    Several programs may use it at once: a copy gets its name when it is whole.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_FILE_BYTES):
        self._folder, self._most_bytes = folder, most_bytes

    def of(self, url: str) -> Path:
        """Return the path of a copy of the file at ``url``.

        Raises ConfigError if it cannot be read, is no file, is cut or too long, MissingExtra if the package
        for its kind of store is not installed.
        """
        store, path = open_store(url, FETCHED, "reading")
        try:
            facts = store.info(path)
        except Exception as error:  # each store has its own
            raise store_error(url, error) from error
        size = facts.get("size")
        if facts.get("type") == "directory":
            raise ConfigError(f"{shown(url)} is a folder, no file", hint="inputs: {folder: ...} lists one")
        if isinstance(size, int) and size > self._most_bytes:
            raise self._too_long(url)
        copy = self._place(url)
        said = {name: str(facts[name]) for name in _VERSIONS if facts.get(name) is not None}
        note = {"url": url, "size": size, **said}
        if said and _note_of(copy) == note and copy.is_file():
            return copy
        n_bytes = self._fetch(store, path, url, copy)
        if isinstance(size, int) and n_bytes != size:
            copy.unlink(missing_ok=True)
            raise ConfigError(f"{shown(url)} gave {n_bytes} bytes of {size}", hint="try again")
        write_own(_note_path(copy), json.dumps(note).encode())
        return copy

    def of_all(self, urls: Iterable[str]) -> dict[str, Path | EvenloadError]:
        """Return the copy of each, several fetched at once; an error in place of one that cannot be had."""
        wanted = list(dict.fromkeys(urls))

        def one(url: str) -> Path | EvenloadError:
            try:
                return self.of(url)
            except EvenloadError as error:
                return error

        with ThreadPoolExecutor(_N_THREADS, "evenload-remote") as pool:
            return dict(zip(wanted, pool.map(one, wanted), strict=True))

    def listed(self, url: str, *, is_pattern: bool) -> list[str]:
        """Return the addresses of the files in a folder, or of those that match a pattern, sorted.

        Raises ConfigError if they cannot be listed or are more than a million.
        """
        store, path = open_store(url, FETCHED, "reading")
        protocol = url.partition("://")[0]
        try:
            found = store.glob(path, detail=True).values() if is_pattern else store.ls(path, detail=True)
            names = [str(one["name"]) for one in found if one.get("type") == "file"]
        except Exception as error:
            raise store_error(url, error) from error
        if len(names) > MOST_FILES:
            raise ConfigError(f"{shown(url)} has {len(names)} files", hint=f"{MOST_FILES} is the most")
        plain = [one for one in names if not PurePosixPath(one).name.startswith(".")]
        return sorted(one if is_remote(one) else f"{protocol}://{one.lstrip('/')}" for one in plain)

    def _place(self, url: str) -> Path:
        """Return where the copy belongs: a folder of its own, and its name as far as that is a plain one."""
        key = hashlib.blake2b(url.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        name = re.sub(r"[^A-Za-z0-9._-]", "_", PurePosixPath(url.partition("?")[0]).name)[-100:].lstrip(".")
        return self._folder / key[:2] / key / (name or "file")

    def _fetch(self, store: Any, path: str, url: str, copy: Path) -> int:
        """Write the file's content to ``copy``, which appears whole or not at all; returns its bytes."""
        own_folder(self._folder, _WHAT)
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        n_bytes = 0
        try:
            with store.open(path, "rb") as source, whole_file(copy, 0o666, is_durable=False) as target:
                while block := source.read(_BLOCK_BYTES):
                    n_bytes += len(block)
                    if n_bytes > self._most_bytes:
                        raise self._too_long(url)
                    target.write(block)
        except EvenloadError:
            raise
        except Exception as error:
            raise store_error(url, error) from error
        return n_bytes

    def _too_long(self, url: str) -> ConfigError:
        most = size_text(self._most_bytes)
        return ConfigError(
            f"{shown(url)} is longer than {most}", hint="job.inputs.file_limit is the most for one file"
        )


def _note_path(copy: Path) -> Path:
    return copy.parent / ".note.json"


def _note_of(copy: Path) -> Any:
    try:
        return json.loads(read_own(_note_path(copy), _WHAT, MOST_NOTE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
