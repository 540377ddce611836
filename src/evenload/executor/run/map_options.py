"""What a caller may ask of a map, as one value; and several iterables as one: ``map(fn, a, b)``."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from evenload._arguments import choice, flag, folder, iterated, keywords, seconds, whole
from evenload.balance.factors import AMOUNTS
from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import Policy
from evenload.errors import ConfigError, quoted
from evenload.executor.decide.source import known_length

MOST_SEED = 2**63 - 1
MOST_AT_ONCE = 1_000_000  # items of lists and ranges that are put together beforehand


@dataclass(frozen=True, slots=True)
class MapOptions:
    """The options of one map; see ``Executor.map``. Raises ConfigError on those that mean nothing.

    is_policy_fixed  a new policy for all that runs is not for this run
    is_spread        an item is a tuple of arguments
    """

    ordered: bool = True
    batch: int | None = None
    cost: Callable[[Any], float] | Sequence[float] | bool | None = None
    on_error: str = "raise"
    policy: str | Policy | None = None
    balancer: LoadBalancer | None = None
    repeatable: bool = True
    timeout_s: float | None = None
    retries: int = 0
    look_ahead: int | None = None
    look_ahead_bytes: int | None = None
    total: int | None = None
    stage: str = "map"
    shared: Mapping[str, Any] | None = None
    journal: str | os.PathLike | None = None
    on_change: str = "refuse"
    fresh: bool | int = False
    work: Mapping[str, float] | None = None
    seed: int | None = None
    progress: bool | None = None
    is_policy_fixed: bool = False
    is_spread: bool = False

    def __post_init__(self) -> None:
        choice("on_error", self.on_error, ("raise", "return"))
        choice("on_change", self.on_change, ("refuse", "rerun", "keep"))
        for name in ("ordered", "repeatable"):
            self._keep(name, flag(name, getattr(self, name)))
        self._keep("retries", whole("retries", self.retries, most=None))
        if self.retries and not self.repeatable:
            raise ConfigError("retries would run items twice, which repeatable=False forbids")
        if self.timeout_s is not None:
            self._keep("timeout_s", seconds("timeout_s", self.timeout_s))
        for name, least in (("look_ahead", 1), ("look_ahead_bytes", 1), ("total", 0), ("batch", 1)):
            if getattr(self, name) is not None:
                self._keep(name, whole(name, getattr(self, name), least=least, most=None))
        if self.fresh is not False:
            n_items = 1 if self.fresh is True else whole("fresh", self.fresh, least=1, most=None)
            self._keep("fresh", n_items)
        if self.seed is not None:
            self._keep("seed", whole("seed", self.seed, most=MOST_SEED))
        if self.work is not None:
            self._keep("work", item_work(self.work))
        if self.shared is not None:
            keywords("shared", self.shared)
        if self.journal is not None:
            folder("journal", self.journal)
        if not isinstance(self.stage, str):
            raise ConfigError(f"stage={quoted(self.stage)} is no name", hint="give a text")
        if self.balancer is not None and not isinstance(self.balancer, LoadBalancer):
            raise ConfigError(f"balancer={quoted(self.balancer)} is none", hint="give a LoadBalancer()")

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> "MapOptions":
        """Return the options that are among the named ``arguments`` of a call."""
        return cls(**{name: arguments[name] for name in cls.__slots__ if name in arguments})

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def item_work(work: Any) -> dict[str, float]:
    """``work`` as it is declared: flop and bytes of an item. Raises ConfigError if it is something else."""
    hint = 'give work={"flop": 2.5e12, "bytes": 4e9}, one of them or both'
    if not isinstance(work, Mapping) or not work or not set(work) <= set(AMOUNTS):
        raise ConfigError(f"work={quoted(work)} does not say what an item needs", hint=hint)
    for name, amount in work.items():
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not (is_number and 0 < amount < math.inf):
            raise ConfigError(f"{name}={quoted(amount)} in work is no number above 0", hint=hint)
    return {str(name): float(amount) for name, amount in work.items()}


def as_items(
    columns: Sequence[Iterable[Any]], options: MapOptions, *, strict: bool
) -> tuple[Iterable[Any], MapOptions]:
    """The items of ``columns``, tuples of arguments, and the options that go with them.

    The shortest iterable ends them; ``strict``: they have to end together. Lists become a list, anything else
    is read as needed. Raises ConfigError if an argument cannot be iterated, or if lists differ in length and
    must not.
    """
    flag("strict", strict)
    n_columns = len(columns)
    read = [iterated(f"iterable {n} of {n_columns}", column) for n, column in enumerate(columns, 1)]
    sizes = [n for n in map(known_length, columns) if n is not None]
    is_known = len(sizes) == len(columns)
    if strict and is_known and len(set(sizes)) > 1:
        raise ConfigError(
            f"the iterables have {', '.join(map(str, sizes))} items, and strict=True",
            hint="give as many of each, or leave strict out: then the shortest ends them all",
        )
    items: Iterable[Any] = zip(*read, strict=strict)
    if all(type(column) in (list, tuple, range) for column in columns) and min(sizes) <= MOST_AT_ONCE:
        items = list(items)
    cost = partial(spread, options.cost) if callable(options.cost) else options.cost
    total = min(sizes) if is_known else options.total
    return items, replace(options, cost=cost, total=total, is_spread=True)


def spread(fn: Any, item: tuple) -> Any:
    """Call ``fn`` with the values of ``item`` as its arguments."""
    return fn(*item)
