"""Plain aligned tables, without a library: importing one would be slower than printing the table."""

from collections.abc import Collection, Sequence
from unicodedata import east_asian_width

from evenload._plain_text import plain


def format_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
) -> list[str]:
    """Lines of a table, two spaces between columns, no trailing space.

    head   [columns] titles; a column without any content is left out
    rows   [rows][columns] texts
    right  titles of columns to align right
    """
    head, *rows = [[one_line(cell) for cell in row] for row in (head, *rows)]
    kept = [c for c in range(len(head)) if any(row[c] for row in rows)]
    widths = {c: max(_width(row[c]) for row in (head, *rows)) for c in kept}
    lines = []
    for row in (head, *rows):
        cells = [_padded(row[c], widths[c], head[c] in right) for c in kept]
        lines.append("  ".join(cells).rstrip())
    return lines


def one_line(text: str) -> str:
    """``text`` as a part of one line: plain, and without line ends that would make up a line of their own."""
    return text if text.isprintable() else plain(text).replace("\n", "?").replace("\t", " ")


def format_bytes(n_bytes: int | None) -> str:
    """GiB with a decimal below 100, MiB below one GiB; a dash where it is not known."""
    if n_bytes is None:
        return "–"
    gib = n_bytes / 2**30
    if gib < 1:
        return f"{n_bytes / 2**20:.0f} MiB"
    return f"{gib:.1f} GiB" if gib < 100 else f"{gib:.0f} GiB"


def _padded(text: str, width: int, is_right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if is_right else text + space


def _width(text: str) -> int:
    """Columns that ``text`` takes in a terminal: wide letters take two."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)
