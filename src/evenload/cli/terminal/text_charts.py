"""Bars, sparklines and histograms in text, without colour; in ASCII if the terminal has no block letters."""

import sys
from collections.abc import Mapping, Sequence

from evenload._plain_text import seconds_text

EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"


def has_blocks() -> bool:
    """Whether standard output can show block letters."""
    try:
        (EIGHTHS + LEVELS).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def bar(share: float | None, width: int, *, ascii_only: bool = False, empty: str = " ") -> str:
    """``share`` (0..1) of ``width`` columns, to an eighth of a column where block letters are."""
    share = 0.0 if share is None else min(1.0, max(0.0, share))
    if ascii_only:
        full = round(share * width)
        return "#" * full + (empty if empty.isascii() else "-") * (width - full)
    eighths = round(share * width * 8)
    text = "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
    return text + empty * (width - len(text))


def sparkline(shares: Sequence[float | None], width: int) -> str:
    """The last ``width`` of ``shares`` (0..1), a column each; None is a gap."""
    letters = [
        " " if one is None else LEVELS[min(len(LEVELS) - 1, int(min(1.0, max(0.0, one)) * len(LEVELS)))]
        for one in shares[-width:]
    ]
    return "".join(letters).rjust(width)


def histogram_lines(
    bins: Sequence[tuple[float, float, int]], width: int, *, ascii_only: bool = False
) -> list[str]:
    """A line per bin ``(from_s, to_s, n)``: its range, a bar, the count. ``width`` columns at the most."""
    most = max((n for _, _, n in bins), default=0)
    if not most:
        return []
    dash = "-" if ascii_only else "–"
    names = [f"{short_seconds(low)} {dash} {short_seconds(high)}" for low, high, _ in bins]
    margin = max(map(len, names)) + 2
    counts = max(len(str(n)) for _, _, n in bins) + 1
    columns = max(8, width - margin - counts)
    return [
        f"{name:>{margin - 2}}  {bar(n / most, columns, ascii_only=ascii_only).rstrip()} {n}"
        for name, (_, _, n) in zip(names, bins, strict=True)
    ]


def short_seconds(seconds: float) -> str:
    """Two figures and a unit: 1.2 ms, 340 us, 15 s, 2.5 h."""
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size * 0.995:
            return f"{_two(seconds / size)} {unit}"
    return f"{_two(seconds / 1e-9)} ns"


def _two(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


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
    lines = [
        f"{name:<{margin}}{_gantt_row(slices, end_s, n_columns, idle, mark)}" for name, slices in rows.items()
    ]
    right = seconds_text(end_s)
    return [*lines, " " * margin + "0 s" + " " * max(1, n_columns - 3 - len(right)) + right]


def _gantt_row(slices: Sequence[Slice], end_s: float, n_columns: int, idle: str, mark: str) -> str:
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
