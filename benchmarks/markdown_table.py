"""The one writer of Markdown tables: columns are said in a line of text, rows are what a result has."""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from result_files import Page

__all__ = ["Table", "markdown", "rows_of", "written"]

Row = Mapping[str, Any]
NONE = "–"


def rows_of(pages: Sequence[Page]) -> list[Row]:
    return [row for page in pages for row in page["rows"]]


@dataclass(frozen=True)
class Table:
    """A table of the docs.

    columns  by " | ": ``heading``, ``heading :.2f``, ``heading = key :.2f`` or
             ``heading = {key:.2f} s, {other}``; or what makes that of the results
    n_words  so many columns stand to the left, numbers to the right
    sources  the results that it is made of, if not the one with its name
    rows     what makes the rows of the results; ``said``: what makes a line for below the table
    """

    columns: str | Callable[[Sequence[Page]], str]
    n_words: int = 1
    sources: tuple[str, ...] = ()
    rows: Callable[[Sequence[Page]], Iterable[Row]] = rows_of
    said: Callable[[Sequence[Page]], str] | None = None


def written(table: Table, pages: Sequence[Page]) -> str:
    """``table`` of these results, as Markdown."""
    columns = table.columns if isinstance(table.columns, str) else table.columns(pages)
    pairs = [_column(column) for column in columns.split(" | ")]
    lines = [[_cell(template, row) for _, template in pairs] for row in table.rows(pages)]
    text = markdown([heading for heading, _ in pairs], lines, table.n_words)
    return f"{text}\n\n{table.said(pages)}" if table.said else text


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]], n_words: int = 1) -> str:
    marks = ["---"] * n_words + ["--:"] * (len(head) - n_words)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, marks, *lines))


def _column(text: str) -> tuple[str, str]:
    heading, is_named, template = text.partition(" = ")
    key, _, spec = (template if is_named else text).partition(" :")
    heading = heading if is_named else key
    return heading.strip(), template if "{" in template else f"{{{key.strip()}:{spec}}}"


class _Cells(string.Formatter):
    """Formats the values of a row, whose keys may be any text; with a few formats more than Python has."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        value = kwargs.get(field_name)
        if value is None:
            raise KeyError(field_name)
        return value, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        return (
            FORMATS[format_spec](value)
            if format_spec in FORMATS
            else super().format_field(value, format_spec)
        )


def _cell(template: str, row: Row) -> str:
    try:
        return _Cells().vformat(template, (), row)
    except KeyError:
        return NONE


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "ms": lambda ms: f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms",
    "seconds": lambda s: f"{s:.0f}" if s >= 20 else f"{s:.1f}" if s >= 10 else f"{s:.2f}",
    "times": lambda times: f"{times:.0f}×" if times >= 10 else f"{times:.1f}×",
    "power": lambda size: f"2^{size.bit_length() - 1}",
    "proofs": lambda size: "1 proof" if size == 1 else f"2^{size.bit_length() - 1}",
    "or word": lambda found: found if isinstance(found, str) else f"{found:.3f}",
    "yes": lambda is_so: "yes" if is_so else "no",
}
