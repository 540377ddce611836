"""Who enters a stage, who leaves it, and how long it may take: as the job file says, without effects."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from evenload.errors import ConfigError, quoted

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import StageSpec


class _Holds(Protocol):
    def holds(self, values: Mapping[str, Any]) -> bool: ...


@dataclass(frozen=True, slots=True)
class StageRule:
    """The rule of who enters a stage and who leaves it.

    samples    strands that an item has from here on
    condition  who does not meet it ends before the stage
    best_by    of an item's strands those with the largest of this output go on, ``n_best`` of them
    timeout_s  seconds that an item may take in the stage; None: as long as it likes
    expand     the output whose elements go on as parts; "" for none
    gather     the name under which parts are taken together; "" for none
    is_partial of parts that failed, only the others are gathered
    """

    name: str
    condition: _Holds | None = None
    samples: int = 1
    best_by: str | None = None
    is_lowest: bool = False
    n_best: int = 1
    timeout_s: float | None = None
    expand: str = ""
    gather: str = ""
    is_partial: bool = False

    @classmethod
    def of(cls, stage: "StageSpec", timeout_s: float | None = None) -> "StageRule":
        """Make the rule that the job file says; ``timeout_s`` where the stage says nothing."""
        best, limit_s = stage.best, stage.timeout_s or timeout_s
        rule = cls(stage.name, stage.condition, stage.samples, timeout_s=limit_s, expand=stage.expand or "")
        if stage.gather is not None:
            rule = replace(rule, gather=stage.gather.by, is_partial=stage.gather.allow_failed)
        return rule if best is None else replace(rule, best_by=best.by, is_lowest=best.lowest, n_best=best.n)


class TimeLimit(NamedTuple):
    """The seconds that one task may take, and whose limit that is, in words that fit after "longer than"."""

    seconds: float
    text: str


def fault_of_choice(outputs: Mapping[str, Any], name: str) -> ConfigError | None:
    """Return why a sample cannot be compared by its output ``name``; None if it can, or has null there."""
    if name not in outputs:
        return ConfigError(
            f"best: the item has no {quoted(name)}", hint=f"outputs: {', '.join(outputs) or 'none'}"
        )
    if isinstance(outputs[name], bool | str):
        found = type(outputs[name]).__name__
        return ConfigError(f"best: {quoted(name)} is {found}, not a number", hint="choose by a number")
    return None


def rank_of(value: Any, rule: StageRule) -> float | None:
    """Return a number that is smallest for the best sample; None for one that has none and is not chosen."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return value if rule.is_lowest else -value
