"""A numbering of a stranger's values: each gets the next number, up to a limit."""

from collections.abc import Hashable, Iterable
from typing import Any


class Numbering(dict[Any, int]):
    """A dict that numbers the keys it is asked for: ``known`` lists them, in order.

    others  the number of all keys beyond ``n_most``; ``n_others`` counts how often one was asked for
    """

    def __init__(self, n_most: int, others: int, known: Iterable[Hashable] = ()) -> None:
        super().__init__()
        self.n_most = n_most
        self.others = others
        self.n_others = 0
        self.known: list[Any] = []
        for one in known:
            self[one]

    def __missing__(self, key: Hashable) -> int:
        if len(self.known) >= self.n_most:
            self.n_others += 1
            return self.others
        self.known.append(key)
        number = self[key] = len(self.known) - 1
        return number
