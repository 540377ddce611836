"""Small tables and timelines for notebooks, as HTML without scripts.

The ``_repr_html_`` of a value calls these functions, which escape all text.
"""

from collections.abc import Mapping, Sequence
from html import escape

from evenload._plain_text import number_text, seconds_text

# Okabe and Ito's colours, on any background.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#b8608f", "#56b4e9", "#b5a400")
_ROW, _BAR, _LEFT, _WIDTH = 22, 15, 110, 640
MAX_SLICES = 4_000
MAX_BARS = 128


def page(title: str, *parts: str) -> str:
    """Put ``title`` (text) above ``parts`` (HTML)."""
    return f'<div style="line-height:1.5"><div><b>{_text(title)}</b></div>{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Make a table with numbers aligned right; a cell made by ``share`` is a bar."""
    titles = "".join(f'<th style="text-align:left">{_text(one)}</th>' for one in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


class share:
    """A share of one as a bar with its percentage."""

    def __init__(self, value: float | None):
        self.value = value


def gantt(rows: Mapping[str, Sequence[tuple[float, float, int]]], end_s: float) -> str:
    """Draw a timeline as SVG. ``rows``: name -> slices ``(start_s, stop_s, colour number)``."""
    if not end_s > 0 or not rows:
        return ""
    scale, parts, n_left = (_WIDTH - _LEFT) / end_s, [], MAX_SLICES
    for i, (name, slices) in enumerate(rows.items()):
        y = i * _ROW
        parts.append(
            f'<text x="0" y="{y + 12}" font-size="12" fill="currentColor">{_text(str(name)[:16])}</text>'
        )
        for start_s, stop_s, number in slices[:n_left]:
            x, width = _LEFT + start_s * scale, max(0.5, (stop_s - start_s) * scale - 0.5)
            colour = COLOURS[number % len(COLOURS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}" rx="1.5"/>'
            )
        n_left = max(0, n_left - len(slices))
    height = len(rows) * _ROW + 14
    for x, anchor, text in ((_LEFT, "start", "0 s"), (_WIDTH, "end", f"{seconds_text(end_s)}")):
        parts.append(
            f'<text x="{x}" y="{height - 2}" font-size="11" text-anchor="{anchor}" '
            f'fill="currentColor">{text}</text>'
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" style="max-width:100%" role="img" '
        f'aria-label="timeline">{"".join(parts)}</svg>'
    )


def bars(rows: Mapping[str, float], mark: float) -> str:
    """Draw a bar for each value >= 0 as SVG, and a line across at ``mark``; at most ``MAX_BARS`` of them."""
    shown = list(rows.items())[:MAX_BARS]
    longest = max([mark, *(value for _, value in shown)], default=0.0)
    if not shown or not longest > 0:
        return ""
    scale, parts = (_WIDTH - _LEFT - 50) / longest, []
    for i, (name, value) in enumerate(shown):
        y, width = i * _ROW, value * scale
        colour = COLOURS[1] if value > 1.005 * mark else COLOURS[0]
        parts.append(
            f'<text x="0" y="{y + 12}" font-size="12" fill="currentColor">{_text(str(name)[:16])}</text>'
            f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}" rx="1.5"/>'
            f'<text x="{_WIDTH}" y="{y + 12}" font-size="12" text-anchor="end" '
            f'fill="currentColor">{value:.2f}</text>'
        )
    height = len(shown) * _ROW
    line = f'x="{_LEFT + mark * scale:.1f}" y="0" width="1.5" height="{height - _ROW + _BAR}"'
    parts.append(f'<rect {line} fill="currentColor"/>')
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" style="max-width:100%" role="img" '
        f'aria-label="bars">{"".join(parts)}</svg>'
    )


def _cell(value: object) -> str:
    if isinstance(value, share):
        if value.value is None:
            return '<td style="text-align:right">–</td>'
        width = 80 * max(0.0, min(1.0, value.value))
        look = f"display:inline-block;background:{COLOURS[0]};height:9px;width:{width:.0f}px"
        bar = f'<span style="{look}"></span>'
        return f'<td style="text-align:left;white-space:nowrap">{bar} {value.value:.0%}</td>'
    if value is None:
        return '<td style="text-align:right">–</td>'
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = number_text(value, 4) if isinstance(value, float) else str(value)
        return f'<td style="text-align:right">{text}</td>'
    return f'<td style="text-align:left">{_text(str(value))}</td>'


def _text(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))
