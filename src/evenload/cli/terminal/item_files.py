"""Items from files, read as they are needed, and rows of results, written as they come."""

import codecs
import contextlib
import csv
import dataclasses
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from evenload._plain_text import escaped_json
from evenload._private_files import is_stream, lines_within
from evenload._terminal import end_with_reader, print_line
from evenload.errors import ConfigError, EvenloadError, TaskError, quoted

FORMATS = ("auto", "lines", "jsonl", "json", "csv")
MOST_LINE_BYTES = 256 << 20
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv"}


def stream_items(path: str, format_: str = "auto") -> Iterator[Any]:
    """Read the items in ``path`` ("-": standard input), one at a time.

    lines  each line as text, without its end     jsonl  each line as JSON, empty ones left out
    csv    each row as a dict by the header       json   the elements of one list
    auto   by the suffix; lines if that says nothing
    Raises ConfigError if the file cannot be read, with the line where it is not of its format.
    """
    kind = SUFFIXES.get(Path(path).suffix.lower(), "lines") if format_ == "auto" else format_
    if path != "-" and not is_stream(path):
        with _reading(path):
            open(path, "rb").close()
    reader: dict[str, Callable[[Iterator[str], str], Iterator[Any]]] = {
        "lines": _lines,
        "jsonl": _jsonl,
        "json": _json,
        "csv": _csv,
    }
    return _read(path, reader[kind])


def count_items(path: str, format_: str = "auto") -> int | None:
    """Count the items for the progress bar; None if that takes more than a look at the lines."""
    kind = SUFFIXES.get(Path(path).suffix.lower(), "lines") if format_ == "auto" else format_
    if path == "-" or kind not in ("lines", "jsonl") or not Path(path).is_file():
        return None
    with _reading(path), open(path, "rb") as file:
        return sum(1 for line in file if kind == "lines" or line.strip())


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Enclose what reads ``path``, so that an error of the file system names it."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="check the path, and the disk it lies on"
        ) from error


def _read(path: str, reader: Callable[[Iterator[str], str], Iterator[Any]]) -> Iterator[Any]:
    with _reading(path), _standard_input() if path == "-" else open(path, "rb") as file:
        yield from reader(_decoded(file, path), path)


def _standard_input() -> AbstractContextManager[BinaryIO]:
    """Standard input with a buffer of our own.

    Python ends by locking that of ``sys.stdin``, and dies of it if a thread still reads there.
    """
    if sys.stdin is None:
        raise ConfigError("standard input is closed", hint="name a file, or pipe the items in")
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except (OSError, AttributeError):  # a program has put something else in its place
        return nullcontext(sys.stdin.buffer)


def _decoded(file: BinaryIO, path: str) -> Iterator[str]:
    """Lines of text with their ends. Raises ConfigError with the line that is not UTF-8."""
    for number, line in enumerate(lines_within(file, path, MOST_LINE_BYTES), 1):
        line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{path}, line {number}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8",
                hint="convert it first: iconv -f latin1 -t utf-8",
            ) from None


def _lines(lines: Iterator[str], path: str) -> Iterator[str]:
    for line in lines:
        yield line.rstrip("\r\n")


def _jsonl(lines: Iterator[str], path: str) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(
                    f"{path}, line {number}: {error}", hint="write one JSON value per line"
                ) from None


def _json(lines: Iterator[str], path: str) -> Iterator[Any]:
    text = "".join(lines)
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(items, list):
        raise ConfigError(
            f"{path} holds a {type(items).__name__}, not a list", hint="write [item, item, ...]"
        )
    yield from items


def _csv(lines: Iterator[str], path: str) -> Iterator[dict[str, str]]:
    rows = csv.DictReader(lines)
    try:
        yield from rows
    except csv.Error as error:
        raise ConfigError(f"{path}, line {rows.line_num}: {error}") from None


def row_of(index: int, result: Any) -> tuple[dict[str, Any], str]:
    """Make the row of one result or TaskError, and the same as a line of JSON.

    Raises TypeError if the result is no JSON and nothing that is easily made of it.
    """
    row: dict[str, Any] = {"index": index}
    if isinstance(result, TaskError):
        cause = result.__cause__
        row["error"] = {"type": type(cause or result).__name__, "message": str(cause or result.message)}
    else:
        row["result"] = result
    return row, row_json(row, "utf-8")


def _plain(value: Any) -> Any:
    """Convert what is nearly JSON: arrays, numbers of numpy, dataclasses, paths, sets."""
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


def row_json(row: Any, encoding: str | None = None) -> str:
    """Write ``row`` as JSON that ``encoding`` can hold; None: as ASCII.

    Characters that the encoding lacks, and halves of surrogate pairs, become ``\\u`` escapes; numbers that
    are not finite become null.
    """
    try:
        text = json.dumps(row, ensure_ascii=encoding is None, default=_plain, allow_nan=False)
    except ValueError:
        row = json.loads(json.dumps(row, default=_plain), parse_constant=lambda _: None)
        text = json.dumps(row, ensure_ascii=encoding is None)
    text = escaped_json(text)
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return json.dumps(row, default=_plain)
    return text


def is_utf8(encoding: str | None) -> bool:
    """Whether ``encoding`` is a name of UTF-8."""
    try:
        return codecs.lookup(encoding or "ascii").name == "utf-8"
    except LookupError:
        return False


def _draft(part: Path) -> TextIO:
    """Open the draft of an output, which nobody else writes. Raises OSError, ConfigError."""
    while True:
        file = part.open("a", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if part.exists() and os.path.samestat(os.fstat(file.fileno()), part.stat()):
                file.truncate(0)
                return file
        except BlockingIOError:
            file.close()
            raise ConfigError(
                f"another program writes {quoted(str(part))}", hint="wait for it, or name another file"
            ) from None
        file.close()  # it has got its name meanwhile


class RowWriter:
    """An output for rows: standard output, or a file that gets its name when the run ends.

    Where the run ends by an error, a file of that name that was there before stays, and the rows are in the
    ``.part`` file beside it. A symlink stays, and what it leads to is written. A pipe or device is written
    itself, without ``.part``. Raises ConfigError if the file cannot be made, or another program writes it,
    EvenloadError if a row cannot be written (a full disk), and BrokenPipeError if the reader has left.
    """

    def __init__(self, path: Path | None, *, is_mute: bool = False):
        self._target: Path | None = None  # what the .part file is renamed to
        self._part: Path | None = None
        self._file: TextIO | None = None if is_mute else sys.stdout
        self._name = "standard output" if path is None else str(path)
        self._owns_file, self._is_broken = path is not None, False
        if path is None:
            if sys.__stdout__ is None:  # what stands in its place takes everything, and nobody sees it
                raise ConfigError("standard output is closed", hint="give -o FILE for the rows")
            if not is_mute:
                end_with_reader()
            return
        if not is_stream(path):
            self._target = Path(os.path.realpath(path))
            self._part = self._target.with_name(self._target.name + ".part")
        try:
            self._file = path.open("w", encoding="utf-8") if self._part is None else _draft(self._part)
        except OSError as error:
            raise ConfigError(f"{self._part or path} cannot be written: {error.strerror}") from error

    def write(self, line: str) -> None:
        if self._file is None:
            return
        if not (self._owns_file or line.isascii() or is_utf8(self._file.encoding)):
            line = row_json(json.loads(line))
        with self._named_errors():
            self._file.write(line + "\n")

    def flush(self) -> None:
        if self._file is not None:
            with self._named_errors():
                self._file.flush()

    def close(self, *, is_cut: bool = False) -> None:
        """Let the file have its name. ``is_cut``: the run has ended by an error."""
        if self._file is None or not self._owns_file:
            return self.flush()
        try:
            if not self._is_broken:
                self.flush()
            with self._named_errors():
                if self._part is not None and self._target is not None:
                    os.fsync(self._file.fileno())
                    if not (self._is_broken or (is_cut and self._target.exists())):
                        self._part.replace(self._target)
                    elif self._part.stat().st_size:
                        print_line(f"note: {self._target} is as it was; the rows are in {self._part}")
                    else:
                        self._part.unlink()
        finally:
            with contextlib.suppress(OSError):
                self._file.close()
        return None

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            self._is_broken = True
            raise EvenloadError(
                f"{self._name} cannot be written: {error.strerror}", hint="make room, or write it elsewhere"
            ) from error
