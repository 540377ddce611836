"""Made-up traces with the statistics of real ones: spread of loads, drift over time, changes of domain."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import choice
from evenload.errors import ConfigError
from evenload.moe.trace import Trace


@dataclass(frozen=True, slots=True)
class Popularity:
    """A model of how often a router chooses each expert, from window to window.

    kind    "log-normal": ``spread`` is the standard deviation of the logarithm; "zipf": the exponent
    drift   0 to 1: how much of the logarithms' deviation is new in each window (0: they stay; 1: all is new)
    shift   windows until another domain, with popularities of its own, takes over; 0 for never
    n_domains  that take turns
    """

    kind: Literal["log-normal", "zipf"] = "log-normal"
    spread: float = 0.7
    drift: float = 0.1
    shift: int = 0
    n_domains: int = 2

    def __post_init__(self) -> None:
        choice("kind of popularity", self.kind, ("log-normal", "zipf"))
        if not (0 <= self.spread < 20 and 0 <= self.drift <= 1 and self.shift >= 0 and self.n_domains >= 1):
            raise ConfigError(
                f"spread {self.spread}, drift {self.drift}, shift {self.shift}, {self.n_domains} domains",
                hint="use a spread of 0 to 20, a drift of 0 to 1, a shift of 0 or more and a domain or more",
            )


def generate(
    popularity: Popularity, *, n_windows: int, n_layers: int, n_experts: int, n_ids: int, seed: int = 0
) -> Trace:
    """Windows of ``n_ids`` ids a layer, drawn by ``popularity``. The same arguments give the same trace.

    Raises ConfigError if there is nothing to draw.
    """
    if min(n_windows, n_layers, n_experts) < 1 or n_ids < 0:
        raise ConfigError(
            f"{n_windows} windows of {n_ids} ids, {n_layers} layers, {n_experts} experts",
            hint="give at least one of each",
        )
    random = np.random.default_rng(seed)
    domains = [_start(popularity, n_layers, n_experts, random) for _ in range(popularity.n_domains)]
    counts = np.empty((n_windows, n_layers, n_experts), np.int64)
    keep = np.sqrt(1 - popularity.drift**2)
    for window in range(n_windows):
        turn = window // popularity.shift % popularity.n_domains if popularity.shift else 0
        weight = np.exp(domains[turn] - domains[turn].max(axis=1, keepdims=True))
        odds = weight / weight.sum(axis=1, keepdims=True)
        counts[window] = [random.multinomial(n_ids, row) for row in odds]
        domains[turn] = keep * domains[turn] + popularity.drift * _start(
            popularity, n_layers, n_experts, random
        )
    return Trace(f"{popularity.kind} {popularity.spread:g}", n_experts, counts=counts)


def _start(
    popularity: Popularity, n_layers: int, n_experts: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """[layers, experts] logarithms of popularity, mean 0."""
    if popularity.kind == "log-normal":
        return random.normal(0.0, popularity.spread, (n_layers, n_experts))
    ranks = random.permuted(np.tile(np.arange(1, n_experts + 1), (n_layers, 1)), axis=1)
    logs = -popularity.spread * np.log(ranks)
    return logs - logs.mean(axis=1, keepdims=True)
