"""The figures of a run of the example: the mean score of each category."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any


def headline(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """``score_<category>`` for each category in order of appearance, and ``score`` over all."""
    scores: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["status"] == "done":
            scores[row["group"]].append(row["outputs"]["score"])
    figures = {f"score_{category}": round(fmean(some), 3) for category, some in scores.items()}
    if scores:
        figures["score"] = round(fmean(score for some in scores.values() for score in some), 3)
    return figures
