"""Several iterables as one: ``map(fn, a, b)`` calls ``fn(a[0], b[0])``, ``fn(a[1], b[1])``, ..."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from evenload._arguments import flag, iterated
from evenload.errors import ConfigError
from evenload.executor.decide.source import known_length
from evenload.executor.run.map_options import MapOptions

MOST_AT_ONCE = 1_000_000  # items of lists and ranges that are put together beforehand


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
