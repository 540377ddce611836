"""JSON of strangers: a text above a size is refused before it is parsed."""

import json
from typing import Any

from evenload.errors import FormatError, printable

MAX_JSON_BYTES = 10_000_000


def parse_json(text: Any, source: str, most_bytes: int = MAX_JSON_BYTES, **options: Any) -> Any:
    """The value of a JSON text (str or bytes). Raises FormatError for a larger text, or one that is no JSON.

    source   what the text is called in messages
    options  those of ``json.loads``
    """
    source = printable(source)
    if not isinstance(text, str | bytes | bytearray):
        raise FormatError(f"{source}: not JSON: a {type(text).__name__} is neither str nor bytes")
    if len(text) > most_bytes:
        said = f"{source}: {len(text):,} bytes or more, but at most {most_bytes:,} bytes of JSON are read"
        raise FormatError(said, hint="see that it is the file you mean")
    try:
        return json.loads(text, **options)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source}: not JSON: {printable(str(error))}") from None
