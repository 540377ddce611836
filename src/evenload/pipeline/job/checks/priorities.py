"""The priority of each item, as ``schedule.priority`` says it of the item's columns."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenload.errors import ConfigError, did_you_mean, quoted
from evenload.pipeline.job.expression import Condition, parse_condition
from evenload.pipeline.job.section import Fault, one_line
from evenload.pipeline.stage import Item

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec

_PLACE = ("schedule", "priority")
_MOST_NAMED = 12


def priorities_of(text: str, items: Iterable[tuple[Item, Mapping[str, Any]]]) -> list[float]:
    """Return a number for each item: the highest goes first. Null, and a column that is missing, comes last.

    text  a condition (1 where it holds, else 0), or the name of a column with numbers
    Raises ConfigError for the first item that has no number.
    """
    condition = parse_condition(text)
    return [_number(condition, item, values) for item, values in items]


def _number(condition: Condition, item: Item, values: Mapping[str, Any]) -> float:
    known = {"group": item.group, **values, "id": item.id}
    found = condition.value({**dict.fromkeys(condition.names), **known})
    if found is None:
        return -math.inf
    if not isinstance(found, bool | int | float) or not math.isfinite(found):
        raise ConfigError(
            f"item {quoted(item.id)} has {quoted(found)} as its priority",
            hint="give numbers, or a condition such as urgent == true",
        )
    return float(found)


def find_priority_faults(spec: "JobSpec", items: Sequence[tuple[Item, Mapping[str, Any]]]) -> list[Fault]:
    """Return why the items' priorities are not known: a name is no column, or a value no number."""
    text = spec.schedule.priority
    if text is None:
        return []
    columns = {"id", "group", *(name for _, values in items for name in values)}
    unknown = sorted(parse_condition(text).names - columns)
    if unknown:
        nearest = did_you_mean(unknown[0], sorted(columns))
        more = ", ..." if len(columns) > _MOST_NAMED else ""
        known = f"known: {', '.join(sorted(columns)[:_MOST_NAMED])}{more}"
        return [(_PLACE, f"{quoted(unknown[0])} is no column of the inputs; {nearest}{known}")]
    try:
        priorities_of(text, items)
    except (ConfigError, OverflowError) as error:
        return [(_PLACE, one_line(error) if isinstance(error, ConfigError) else f"{quoted(text)}: {error}")]
    return []
