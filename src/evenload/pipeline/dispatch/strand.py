"""One sample or part of an item on its way through the stages, and the rules of these."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evenload.errors import ConfigError, quoted
from evenload.pipeline.stage import Item

if TYPE_CHECKING:
    from evenload.pipeline.job.expression import Condition
    from evenload.pipeline.job.spec import StageSpec

_PLACE = re.compile(r'^ *File "([^"\n]+)", line (\d+)', re.MULTILINE)
_OURS = ("<", str(Path(__file__).parents[2]), str(Path(re.__file__).parents[1]))  # and Python's own
_CELL = "<ipython-input"


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """The reason why an item went no further. ``type`` is the exception's; ``traceback`` is the worker's,
    for people.
    """

    stage: str
    type: str
    message: str
    traceback: str = ""

    @property
    def place(self) -> str:
        """File and line of the user's code that came last in the traceback; "" if none of it did."""
        found = _PLACE.findall(self.traceback)
        others = [one for one in found if not one[0].startswith(_OURS) or one[0].startswith(_CELL)]
        own = [one for one in others if "site-packages" not in one[0]]
        return " line ".join(own[-1]) if own else ""

    @property
    def text(self) -> str:
        """The error with its place."""
        return f"{self.type}: {self.message}" + (f" ({self.place})" if self.place else "")

    def __str__(self) -> str:
        return f"{self.stage}: {self.text}"

    def to_json(self) -> dict[str, str]:
        return {"stage": self.stage, "type": self.type, "message": self.message}


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
    condition: "Condition | None" = None
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
