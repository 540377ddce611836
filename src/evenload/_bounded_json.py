"""JSON of strangers: a file or text above a size is refused before it is read."""

import json
import os
from pathlib import Path
from typing import Any

from evenload.errors import FormatError, printable

__all__ = ["MAX_JSON_BYTES", "parse_json", "read_json_file"]

MAX_JSON_BYTES = 10_000_000


def read_json_file(path: str | os.PathLike, most_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a file. Raises FormatError, unread, for a larger one; OSError if it cannot be read."""
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # A pipe has no size, and a file may grow.
        content = file.read(most_bytes + 1) if size <= most_bytes else b""
    size = max(size, len(content))
    if size > most_bytes:
        raise _too_large(printable(str(path)), size, most_bytes)
    return content


def parse_json(text: Any, source: str, most_bytes: int = MAX_JSON_BYTES, **options: Any) -> Any:
    """The value of a JSON text (str or bytes). Raises FormatError for a larger text, or one that is no JSON.

    source   what the text is called in messages
    options  those of ``json.loads``
    """
    source = printable(source)
    if not isinstance(text, str | bytes | bytearray):
        raise FormatError(f"{source}: not JSON: a {type(text).__name__} is neither str nor bytes")
    if len(text) > most_bytes:
        raise _too_large(source, len(text), most_bytes)
    try:
        return json.loads(text, **options)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source}: not JSON: {printable(str(error))}") from None


def _too_large(source: str, size: int, most_bytes: int) -> FormatError:
    return FormatError(
        f"{source}: {size:,} bytes or more, but at most {most_bytes:,} bytes of JSON are read",
        hint="see that it is the file you mean",
    )
