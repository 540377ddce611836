"""Fits of ``SizeModel`` to measured items, and how well they predict items that they have not seen.

Seconds are compared by their logarithms, within each device: so how fast a device is does not matter, and
all of them teach one law. Held-back errors are those of leaving one out, in closed form: residual / (1 -
leverage).
"""

from collections.abc import Sequence
from math import exp, isfinite, log

import numpy as np
from numpy.typing import NDArray

from evenload.balance.sizes.size_model import MOST_EXPONENT, MOST_FEATURES, Features, Sample, SizeModel, level

Array = NDArray[np.float64]

LEAST_GAIN = 0.15  # a further feature must take away this share of the squared error
RIDGE = 1e-3
OUTLIER = 2.5  # residuals beyond so many deviations count less


class Samples:
    """Samples as arrays: ``names`` of features, ``x`` [samples, names] levels, ``y`` [samples] log seconds.

    Both are centred: what is left are differences between samples of one device. ``is_held_back``: samples
    whose device has another one, so that they can be predicted without being seen.
    """

    def __init__(self, samples: Sequence[Sample]):
        self.names = sorted({name for sample in samples for item in sample.items for name in item})
        rows = [[_mean_level(sample.items, name) for name in self.names] for sample in samples]
        self.levels = np.array(rows, dtype=float).reshape(len(samples), len(self.names))
        seconds = np.log([max(sample.item_s, 1e-9) for sample in samples])
        devices = [sample.device for sample in samples]
        groups = [[at for at, name in enumerate(devices) if name == device] for device in sorted({*devices})]
        self.x, self.y = self.levels.copy(), seconds.copy()
        self.leverage = np.zeros(len(samples))
        for group in groups:
            self.x[group] -= self.x[group].mean(0)
            self.y[group] -= self.y[group].mean()
            self.leverage[group] = 1 / len(group)
        self.is_held_back = self.leverage < 1
        self.n_free = int(self.is_held_back.sum()) - sum(len(group) > 1 for group in groups)

    def error_of_mean(self) -> float:
        """Squared error if each sample is predicted by the mean of its device's others."""
        return self._held_back(self.y, self.leverage)

    def error_of_law(self, model: SizeModel) -> float:
        """Error of a law that was fitted elsewhere, on the same samples."""
        powers = np.array([model.powers.get(name, 0.0) for name in self.names])
        return self._held_back(self.y - self.x @ powers, self.leverage)

    def fit(self, columns: list[int]) -> tuple[Array, float, Array]:
        """Powers of some features, the squared held-back error, and the residuals."""
        x, y = self.x[:, columns], self.y
        _, first, _ = _weighted(x, y, np.ones(len(y)))
        spread = max(1.4826 * float(np.median(np.abs(first))), 0.05)
        weights = np.minimum(1.0, OUTLIER * spread / np.maximum(np.abs(first), 1e-12))
        powers, residual, leverage = _weighted(x, y, weights)
        return powers, self._held_back(residual, self.leverage + leverage), residual

    def _held_back(self, residual: Array, leverage: Array) -> float:
        which = self.is_held_back
        return float(np.sum((residual[which] / np.maximum(1 - leverage[which], 0.05)) ** 2))


def _weighted(x: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Powers, residuals and leverages of a weighted least-squares fit."""
    weighted = (x * weights[:, None]).T
    inverse = np.linalg.inv(weighted @ x + RIDGE * np.eye(x.shape[1]))
    powers = inverse @ weighted @ y
    return powers, y - x @ powers, weights * np.einsum("ij,jk,ik->i", x, inverse, x)


def fit(samples: Samples) -> tuple[SizeModel, float] | None:
    """The law that predicts items held back best, and its squared error; None if there is none.

    Features are added one by one, as long as each takes away ``LEAST_GAIN`` of the error.
    """
    usable = [at for at in range(len(samples.names)) if np.ptp(samples.x[:, at]) > 1e-6]
    chosen: list[int] = []
    best, found = samples.error_of_mean(), None
    while len(chosen) < min(MOST_FEATURES, samples.n_free // 3):
        tries = [(samples.fit([*chosen, at]), at) for at in usable if at not in chosen]
        if not tries:
            break
        (powers, error, residual), at = min(tries, key=lambda one: one[0][1])
        if error > (1 - LEAST_GAIN) * best:
            break
        chosen.append(at)
        best, found = error, (powers, residual)
    if found is None:
        return None
    return _law(samples, chosen, *found, best), best


def _law(samples: Samples, chosen: list[int], powers: Array, residual: Array, error: float) -> SizeModel:
    exponents = np.clip(samples.levels[:, chosen] @ powers, -MOST_EXPONENT, MOST_EXPONENT)
    spread = float(np.sqrt(error / max(1, int(samples.is_held_back.sum()))))
    return SizeModel(
        {samples.names[at]: float(power) for at, power in zip(chosen, powers, strict=True)},
        -log(float(np.mean(np.exp(exponents)))),
        min(exp(spread) - 1, 9.99),
        len(residual),
    )


def _mean_level(items: Sequence[Features], name: str) -> float:
    values = [item.get(name, 0.0) for item in items]
    if isfinite(total := sum(values)):
        return level(total / len(values))
    return level(sum(value / 2 / len(values) for value in values))  # beyond all floats: half is as good
