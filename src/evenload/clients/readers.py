"""Clients from files: LEAF's JSON, npz, Hugging Face datasets on disk, and source files as text. No network.

Each reader returns {client name: Rows}; ``list(found.values())`` is what ``train`` and ``federate`` take.
"""

import json
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from evenload._optional import require

require("torch", extra="clients", why="training clients")

import torch  # noqa: E402

from evenload._private_files import plain_file  # noqa: E402
from evenload.clients.partition import by_key  # noqa: E402
from evenload.clients.values.data import Rows  # noqa: E402
from evenload.errors import ConfigError, FormatError, quoted, reason_of  # noqa: E402

Clients = dict[str, Rows]


def read_leaf(path: str | Path, *, shape: tuple[int, ...] | None = None) -> Clients:
    """LEAF's ``all_data*.json``: a file, or every ``*.json`` of a folder.

    shape  of one input, if LEAF has it flat: (28, 28) for FEMNIST
    Numbers become float32 inputs and int64 targets. A user in several files has the rows of all of them.
    Raises FormatError that names the file and user; what has a text for input is for a tokenizer first.
    Source: Caldas et al., "LEAF: a benchmark for federated settings", arXiv:1812.01097.
    """
    root = Path(path)
    files = sorted(root.glob("*.json")) if root.is_dir() else [root]
    if not files:
        raise ConfigError(f"no *.json in {root}", hint="name LEAF's data/train folder, or one of its files")
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for file in files:
        page = _json(file)
        if not isinstance(page, dict) or not isinstance(page.get("user_data"), dict):
            raise FormatError(f"{file} has no 'user_data'", hint="LEAF's files map users to x and y there")
        for user, rows in page["user_data"].items():
            found.setdefault(user, []).append(_leaf_rows(file, user, rows, shape))
    return {user: _joined(root, user, parts) for user, parts in found.items()}


def read_npz(path: str | Path, *, x: str = "x", y: str = "y", client: str = "client") -> Clients:
    """An npz file with arrays ``x`` [n, ...], ``y`` [n, ...] and ``client`` [n]: who owns each row.

    Clients share the two arrays. Bytes (uint8) become float32, as for pictures; tokens are int32 or int64.
    Raises FormatError if one is missing, is no array of numbers, or their lengths differ.
    """
    try:
        with plain_file(Path(path)) as stream, np.load(stream, allow_pickle=False) as page:
            arrays = {name: page[name] for name in (x, y, client) if name in page}
            known = ", ".join(page.files)
    except Exception as error:  # numpy, zipfile and zlib have many kinds; all mean that it is damaged
        raise FormatError(f"{path} is not an npz file of plain arrays: {reason_of(error)}") from error
    for name in (x, y, client):
        if name not in arrays:
            raise FormatError(
                f"{path} has no array {quoted(name)}; it has: {known}", hint="name it: x=, y=, client="
            )
    for name, array in arrays.items():
        if not array.ndim:
            raise FormatError(f"{path}: {quoted(name)} is a single value", hint="one row for each example")
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise FormatError(f"{path}: lengths differ: {lengths}", hint="one target and one owner for each row")
    return _by_owner(_numbers(path, x, arrays[x], np.float32), _numbers(path, y, arrays[y]), arrays[client])


def read_dataset(path: str | Path, *, x: str, y: str, client: str | None = None) -> Clients:
    """A Hugging Face dataset saved with ``save_to_disk``; ``client`` is the column of who owns a row.

    Without ``client`` all rows are one client's: deal them with ``evenload.clients.partition``.
    Raises MissingExtra without ``datasets``, FormatError for a missing column or rows of unlike shape.
    """
    datasets: Any = require("datasets", why="reading a dataset from disk")
    try:
        table = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise FormatError(
            f"{path} is no dataset on disk: {reason_of(error)}", hint="make one with save_to_disk"
        ) from error
    if not hasattr(table, "column_names") or isinstance(table.column_names, Mapping):
        splits = ", ".join(getattr(table, "keys", list)())
        raise FormatError(f"{path} has several splits: {splits}", hint="name the folder of one of them")
    for name in (x, y, client):
        if name is not None and name not in table.column_names:
            raise FormatError(f"{path} has no column {quoted(name)}; it has: {', '.join(table.column_names)}")
    table = table.with_format("numpy")
    inputs, targets = _column(path, x, table[:][x]), _column(path, y, table[:][y])
    owners = np.zeros(len(inputs), np.int64) if client is None else np.asarray(table[:][client])
    return _by_owner(_numbers(path, x, inputs, np.float32), _numbers(path, y, targets), owners)


def read_text(files: Iterable[str | Path], *, length: int = 64, most_bytes: int = 1 << 16) -> Clients:
    """Each file a client: its bytes, cut into windows [n, length] with the byte that follows as target [n].

    ``most_bytes`` of each are read; files with fewer than ``length`` + 1 are left out.
    Raises ConfigError for a length below 1.
    """
    if length < 1:
        raise ConfigError(f"length={length} leaves no text to read", hint="use 64")
    found: Clients = {}
    for file in map(Path, files):
        with _opened(file) as stream:
            text = np.frombuffer(stream.read(most_bytes), np.uint8)
        n = (len(text) - 1) // length
        if n < 1:
            continue
        inputs = text[: n * length].reshape(n, length).astype(np.int64)
        found[str(file)] = Rows(
            torch.from_numpy(inputs), torch.from_numpy(text[length::length][:n].astype(np.int64))
        )
    return found


def standard_library(*, length: int = 64, most_bytes: int = 1 << 16) -> Clients:
    """Python's own modules as text clients: ragged, unlike one another, and on every machine."""
    folder = Path(sysconfig.get_path("stdlib"))
    return read_text(sorted(folder.glob("*.py")), length=length, most_bytes=most_bytes)


# --- inside -------------------------------------------------------------------------------------


def _opened(file: Path) -> BinaryIO:
    """Raises FormatError, at once also for a pipe or device."""
    try:
        return plain_file(file)
    except (OSError, ValueError) as error:
        raise FormatError(f"{file} cannot be read: {getattr(error, 'strerror', error)}") from error


def _json(file: Path) -> Any:
    try:
        with _opened(file) as stream:
            return json.loads(stream.read())
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file} is not JSON: {error}") from error


def _leaf_rows(
    file: Path, user: str, rows: Any, shape: tuple[int, ...] | None
) -> tuple[np.ndarray, np.ndarray]:
    try:
        inputs, targets = np.asarray(rows["x"]), np.asarray(rows["y"])
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{file}: user {quoted(user)} has no regular x and y ({error})") from error
    if inputs.dtype.kind not in "biuf" or targets.dtype.kind not in "biuf":
        raise FormatError(f"{file}: user {quoted(user)} has text", hint="turn characters into numbers first")
    if len(inputs) != len(targets):
        raise FormatError(f"{file}: user {quoted(user)} has {len(inputs)} inputs and {len(targets)} targets")
    if shape is not None:
        try:
            inputs = inputs.reshape(len(inputs), *shape)
        except ValueError:
            raise FormatError(f"{file}: inputs of shape {inputs.shape[1:]} are not {shape}") from None
    return inputs, targets


def _column(path: Any, name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype == object:
        try:
            array = np.stack([np.asarray(value) for value in values])
        except ValueError:
            raise FormatError(f"{path}: rows of column {quoted(name)} differ in shape") from None
    return array


def _by_owner(x: torch.Tensor, y: torch.Tensor, owners: np.ndarray) -> Clients:
    return {str(owners[rows[0]]): Rows(x, y, rows) for rows in by_key(owners)}


def _joined(root: Path, user: str, parts: list[tuple[np.ndarray, np.ndarray]]) -> Rows:
    try:
        x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    except ValueError as error:
        raise FormatError(
            f"{root}: the rows of user {quoted(user)} differ in shape from file to file"
        ) from error
    return Rows(_numbers(root, "x", x.astype(np.float32)), _numbers(root, "y", y))


def _numbers(path: Any, name: str, array: np.ndarray, of_bytes: Any = np.int64) -> torch.Tensor:
    """Floating numbers as float32, bytes as ``of_bytes``, all others as int64."""
    if array.dtype.kind not in "biuf":
        raise FormatError(
            f"{path}: {quoted(name)} holds {array.dtype}, not numbers", hint="turn text into numbers first"
        )
    kind = np.float32 if array.dtype.kind == "f" else of_bytes if array.dtype == np.uint8 else np.int64
    return torch.from_numpy(np.ascontiguousarray(array, kind))
