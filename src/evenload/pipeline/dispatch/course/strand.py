"""One sample of one item on its way through a graph of stages, and what the stages gave it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from evenload.pipeline.dispatch.item_failure import ItemFailure
from evenload.pipeline.stage import Item

__all__ = ["Made", "Refusal", "StageTask", "Strand"]


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
    """One sample of one item on its way through the stages.

    at        the item's place in the input
    spent_s   seconds that its stages took
    made      what each stage gave that it is through with
    begun     stages that it has entered
    closed    stages that it does not get through: failed | filtered | shut (it needs one that is closed)
    errors    of the stages that failed
    fate      open | done | failed | filtered (no condition met) | not chosen (others were better) | skipped
    error     of the first stage that failed
    ended_in  the stage that it ended in, unless it came through
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
    ended_in: str | None = None

    @property
    def n_stages(self) -> int:
        """Stages that it is through with."""
        return len(self.made)

    @property
    def outputs(self) -> dict[str, Any]:
        """What all stages gave."""
        return self.merged(sorted(self.made)).outputs

    def is_decided(self, stage: int) -> bool:
        """Is it through with ``stage``, or known never to be?"""
        return stage in self.made or stage in self.closed

    def merged(self, stages: Iterable[int]) -> Made:
        """What ``stages`` gave together, in this order."""
        together = Made({}, {})
        for stage in stages:
            if stage in self.made:
                together.outputs.update(self.made[stage].outputs)
                together.files.update(self.made[stage].files)
        return together

    def doubled(self, stages: Iterable[int]) -> tuple[str, int, int] | None:
        """An output that two of ``stages`` gave, and which two; None if there is none."""
        first: dict[str, int] = {}
        for stage in stages:
            for name in self.made[stage].outputs if stage in self.made else ():
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
