"""A timeline in text: a row per device, a letter per slice of time, no colour."""

from collections.abc import Mapping, Sequence

from evenload._plain_text import seconds_text

BLOCKS = {"work": "█▓", "copy": "▒", "lost": "x", "start": "░", "wait": "·"}
ASCII = {"work": "#=", "copy": "c", "lost": "x", "start": "s", "wait": "."}

Slice = tuple[float, float, str]


def gantt_lines(
    rows: Mapping[str, Sequence[Slice]], end_s: float, width: int, *, ascii_only: bool = False
) -> list[str]:
    """Lines of a Gantt picture, ``width`` columns wide at the most, with a scale under it.

    rows        device -> slices ``(start_s, stop_s, kind)`` in order; kind: work | copy | lost | start
    ascii_only  for terminals that have no block letters

    Neighbouring chunks of work alternate between two letters; a column shows what fills most of it.
    """
    letters = ASCII if ascii_only else BLOCKS
    lettered = {
        name: [
            (start_s, stop_s, letters[kind][number % len(letters[kind])])
            for number, (start_s, stop_s, kind) in enumerate(slices)
        ]
        for name, slices in rows.items()
    }
    return lettered_lines(lettered, end_s, width, letters["wait"], mark=letters["lost"])


def lettered_lines(
    rows: Mapping[str, Sequence[Slice]], end_s: float, width: int, idle: str, *, mark: str = ""
) -> list[str]:
    """Lines of a Gantt picture as ``gantt_lines``, of slices ``(start_s, stop_s, letter)``.

    A column shows what fills most of it, if that is at least half; ``mark`` is a letter that always shows.
    """
    margin = max((len(name) for name in rows), default=0) + 1
    n_columns = max(10, width - margin)
    if not end_s > 0:
        return []
    lines = [f"{name:<{margin}}{_row(slices, end_s, n_columns, idle, mark)}" for name, slices in rows.items()]
    right = seconds_text(end_s)
    return [*lines, " " * margin + "0 s" + " " * max(1, n_columns - 3 - len(right)) + right]


def _row(slices: Sequence[Slice], end_s: float, n_columns: int, idle: str, mark: str) -> str:
    per_column = end_s / n_columns
    row, most = [idle] * n_columns, [per_column / 2] * n_columns
    for start_s, stop_s, letter in slices:
        first = min(n_columns - 1, int(start_s / per_column))
        for column in range(first, min(n_columns, int(stop_s / per_column) + 1)):
            share = min(stop_s, (column + 1) * per_column) - max(start_s, column * per_column)
            if share >= most[column]:
                most[column], row[column] = share, letter
            elif letter == mark and share > 0:
                row[column] = letter
    return "".join(row)
