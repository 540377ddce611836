"""What a caller may ask of a map, as one value."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import Policy
from evenload.errors import ConfigError, quoted

__all__ = ["MapOptions"]


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
    is_policy_fixed: bool = False
    is_spread: bool = False

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "return"):
            raise ConfigError(f"on_error={quoted(self.on_error)} is unknown", hint="use 'raise' or 'return'")
        _check_count("retries", self.retries, 0)
        if self.retries and not self.repeatable:
            raise ConfigError("retries would run items twice, which repeatable=False forbids")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(
                f"timeout_s={quoted(self.timeout_s)} leaves no time", hint="give seconds, or None"
            )
        _check_count("look_ahead", self.look_ahead, 1)
        _check_count("look_ahead_bytes", self.look_ahead_bytes, 1)
        _check_count("total", self.total, 0)
        if self.fresh is not False:
            _check_count("fresh", 0 if self.fresh is None else self.fresh, 1)


def _check_count(name: str, n: Any, least: int) -> None:
    if n is not None and (not isinstance(n, Integral) or n < least):
        raise ConfigError(
            f"{name}={quoted(n)} is not a whole number of at least {least}", hint="give one, or leave it out"
        )
