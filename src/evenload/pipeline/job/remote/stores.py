"""Stores of remote files, by address: s3://, gs://, hf://, https:// and what else fsspec reaches.

store, path = open_store("s3://bucket/pictures", FETCHED, "reading")

What a store says in an error is shown without the secrets that this process knows.
"""

import json
import os
import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from evenload._optional import require
from evenload.errors import ConfigError, MissingExtra, quoted

_URL = re.compile(r"([a-z][a-z0-9]{1,15})://", re.ASCII)
FETCHED = frozenset(
    (
        "abfs",
        "abfss",
        "az",
        "azure",
        "gcs",
        "gs",
        "hf",
        "http",
        "https",
        "memory",
        "oci",
        "oss",
        "r2",
        "s3",
        "s3a",
    )
)
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
