"""Items from files, read as they are needed, and rows of results, written as they come."""

import csv
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TextIO

from evenload.errors import ConfigError, FormatError, TaskError

__all__ = ["FORMATS", "RowWriter", "count_items", "read_items", "row_of"]

FORMATS = ("auto", "lines", "jsonl", "json", "csv")
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv"}


def read_items(path: str, format_: str = "auto") -> Iterator[Any]:
    """The items in ``path`` ("-": standard input), one at a time.

    lines  each line as text, without its end     jsonl  each line as JSON, empty ones left out
    csv    each row as a dict by the header       json   the elements of one list
    auto   by the suffix; lines if that says nothing
    Raises ConfigError if there is no such file, FormatError with the line that cannot be read.
    """
    kind = SUFFIXES.get(Path(path).suffix.lower(), "lines") if format_ == "auto" else format_
    try:
        if path != "-":
            open(path, "rb").close()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    reader: dict[str, Callable[[TextIO, str], Iterator[Any]]] = {
        "lines": _lines,
        "jsonl": _jsonl,
        "json": _json,
        "csv": _csv,
    }
    return _read(path, reader[kind])


def count_items(path: str, format_: str = "auto") -> int | None:
    """How many items there are if that is quick to say, for the progress bar; None otherwise."""
    kind = SUFFIXES.get(Path(path).suffix.lower(), "lines") if format_ == "auto" else format_
    if path == "-" or kind not in ("lines", "jsonl") or not Path(path).is_file():
        return None
    with open(path, "rb") as file:
        return sum(1 for line in file if kind == "lines" or line.strip())


def _read(path: str, reader: Callable[[TextIO, str], Iterator[Any]]) -> Iterator[Any]:
    if path == "-":
        yield from reader(sys.stdin, path)
        return
    with open(path, encoding="utf-8", newline="") as file:
        yield from reader(file, path)


def _lines(file: TextIO, path: str) -> Iterator[str]:
    for line in file:
        yield line.rstrip("\r\n")


def _jsonl(file: TextIO, path: str) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise FormatError(
                    f"{path}, line {number}: {error}", hint="write one JSON value per line"
                ) from None


def _json(file: TextIO, path: str) -> Iterator[Any]:
    try:
        items = json.load(file)
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from None
    if not isinstance(items, list):
        raise FormatError(
            f"{path} holds a {type(items).__name__}, not a list", hint="write [item, item, ...]"
        )
    yield from items


def _csv(file: TextIO, path: str) -> Iterator[dict[str, str]]:
    yield from csv.DictReader(file)


def row_of(index: int, result: Any) -> tuple[dict[str, Any], str]:
    """The row of one result or TaskError, and the same as a line of JSON.

    Raises TypeError if the result is no JSON and nothing that is easily made of it.
    """
    row: dict[str, Any] = {"index": index}
    if isinstance(result, TaskError):
        cause = result.__cause__
        row["error"] = {"type": type(cause or result).__name__, "message": str(cause or result.message)}
    else:
        row["result"] = result
    return row, json.dumps(row, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """JSON for what is nearly JSON: arrays, numbers of numpy, dataclasses, paths, sets."""
    for method in ("tolist", "to_json"):
        if callable(getattr(value, method, None)):
            return getattr(value, method)()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a {type(value).__name__} is no JSON")


class RowWriter:
    """Writes rows to standard output, or to a file that takes its name when the run ends, however it ends."""

    def __init__(self, path: Path | None, *, is_mute: bool = False):
        self._path = path
        self._part = path.with_name(path.name + ".part") if path is not None else None
        self._file: IO[str] | None = None if is_mute else sys.stdout
        if self._part is not None:
            try:
                self._file = self._part.open("w", encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"{self._part} cannot be written: {error.strerror}") from error

    def write(self, line: str) -> None:
        if self._file is not None:
            self._file.write(line + "\n")

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._part is None or self._path is None or self._file is None:
            return self.flush()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.replace(self._path)
