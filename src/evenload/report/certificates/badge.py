"""A badge: how close to the best possible, as a small SVG that needs no server."""

import math
from fractions import Fraction

__all__ = ["badge"]

LABEL = "of the best possible"
LETTER_PX = 6.3  # of the font at 11 px, on average; textLength makes it exact
COLOURS = ((95, "#2e7d32"), (80, "#8d6e00"), (0, "#c62828"))  # white letters can be read on each


def badge(share: Fraction | float) -> str:
    """Return an SVG that says which share of the best possible was reached, in whole percent, rounded down.

    share  bound over achieved, 0 to 1
    """
    percent = max(0, min(100, math.floor(share * 100)))
    colour = next(one for least, one in COLOURS if percent >= least)
    words = (("evenload", "#37474f"), (f"{percent} % {LABEL}", colour))
    widths = [round(len(text) * LETTER_PX) + 12 for text, _ in words]
    parts, at = [], 0
    for (text, fill), width in zip(words, widths, strict=True):
        parts.append(f'<rect x="{at}" width="{width}" height="20" fill="{fill}"/>')
        parts.append(f'<text x="{at + 6}" y="14" textLength="{width - 12}">{text}</text>')
        at += width
    title = " ".join(text for text, _ in words)
    style = 'fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{at}" height="20" role="img" aria-label="{title}">'
        f"<title>{title}</title><g {style}>{''.join(parts)}</g></svg>\n"
    )
