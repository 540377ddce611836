"""Who takes part in a round, and who of them comes back: decided from keys, so it can be replayed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evenload._arguments import number
from evenload.clients.values.keys import SAMPLE, keys, orders
from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Cohort:
    """A rule for who takes part in a round, and who comes back.

    size        clients per round: a number, a share below 1.0 of all, or None for all
    drop_out    probability that a client does not come back
    deadline_s  clients whose virtual time is longer are left out (stragglers)
    speeds      client id -> virtual seconds per step; 1.0 where nothing is said
    poisson     every client takes part by a draw of its own, with probability ``size`` (a share): what
                accounting for privacy supposes; cohorts then differ in size
    """

    size: int | float | None = None
    drop_out: float = 0.0
    deadline_s: float | None = None
    speeds: Mapping[int, float] = field(default_factory=dict)
    poisson: bool = False

    def __post_init__(self) -> None:
        if self.size is not None:
            number("a cohort's size", self.size, is_zero_allowed=False)
        if not number("drop_out", self.drop_out) < 1:
            raise ConfigError(f"drop_out={self.drop_out} is not in [0, 1)")
        if self.poisson and not (isinstance(self.size, float) and self.size <= 1):
            raise ConfigError(
                f"a Poisson cohort of size {self.size}: its size is a probability", hint="use size=0.1, say"
            )

    def draw(self, n_clients: int, seed: int, round: int) -> list[int]:
        """Ids of the round's clients, ascending; every client is as likely as any other."""
        if self.poisson:
            luck = _luck(keys(SAMPLE, seed, round, np.arange(n_clients) + 1, 11))
            return np.flatnonzero(luck < float(self.size or 0.0)).tolist()
        size = n_clients if self.size is None else self.size
        size = round_up(size * n_clients) if isinstance(size, float) else min(size, n_clients)
        return sorted(orders(keys(SAMPLE, seed, round), n_clients)[0][:size].tolist())

    def returns(self, ids: Sequence[int], steps: Sequence[int], seed: int, round: int) -> list[bool]:
        """Does each client come back in time? ``steps`` are those that each takes."""
        luck = _luck(keys(SAMPLE, seed, round, np.array(ids) + 1, 7))
        came = luck >= self.drop_out
        if self.deadline_s is not None:
            in_time = [self.seconds(i, n) <= self.deadline_s for i, n in zip(ids, steps, strict=True)]
            came &= np.array(in_time, dtype=bool)
        return came.tolist()

    def seconds(self, client: int, steps: int) -> float:
        """Virtual time of a client for so many steps."""
        return steps * self.speeds.get(client, 1.0)


def _luck(drawn: np.ndarray) -> np.ndarray:
    """Random numbers in [0, 1) of 53 bits, from keys."""
    return (drawn >> np.uint64(11)).astype(float) * 2.0**-53


def round_up(share: float) -> int:
    return max(1, int(np.ceil(share - 1e-9)))
