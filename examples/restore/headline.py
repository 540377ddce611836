"""The figures of a whole run of the example, from its result rows alone."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import numpy as np


def headline(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Mean PSNR before and after for each noise level, and how well the score ranks pictures by true noise.

    ``score_rank_correlation`` is Spearman's between the score of the noised pictures and minus their true
    noise level. Pictures of one level are ties, so that even a perfect score stays below 1 (0.943 with three
    levels alike in number). Figures whose truth is not known are left out.
    """
    figures: dict[str, float] = {}
    by_level: dict[float, list[Mapping[str, Any]]] = defaultdict(list)
    done = [(row["inputs"], row["outputs"]) for row in rows if row["error"] is None]
    for inputs, outputs in done:
        if "sigma" in inputs and "psnr_db" in outputs:
            by_level[inputs["sigma"]].append(outputs)
    for sigma, outputs in sorted(by_level.items()):
        for name in ("psnr_before_db", "psnr_db", "psnr_gain_db"):
            figures[f"{name}_at_{sigma:g}"] = round(fmean(output[name] for output in outputs), 2)
    if len(by_level) > 1:
        truth = [-inputs["sigma"] for inputs, _ in done if "sigma" in inputs]
        scores = [outputs["score_before"] for inputs, outputs in done if "sigma" in inputs]
        figures["score_rank_correlation"] = round(rank_correlation(scores, truth), 3)
    if done:
        figures["score_before"] = round(fmean(outputs["score_before"] for _, outputs in done), 3)
        figures["score_after"] = round(fmean(outputs["score"] for _, outputs in done), 3)
    return figures


def rank_correlation(first: Iterable[float], second: Iterable[float]) -> float:
    """Spearman's rank correlation; ties share their mean rank."""
    ranks = [_ranks(np.asarray(list(values), dtype=float)) for values in (first, second)]
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]
