"""Elements of a large JSON array, a block at a time, in memory that does not grow with the file.

    bytes ──► up to the last "}, {" of a block: one decoder call for thousands of elements
          └─► what does not decode: element by element, with the damaged ones counted

Where a block is cut need not be known: if the text up to a place, in brackets, is an array, then that place
is between two elements. msgspec decodes into typed values and leaves out the rest, ten times faster than
Python's json; without it, or where a block is damaged, every element is decoded alone by Python's json.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from evenload._optional import is_installed
from evenload.audit.readers.trace_file import TraceFile
from evenload.errors import FormatError, quoted

BLOCK_BYTES = 4 << 20
MOST_ELEMENT = 32 << 20  # bytes of one element
MOST_HEAD = 32 << 20  # bytes before the array
MOST_TAIL = 1 << 20  # bytes behind the array
MOST_CUTS = 4  # places where a block is tried to be cut
NEAR = 1 << 16
BORDER = re.compile(rb"\}\s*,\s*\{")
BORDER_OF_TEXT = re.compile(r"\}\s*,\s*\{")
NO_SPACE = re.compile(r"[^\s,]")
DECODER = json.JSONDecoder()
INCOMPLETE, DAMAGED = -1, -2
MOST_TOKEN = 16  # characters of a number or word that the end of a block may cut

Element = TypeVar("Element")


class Shape(Generic[Element]):
    """A kind of element: how to decode many at once, and how to make one from a plain dict.

    kind   a dataclass with the fields that matter: texts, numbers, both, anything, an object within (a
           dataclass) or a list of such. One with a ``name`` in its metadata is called so in the file
    """

    def __init__(self, kind: type[Element]) -> None:
        self.plain = reader_of(kind)
        self.decode: Callable[[bytes], list[Element]] | None = None
        self.errors: tuple[type[Exception], ...] = ()
        if is_installed("msgspec"):
            import msgspec

            self.decode = msgspec.json.Decoder(list[_struct_like(kind)]).decode  # pyrefly: ignore
            self.errors = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def reader_of(kind: Any) -> Callable[[Any], Any]:
    """Return what makes a value of a field's type of a value of JSON; None of one that is of another type.

    Of a dataclass it makes an element: a field that is missing, or None, has its default; one that has none,
    or is ``needed`` by its metadata, makes the whole None.
    """
    if get_origin(kind) is list:
        one_of = reader_of(get_args(kind)[0])
        return lambda value: (
            [x for x in map(one_of, value) if x is not None] if isinstance(value, list) else None
        )
    if not is_dataclass(kind):
        return {str: _text, float: number_of, int | str: _number_or_text}.get(kind, lambda value: value)
    hints = get_type_hints(kind)
    plan = [
        (
            one.name,
            one.metadata.get("name", one.name),
            reader_of(hints[one.name]),
            one.default is MISSING or "needed" in one.metadata,
        )
        for one in fields(kind)
    ]

    def element(row: Any) -> Any:
        if not isinstance(row, dict):
            return None
        values = {}
        for name, key, read, is_needed in plan:
            value = row.get(key)
            value = None if value is None else read(value)
            if value is not None:
                values[name] = value
            elif is_needed:
                return None
        return kind(**values)  # pyrefly: ignore

    return element


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number_or_text(value: Any) -> int | str | None:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def number_of(value: object) -> float:
    """A number, also one that is written as text; nan for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _struct_like(kind: type) -> type:
    """A msgspec struct with the fields of a dataclass: decoded five times faster than the dataclass."""
    import msgspec

    hints = get_type_hints(kind)
    columns, names = [], {}
    for one in fields(kind):  # pyrefly: ignore
        names[one.name] = one.metadata.get("name", one.name)
        hint = hints[one.name]
        inner = _struct_like(hint) if is_dataclass(hint) and isinstance(hint, type) else hint
        columns.append((one.name, inner) if one.default is MISSING else (one.name, inner, one.default))
    return msgspec.defstruct(kind.__name__, columns, gc=False, rename=names)


class JsonElements(Generic[Element]):
    """The elements of the array ``key`` of a file's object, or of a file that is an array.

    head      what the object says before the array, and behind it once all was read
    n_damaged elements that could not be read
    is_whole  whether the array's end was found
    Raises FormatError if there is no such array.
    """

    def __init__(self, file: TraceFile, shape: Shape[Element], key: str) -> None:
        self.file = file
        self.shape = shape
        self.n_damaged = 0
        self.is_whole = False
        self._is_lost = False
        self.head, self._rest = _head(file, key)

    def blocks(self) -> Iterator[list[Element]]:
        """Yield lists of elements until the array or the file ends."""
        rest, is_stuck = self._rest, False
        self._rest = b""
        while not self.is_whole:
            more = self.file.read(BLOCK_BYTES)
            rest += more
            found, used = (None, 0) if not more or is_stuck else self._whole_block(rest)
            if found is None:
                found, used = self._one_by_one(rest, is_last=not more)
            is_stuck = used == 0
            rest = rest[used:]
            if len(rest) > MOST_ELEMENT:
                self.n_damaged += 1
                rest = rest[-NEAR:]
            if found:
                yield found
            if not more:
                return

    def _whole_block(self, text: bytes) -> tuple[list[Element] | None, int]:
        """The elements up to the last border of a block, and the bytes that they are; None if damaged."""
        if self.shape.decode is None:
            return None, 0
        near = max(0, len(text) - NEAR)
        borders = [match.span() for match in BORDER.finditer(text, near)]
        if not borders:
            return None, 0
        for start, stop in reversed(borders[-MOST_CUTS:]):
            try:
                return self.shape.decode(b"[%b]" % text[: start + 1]), stop - 1
            except self.shape.errors:
                continue
        return None, 0

    def _one_by_one(self, block: bytes, *, is_last: bool) -> tuple[list[Element], int]:
        """The elements of a block, and the bytes that are done with; what may go on in the next is left."""
        text = block.decode("utf-8", "replace") if is_last else _whole_letters(block)
        found: list[Element] = []
        at = done = 0
        while not self.is_whole:
            begin = NO_SPACE.search(text, at)
            at = done = begin.start() if begin else len(text)
            if begin is None:
                break
            value, after = _decoded(text, at)
            if text[at] == "]" and not (self._is_lost and (BORDER_OF_TEXT.search(text, at) or not is_last)):
                self.is_whole = True
                self._read_tail(text[at + 1 : at + 1 + MOST_TAIL])
            elif after >= 0:
                at = after
                one = self.shape.plain(value)
                self._is_lost = self._is_lost and one is None
                if one is None:
                    self.n_damaged += not self._is_lost
                else:
                    found.append(one)
            elif after == INCOMPLETE and not is_last:
                break
            else:
                at = self._next(text, at)
        return found, len(text[:done].encode("utf-8", "replace")) if not is_last else len(block)

    def _read_tail(self, text: str) -> None:
        """Take what a file's object says behind the array, too, if it is not long."""
        text += self.file.read(MOST_TAIL).decode("utf-8", "replace")
        value, _ = _decoded("{" + text.lstrip().removeprefix(","), 0)
        if isinstance(value, dict):
            self.head = {**value, **self.head}

    def _next(self, text: str, at: int) -> int:
        """Where the element after a damaged one may begin. It may be one within it: then we are lost."""
        self.n_damaged += not self._is_lost
        self._is_lost = True
        border = BORDER_OF_TEXT.search(text, at + 1)
        return border.end() - 1 if border else len(text)


def _decoded(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at ``at`` and its end; INCOMPLETE if the text ends in it, DAMAGED if it is none."""
    try:
        return DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        is_cut = error.msg.startswith("Unterminated") or error.pos >= len(text) - MOST_TOKEN
        return None, INCOMPLETE if is_cut else DAMAGED
    except (ValueError, RecursionError):
        return None, DAMAGED


def _whole_letters(block: bytes) -> str:
    """The text of a block, as far as its last letter is whole; bytes that are no text are "?"."""
    for n_cut in range(4):
        try:
            return block[: len(block) - n_cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
    return block.decode("ascii", "replace").replace("\ufffd", "?")


def _head(file: TraceFile, key: str) -> tuple[dict[str, Any], bytes]:
    """What a file's object says before its array, and the first bytes of the array."""
    text = file.read(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return {}, text[1:]
    begin = re.compile(rb'"%b"\s*:\s*\[' % key.encode())
    at = 0
    while text.startswith(b"{"):
        for match in begin.finditer(text, at):
            value, _ = _decoded(text[: match.end()].decode("utf-8", "replace") + "]}", 0)
            if isinstance(value, dict):
                return value, text[match.end() :]
        at = max(0, len(text) - 64)
        more = file.read(BLOCK_BYTES)
        if not more or len(text) > MOST_HEAD:
            break
        text += more
    raise FormatError(
        f"{quoted(str(file.path), 200)} is no trace: it is no JSON array, nor an object with {quoted(key)}",
        hint="give a trace as torch's profiler, ray.timeline() or Perfetto write it",
    )
