"""``SizeModel``: what an item costs, as a product of powers of its features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import copysign, exp, log1p

Features = Mapping[str, float]
MOST_EXPONENT = 30.0
MOST_FEATURES = 3  # in one law


def level(value: float) -> float:
    """The logarithm by which features are compared: of ``1 + value``, mirrored below zero."""
    return copysign(log1p(abs(value)), value)


@dataclass(frozen=True, slots=True)
class Sample:
    """A chunk that ``device`` has run: the features of its items, and the seconds for each of them."""

    device: str
    items: Sequence[Features]
    item_s: float


@dataclass(frozen=True, slots=True)
class SizeModel:
    """A law of sizes: ``exp(constant + sum of power * level(feature))``; a feature that is missing is 0.

    A size of 1 is the average item that the law was learned from.

    powers    by feature
    constant  such that the sizes of those items are 1 on average
    error     how far items are from it, as a share: 0.12 is 12 %, either way, for two items out of three
    n_items   samples that it was learned from
    """

    powers: Mapping[str, float]
    constant: float
    error: float
    n_items: int

    def size(self, items: Sequence[Features]) -> float:
        """The size of some items together."""
        return sum(map(self.size_of, items))

    def size_of(self, item: Features) -> float:
        """The size of one item, in average items."""
        total = self.constant
        for name, power in self.powers.items():
            total += power * level(item.get(name, 0.0))
        return exp(max(-MOST_EXPONENT, min(total, MOST_EXPONENT)))

    def __str__(self) -> str:
        """What was learned, for people."""
        grows = [name for name, power in self.powers.items() if power > 0]
        falls = [name for name, power in self.powers.items() if power <= 0]
        parts = [
            f"{verb} with {' and '.join(names)}"
            for verb, names in (("grows", grows), ("falls", falls))
            if names
        ]
        return f"time {' and '.join(parts)}, ±{self.error:.0%}"
