"""Stores of remote files, by address: s3://, gs://, hf://, https:// and what else fsspec reaches.

store, path = open_store("s3://bucket/pictures", FETCHED, "reading")

What a store says in an error is shown without the secrets that this process knows.
"""

import contextlib
import hashlib
import json
import os
import re
import urllib.parse
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from evenload._memory_sizes import size_text
from evenload._optional import require
from evenload._private_files import own_folder, read_own, whole_file, write_own
from evenload.errors import ConfigError, EvenloadError, MissingExtra, quoted

_URL = re.compile(r"([a-z][a-z0-9]{1,15})://", re.ASCII)
_OBJECTS = {"abfs", "abfss", "az", "azure", "gcs", "gs", "oci", "oss", "r2", "s3", "s3a"}
FETCHED = frozenset(_OBJECTS | {"hf", "http", "https", "memory"})
"""What rows of a table may name. Others of fsspec's reach into this machine, or chain several."""
WRITTEN = FETCHED | {"dbfs", "file", "ftp", "hdfs", "sftp", "smb", "ssh", "webhdfs"}
"""What a job may name for its results."""
_OTHERS = {"gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "azure": "adlfs"}
_OTHERS |= {"hf": "huggingface_hub", "oci": "ocifs", "oss": "ossfs", "sftp": "paramiko", "ssh": "paramiko"}
_OTHERS |= {"smb": "smbprotocol"}
_LOOK = "is the address right, and are you let in? the store's own variables (AWS_PROFILE, ...) count"
_IS_SECRET = re.compile(r"SECRET|TOKEN|PASSW|KEY|CREDENTIAL|FSSPEC", re.IGNORECASE)
_LEAST_SECRET = 8  # characters: what is shorter would blank out words
_USER = re.compile(r"://[^/\s@'\"]*@")
_SIGNED = re.compile(
    r"([?&][^=&\s'\"]*(?:sig|token|key|secret|credential|passw)[^=&\s'\"]*)=[^&\s'\"]*", re.IGNORECASE
)


def is_remote(text: str) -> bool:
    """Return whether ``text`` is an address of a remote file, not a path."""
    return _URL.match(text) is not None


def joined(base: str, relative: str) -> str:
    """Return the address of a path in the folder ``base``. Raises ConfigError for one that leads out."""
    if relative.startswith("/") or ".." in PurePosixPath(relative).parts:
        raise ConfigError(f"{quoted(relative)} leads out of {shown(base)}", hint="write the whole address")
    return f"{base.rstrip('/')}/{relative}"


def fault_of_folder(url: str) -> str:
    """Return why ``url`` is no address of a folder that results may be copied to; "" if it is one."""
    protocol, there, rest = url.partition("://")
    has_space = " " in url and protocol != "file"  # of this machine's folders many have one
    if not there or protocol not in WRITTEN or "::" in url or not url.isprintable() or has_space:
        known = ", ".join(sorted(WRITTEN - {"memory"}))
        return f"{shown(url)} is no address that results can be copied to; kinds: {known}"
    try:
        parts = urlsplit(url)
        named = parts.username is not None or parts.password is not None
        is_folder = bool(rest.strip("/")) and not parts.query and not parts.fragment
    except ValueError:
        named, is_folder = False, False
    if named:
        return (
            "it holds a name or password, which the run folder would show; "
            "keep those where the store's own package looks for them"
        )
    if not is_folder or ".." in PurePosixPath(rest).parts:
        return f"{shown(url)} is no address of a folder; write {protocol}://bucket/folder"
    return ""


def open_store(url: str, protocols: Collection[str], doing: str) -> tuple[Any, str]:
    """Return the file system of ``url`` and the path in it.

    doing  what the store is for, in a word: reading
    Raises ConfigError for an address of another kind, MissingExtra without the package for its kind.
    """
    protocol = url.partition("://")[0]
    if protocol not in protocols or "::" in url or not url.isprintable():
        known = ", ".join(sorted({*protocols} - {"memory"}))
        raise ConfigError(f"{shown(url)} is of no kind that can be fetched", hint=f"kinds: {known}")
    fsspec = require("fsspec", extra="files", why=f"{doing} {protocol}://")
    try:
        store, path = fsspec.core.url_to_fs(url)
        store.invalidate_cache()  # of listings: an earlier look is not believed
        return store, path
    except ImportError as error:
        raise MissingExtra(
            f"{protocol}:// needs a package that is not installed: {error}", hint=_install(protocol)
        ) from error
    except Exception as error:  # each store has its own
        raise store_error(url, error, "be read" if doing == "reading" else "be written to") from error


def store_error(url: str, error: Exception, what: str = "be read") -> ConfigError:
    """Make an error of what a store has raised. ``what``: could not be done with ``url``."""
    said = _without_secrets(str(error)) or type(error).__name__
    return ConfigError(f"{shown(url)} cannot {what}: {type(error).__name__}: {quoted(said)}", hint=_LOOK)


def shown(url: str) -> str:
    """Return an address for a message, without the secrets in it."""
    return quoted(_without_secrets(url))


def _install(protocol: str) -> str:
    return f"pip install {_OTHERS[protocol]}" if protocol in _OTHERS else "pip install 'evenload[files]'"


def _without_secrets(text: str) -> str:
    for secret in sorted(set(_secrets()), key=len, reverse=True):
        text = text.replace(secret, "***")
    return _SIGNED.sub(r"\1=***", _USER.sub("://***@", text))


def _secrets() -> Iterator[str]:
    """Yield the values of this process's variables that sound like secrets, also those in JSON of fsspec."""
    for name, value in os.environ.items():
        if not _IS_SECRET.search(name) or len(value) < _LEAST_SECRET:
            continue
        yield value
        if name.startswith("FSSPEC_"):
            words = (word for text in _texts_in(value) for word in text.split())
            yield from (word for word in words if len(word) >= _LEAST_SECRET)


def _texts_in(text: str) -> Iterator[str]:
    try:
        todo = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict):
            todo += value.values() if isinstance(value, dict) else value


# --- local copies -------------------------------------------------------------------------------------

MOST_FILE_BYTES = 16 << 30
MOST_FILES = 1_000_000
MOST_NOTE_BYTES = 10_000
_BLOCK_BYTES = 1 << 20
_N_THREADS = 8
_WHAT = "copies of remote files"
# What a store says of a file that changes with its content, by the names that stores have for it.
_VERSIONS = ("ETag", "etag", "checksum", "md5", "generation", "mtime", "LastModified", "last_modified",
             "created")  # fmt: skip


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


# --- folders that files are put into ------------------------------------------------------------------

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
