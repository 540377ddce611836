"""Words of strangers on their way to a terminal: no escape sequence in them is obeyed.

What a file, item, worker, driver or peer says may hold sequences that recolour, move and rename a terminal,
fill its clipboard (OSC 52), or turn the direction of what follows (bidi overrides).
"""

import re

# Of a message: longer ones are somebody's input, whatever code it came through.
MOST_WORD = 200
MOST_LINE = 1_000
MOST_LINES = 100
MOST_CHARACTERS = 6_000

# C0 but for tab and newline, DEL and C1; separators of lines; embeddings, overrides and isolates of
# direction; interlinear marks; halves of surrogate pairs, one of which may stand for a byte 0x9b.
_C0 = "\x00-\x08\x0b-\x1f"
_OBEYED = _C0 + "\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff"
# Colours alone, which logs are full of: a longer sequence could begin in one stranger's word and end in
# another's, and take ours between them with it.
_COLOUR = re.compile(r"\x1b\[[0-9;:]*+m")
_LONG_WORD = re.compile(rf"\S{{{MOST_WORD + 1},}}+")
_UNSEEN = re.compile(f"[{_OBEYED}]")
_ESCAPED = re.compile(f"[{_OBEYED.removeprefix(_C0)}]")


def plain(text: str) -> str:
    """Return ``text`` as any terminal may show it: sequences that colour go, all other controls become "?".

    Newlines and tabs stay, and letters of every script. The same text comes back for what is plain already.
    """
    if text.isprintable():
        return text
    return _UNSEEN.sub("?", _COLOUR.sub("", text.replace("\r\n", "\n")))


def number_text(value: float, n_digits: int = 3) -> str:
    """Write a number for a person: 0.00123, 12.3, 1,234; up to 1e15 without a power of ten."""
    shown = f"{value:.{n_digits}g}"
    return shown if "e+" not in shown or abs(value) >= 1e15 else format(value, ",.0f")


def seconds_text(seconds: float, n_digits: int = 3) -> str:
    """Write a time for a person: 12 µs, 34.5 ms, 0.6 s, 12.3 min, 1,250 h; never with a power of ten."""
    long = abs(seconds)
    size, unit = 1.0, "s"
    if 600 <= long < float("inf"):
        size, unit = (3600.0, "h") if long >= 7200 else (60.0, "min")
    elif 0 < long < 0.1:
        size, unit = (1e-3, "ms") if long >= 1e-3 else (1e-6, "µs")
    return f"{number_text(seconds / size, n_digits if long >= 1 else 3)} {unit}"


def shortened(text: str) -> str:
    """Return a message with its overlong words, lines and lists of lines cut in their middle.

    At most ``MOST_CHARACTERS`` are left. A message that a person reads comes back as it is.
    """
    if len(text) <= MOST_WORD:
        return text
    lines = text.split("\n")
    if len(lines) > MOST_LINES:
        head, tail = MOST_LINES * 3 // 4, MOST_LINES // 4
        lines = [*lines[:head], f"  ... {len(lines) - head - tail} more ...", *lines[-tail:]]
    # Lines are cut first: the time for words is their number times the square of their length.
    kept = (_LONG_WORD.sub(lambda word: _cut(word[0], MOST_WORD), _cut(one, 10 * MOST_LINE)) for one in lines)
    whole = "\n".join(_cut(one, MOST_LINE) for one in kept)
    return _cut(whole, MOST_CHARACTERS)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - tail - 1]}…{text[-tail:]}"


def escaped_json(text: str) -> str:
    """Return JSON ``text`` with ``\\u`` escapes for what ``plain`` takes away: no value changes.

    JSON itself escapes those below a space, and has no others outside of its strings.
    """
    return text if text.isprintable() else _ESCAPED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
