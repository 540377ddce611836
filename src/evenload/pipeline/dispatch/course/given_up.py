"""Items and parts that a person leaves out of a run, or gives up in the middle of one, by their names."""

import difflib
from collections.abc import Collection, Iterable

from evenload.errors import ConfigError, quoted
from evenload.pipeline.dispatch.course.strand import Strand
from evenload.pipeline.part_keys import is_key

STOPPED = ("Stopped", "it was given up by `evenload stop`")


class GivenUp:
    """The ids of items and parts that go no further; what is said of one holds for all of its parts.

    skipped  they go through no stage at all
    """

    def __init__(self, skipped: Collection[str] = ()):
        self._skipped = frozenset(skipped)
        self._stopped: set[str] = set()

    def is_skipped(self, name: str) -> bool:
        return name in self._skipped

    def stop(self, name: str) -> None:
        """Let it enter no further stage."""
        self._stopped.add(name)

    def is_stopped(self, strand: Strand) -> bool:
        """Was it, or what it is part of, given up?"""
        return bool(self._stopped) and any(one.item.id in self._stopped for one in strand.line)


def check_ids(ids: Iterable[str], known: Collection[str], expands: Collection[str] = ()) -> None:
    """Raises ConfigError for the first of ``ids`` that is no item and no part of one, with the nearest.

    expands  names of parts that stages make: ``r7/pages/003`` may be a part, whether it was made yet or not
    """
    for one in ids:
        if one in known or _may_be_part(one, known, expands):
            continue
        near = difflib.get_close_matches(one[:200], known, n=1, cutoff=0.5)
        hint = f"did you mean {quoted(near[0])}?" if near else "ids are in results.jsonl, and in the inputs"
        item = next(
            (one[:end] for end, letter in enumerate(one) if letter == "/" and one[:end] in known), None
        )
        if item is not None and expands:
            hint = f"parts of it are called {quoted(f'{item}/{min(expands)}/001')}"
        raise ConfigError(f"no item is called {quoted(one)}", hint=hint)


def _may_be_part(name: str, known: Collection[str], expands: Collection[str]) -> bool:
    while name and name not in known:
        name, _, key = name.rpartition("/")
        name, _, made = name.rpartition("/")
        if made not in expands or not is_key(key):
            return False
    return bool(name)
