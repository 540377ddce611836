"""Decide whether a column of a table is text or numbers, so that no text changes by chance.

A column of a CSV file is read as numbers only if each of its fields is one that is written back as the same
text: ``3.10`` would come back as ``3.1``, so a column that has it is text. The job file's ``types`` decides
otherwise, for any table.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from evenload.errors import quoted

ColumnType = Literal["text", "number", "boolean"]
Rows = Sequence[tuple[int, dict[str, Any] | str]]
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def number_as_written(text: str) -> int | float | None:
    """Return the number whose text in Python is exactly ``text``; None if there is no such finite number."""
    for kind in (int, float):
        try:
            number = kind(text)
            if math.isfinite(number) and str(number) == text:
                return number
        except (ValueError, OverflowError):  # of more digits than Python reads, or than a float can hold
            continue
    return None


def type_columns(rows: Rows, texts: Collection[str]) -> list[str]:
    """Turn the columns of a text table that are numbers throughout into numbers, in place.

    texts  columns that are not looked at
    Returns a note for each column of numbers that stays text because one would be written differently.
    """
    fields: dict[str, list[dict[str, Any]]] = {}
    for row in (row for _, row in rows if isinstance(row, dict)):
        for column in row:
            fields.setdefault(column, []).append(row)
    notes = []
    for column, holders in fields.items():
        if column in texts:
            continue
        numbers = [number_as_written(row[column]) for row in holders]
        if None not in numbers:
            for row, number in zip(holders, numbers, strict=True):
                row[column] = number
        elif all(_DECIMAL.fullmatch(row[column]) for row in holders):
            odd = holders[numbers.index(None)][column]
            notes.append(
                f"column {quoted(column)} is text, as {quoted(odd)} would change as a number; "
                f"job.inputs.types: {{{column}: number}} reads numbers, {{{column}: text}} ends this note"
            )
    return notes


def apply_types(row: dict[str, Any], types: Mapping[str, ColumnType]) -> list[str]:
    """Give a row's values their declared types, in place; return a sentence for each that has another."""
    faults = []
    for column, kind in types.items():
        value = row.get(column)
        if value is None:
            continue
        typed = _CONVERSIONS[kind](value)
        if typed is None:
            faults.append(f"{quoted(value)} in column {quoted(column)} is no {kind} (job.inputs.types)")
        row[column] = typed
    return faults


def _to_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def _to_number(value: Any) -> int | float | None:
    """Return the number; None of a text that is none, or is beyond a float: 12e4567 is not infinite."""
    if not isinstance(value, str):
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    text = value.strip()
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = float(text)
    is_zero = not match[1].strip("0.")
    return number if math.isfinite(number) and (number != 0 or is_zero) else None


def _to_boolean(value: Any) -> bool | None:
    return (
        value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).strip().lower())
    )


_CONVERSIONS = {"text": _to_text, "number": _to_number, "boolean": _to_boolean}
