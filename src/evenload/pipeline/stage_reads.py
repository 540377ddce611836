"""Note what a stage reads of what it is given: a result depends on that, and on nothing else.

    seen = set()
    stage(SeenInputs(values, seen), see_item(item, seen))
    seen                {"value:path", "item:seed"}

A stage that never reads a column gives the same result whatever stands in it. So its results stay good when
a column, an earlier stage or the job's seed changes that it does not read.

names of reads
    value:NAME   the value of a column or an earlier output, or that there is none
    names        which names there are, and their order
    item:FIELD   index, id, seed or group of the item
    job:seed     the job's seed, which the constructor is given
    file:PATH    a file or folder asked for with ``context.path``
    unsettled    something that nobody can compare: the result is not taken for another run
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from evenload.pipeline.stage import Item, StageContext

UNSETTLED = "unsettled"
_ITEM_FIELDS = frozenset(field.name for field in fields(Item))


class SeenInputs(MutableMapping[str, Any]):
    """A mapping of an item's values that notes in ``seen`` which of them are read.

    It is no dict, so that nothing can read it unseen; ``dict(inputs)`` makes one. Lists and dicts in it are
    the stage's own: what it does to them changes no recorded value, and is not there when it is called again.
    """

    __slots__ = ("_own", "_seen", "_values")

    def __init__(self, values: Mapping[str, Any], seen: set[str]):
        self._values, self._seen = dict(values), seen
        self._own: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._seen.add(f"value:{name}")
        value = self._values[name]
        if isinstance(value, list | dict) and name not in self._own:
            self[name] = value = copy.deepcopy(value)
        return value

    def __contains__(self, name: object) -> bool:
        self._seen.add(f"value:{name}")
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        self._seen.add("names")
        return iter(self._values)

    def __len__(self) -> int:
        self._seen.add("names")
        return len(self._values)

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value
        self._own.add(name)

    def __delitem__(self, name: str) -> None:
        self._seen.add(f"value:{name}")
        del self._values[name]

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**other, **self}

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class _SeenItem(Item):  # pyrefly: ignore  # has __slots__ of its own
    """An item that notes which of its fields are read."""

    __slots__ = ("_seen",)

    def __getattribute__(self, name: str) -> Any:
        if name in _ITEM_FIELDS:
            with contextlib.suppress(
                AttributeError
            ):  # of a copy that the stage made, after reading all of it
                object.__getattribute__(self, "_seen").add(f"item:{name}")
        return object.__getattribute__(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Item, tuple(getattr(self, field.name) for field in fields(Item))


def see_item(item: Item, seen: set[str]) -> Item:
    """Return ``item`` as one that notes in ``seen`` which of its fields are read."""
    twin = _SeenItem(item.index, item.id, item.seed, item.group)
    object.__setattr__(twin, "_seen", seen)
    return twin


class _SeenContext(StageContext):  # pyrefly: ignore
    """A context that notes whether the job's seed is read, and which files are asked for."""

    __slots__ = ("_seen",)

    def __getattribute__(self, name: str) -> Any:
        if name == "seed":
            object.__getattribute__(self, "_seen").add("job:seed")
        return object.__getattribute__(self, name)

    def path(self, text: str) -> Path:
        object.__getattribute__(self, "_seen").add(f"file:{text}")
        return object.__getattribute__(self, "folder") / text


def see_context(context: StageContext, seen: set[str]) -> StageContext:
    """Return ``context`` as one that notes in ``seen`` what is read of it."""
    twin = object.__new__(_SeenContext)
    object.__setattr__(twin, "_seen", seen)
    for field in fields(StageContext):
        object.__setattr__(twin, field.name, getattr(context, field.name))
    return twin
