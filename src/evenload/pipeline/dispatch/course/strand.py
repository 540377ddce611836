"""One sample or part of an item on its way through a graph of stages, and what the stages gave it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from evenload.pipeline.dispatch.item_failure import ItemFailure
from evenload.pipeline.stage import Item


class StageTask(NamedTuple):
    """One strand's run through one stage; both by number."""

    stage: int
    strand: int


class Made(NamedTuple):
    """The outputs of one stage or several. ``files``: of those that are files bytes, digest and more, as the
    ledger has them.
    """

    outputs: dict[str, Any]
    files: dict[str, list]


@dataclass(slots=True)
class Strand:
    """One sample or part of an item on its way through the stages.

    at        the item's place in the input
    scope     of a part: the stages that made it, and what it is part of; () for a whole item
    parent    of a part: the strand that it is part of
    parts     stage -> the parts that it made, by number
    spent_s   seconds that its stages took
    made      what each stage gave that it is through with
    begun     stages that it has entered
    closed    stages that it does not get through: failed | filtered | shut (it needs one that is closed)
    errors    of the stages that failed
    fate      open | done | failed | filtered (no condition met) | not chosen (others were better) | skipped
    error     of the first stage that failed
    n_decided    stage -> parts of which it is known whether they get through it
    n_open_parts parts that are on their way
    """

    number: int
    at: int
    sample: int
    item: Item
    spent_s: float = 0.0
    made: dict[int, Made] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    closed: dict[int, str] = field(default_factory=dict)
    errors: dict[int, ItemFailure] = field(default_factory=dict)
    fate: str = "open"
    error: ItemFailure | None = None
    scope: tuple[int, ...] = ()
    parent: "Strand | None" = None
    parts: dict[int, list[int]] = field(default_factory=dict)
    n_decided: Counter[int] = field(default_factory=Counter)
    n_open_parts: int = 0

    @property
    def n_stages(self) -> int:
        """Stages that it is through with."""
        return len(self.made)

    @property
    def outputs(self) -> dict[str, Any]:
        """What all stages gave; of a part, only what is its own."""
        found: dict[str, Any] = {}
        for stage in sorted(self.made):
            found.update(self.made[stage].outputs)
        return found

    @property
    def line(self) -> "list[Strand]":
        """What it is part of, the whole item first, and itself."""
        return [self] if self.parent is None else [*self.parent.line, self]

    def is_decided(self, stage: int) -> bool:
        """Is it through with ``stage``, or known never to be?"""
        return stage in self.made or stage in self.closed

    def merged(self, stages: Iterable[int]) -> Made:
        """What ``stages`` gave it, and what it is part of, together in this order."""
        together, line = Made({}, {}), self.line
        for stage in stages:
            for strand in line:
                if stage in strand.made:
                    together.outputs.update(strand.made[stage].outputs)
                    together.files.update(strand.made[stage].files)
        return together

    def doubled(self, stages: Iterable[int]) -> tuple[str, int, int] | None:
        """An output that two of ``stages`` gave, and which two; None if there is none."""
        first: dict[str, int] = {}
        for stage in stages:
            for made in (one.made[stage] for one in self.line if stage in one.made):
                for name in made.outputs:
                    if name in first:
                        return name, first[name], stage
                    first[name] = stage
        return None

    def twin(self, number: int, sample: int, item: Item) -> "Strand":
        """Another sample, as far on its way as this one."""
        return Strand(number, self.at, sample, item, self.spent_s, dict(self.made), set(self.begun))

    def take_back(self, stage: int) -> None:
        """The stage's result is not known after all."""
        for known in (self.made, self.closed, self.errors):
            known.pop(stage, None)
        self.fate, self.error = "open", None


class Refusal(NamedTuple):
    """A strand that failed between stages."""

    strand: Strand
    error: ItemFailure
