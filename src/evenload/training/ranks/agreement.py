"""``agree``: every rank has the same settings, or every rank raises the same error.

A rank whose arguments are refused says so to the others first: none waits for one that has left.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from evenload.errors import ConfigError, quoted
from evenload.training.ranks.rank_group import RankGroup

__all__ = ["agree", "same", "same_order"]

T = TypeVar("T")
SAID = 400


def agree(ranks: RankGroup, make: Callable[[], tuple[T, Mapping[str, Any]]]) -> tuple[T, list[Any]]:
    """Return what ``make`` makes, and what each rank has of its own, under "own" of its settings.

    make  returns something and settings, which have to be the same on all ranks but for "own"

    Raises ConfigError, the same on all ranks: the error of the lowest rank whose ``make`` raises one, or the
    first setting that differs.
    """
    made, settings, fault = None, {}, None
    try:
        made, settings = make()
    except ConfigError as error:
        fault = [error.message[:SAID], (error.hint or "")[:SAID]]
        if ranks.size == 1:
            raise
    said = ranks.facts({"fault": fault, "settings": dict(settings)})
    for rank, one in enumerate(said):
        if one["fault"] is not None:
            message, hint = map(str, one["fault"])
            raise ConfigError(f"on rank {rank}: {message}", hint=hint or None)
    for name in said[0]["settings"]:
        if name != "own":
            same(name, [one["settings"][name] for one in said])
    if made is None:
        raise AssertionError("no rank has a fault, and this one made nothing")
    return made, [one["settings"].get("own") for one in said]


def same(name: str, values: list[Any]) -> None:
    """Raise ConfigError unless all ranks have the same value."""
    for rank, value in enumerate(values):
        if value != values[0]:
            raise ConfigError(
                f"rank 0 has {name}={quoted(values[0])}, rank {rank} has {quoted(value)}",
                hint=f"give every rank the same {name}",
            )


def same_order(ranks: RankGroup, digest: float, n_found: int, n_said: int) -> None:
    """Raise ConfigError unless all ranks have samples of the same digest, as many as the sampler said."""
    found = ranks.gather([digest, float(n_found)], "the order of an epoch")
    wrong = [n for _, n in found if n != n_said]
    if wrong:
        raise ConfigError(
            f"the sampler said {n_said} samples, and yields {wrong[0]:.0f}",
            hint="give a sampler whose __len__ is what it yields",
        )
    if len({one for one, _ in found}) > 1:
        raise ConfigError(
            "the sampler yields the samples in another order on each rank",
            hint="seed it alike on every rank, or give the data set, which is shuffled by seed=",
        )
