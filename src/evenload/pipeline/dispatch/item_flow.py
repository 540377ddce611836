"""Which stages each item still has to go through: pure, without device, clock or file.

    begin() ──► tasks ──► done(task, outputs) | failed(task, why) ──► more tasks ──► ... ──► fates

A strand is one sample of one item on its way; without fan-out each item has one. A stage with ``samples``
makes strands of an item, one with ``best`` ends all but the best of them, one with ``when`` ends those for
which the condition does not hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from evenload.errors import ConfigError
from evenload.pipeline.dispatch.item_failure import ItemFailure
from evenload.pipeline.seeds import item_seed
from evenload.pipeline.stage import Item

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import StageSpec

__all__ = ["ItemFlow", "StageRule", "StageTask", "Strand"]


class _Holds(Protocol):
    def holds(self, values: Mapping[str, Any]) -> bool: ...


@dataclass(frozen=True, slots=True)
class StageRule:
    """The rule of who enters a stage and who leaves it.

    samples    strands that an item has from here on
    condition  who does not meet it ends before the stage
    best_by    of an item's strands those with the largest of this output go on, ``n_best`` of them
    """

    name: str
    condition: _Holds | None = None
    samples: int = 1
    best_by: str | None = None
    is_lowest: bool = False
    n_best: int = 1

    @classmethod
    def of(cls, stage: "StageSpec") -> "StageRule":
        """As the job file says."""
        best = stage.best
        if best is None:
            return cls(stage.name, stage.condition, stage.samples)
        return cls(stage.name, stage.condition, stage.samples, best.by, best.lowest, best.n)


class StageTask(NamedTuple):
    """One strand's run through one stage; both by number."""

    stage: int
    strand: int


@dataclass(slots=True)
class Strand:
    """One sample of one item on its way through the stages.

    at        the item's place in the input
    n_stages  stages that it is through with
    fate      open | done | failed | filtered (no condition met) | not chosen (others were better)
    ended_in  the stage that it ended in, unless it came through
    """

    number: int
    at: int
    sample: int
    item: Item
    n_stages: int = 0
    outputs: dict[str, Any] = field(default_factory=dict)
    fate: str = "open"
    error: ItemFailure | None = None
    ended_in: str | None = None


class ItemFlow:
    """The way of all items of a run through its stages, as far as it has come.

    strands     all samples of all items, by number
    strands_of  of item ``at``, the numbers of its strands, in order of sample
    n_open      strands that are on their way
    n_failed    items of which every strand has failed that was not passed over for a better one
    refused     strands that failed between stages: a condition or a choice could not be made of their values
    """

    def __init__(
        self, rules: Sequence[StageRule], items: Sequence[tuple[Item, Mapping[str, Any]]], seed: int = 0
    ):
        self.rules = tuple(rules)
        self.items = [item for item, _ in items]
        self.inputs = [inputs for _, inputs in items]
        self.strands: list[Strand] = []
        self.strands_of: list[list[int]] = [[] for _ in items]
        self.n_open = 0
        self.n_failed = 0
        self.refused: list[Strand] = []
        self._seed = seed

    def begin(self) -> list[StageTask]:
        """The first tasks, in input order."""
        tasks = []
        for at, item in enumerate(self.items):
            self._add(at, 0, item, {})
            tasks += self._enter(self.strands[-1])
        return tasks

    def values(self, task: StageTask) -> dict[str, Any]:
        """What the stage is given: the item's own and the outputs so far, files as relative paths."""
        strand = self.strands[task.strand]
        return {**self.inputs[strand.at], **strand.outputs}

    def done(self, task: StageTask, outputs: Mapping[str, Any]) -> list[StageTask]:
        """The task gave ``outputs``; returns what may run because of it."""
        strand = self.strands[task.strand]
        assert strand.fate == "open", strand
        assert strand.n_stages == task.stage, (strand, task)
        strand.outputs.update(outputs)
        strand.n_stages += 1
        return self._left(strand, task.stage)

    def failed(self, task: StageTask, error: ItemFailure) -> list[StageTask]:
        """The strand goes no further; others of its item may, because of it."""
        strand = self.strands[task.strand]
        self._end(strand, "failed", self.rules[task.stage].name, error)
        return self._settle_open_choice(strand)

    # --- inside -----------------------------------------------------------------------------------

    def _add(self, at: int, sample: int, item: Item, outputs: dict[str, Any], n_stages: int = 0) -> Strand:
        strand = Strand(len(self.strands), at, sample, item, n_stages, outputs)
        self.strands.append(strand)
        self.strands_of[at].append(strand.number)
        self.n_open += 1
        return strand

    def _enter(self, strand: Strand) -> list[StageTask]:
        """Move ``strand`` to its next stage, or end it if the condition fails; returns what may run."""
        rule = self.rules[strand.n_stages]
        try:
            is_let_in = rule.condition is None or rule.condition.holds(self._plain_values(strand))
        except ConfigError as error:
            self._refuse(strand, rule, error)
            return self._settle_open_choice(strand)
        if not is_let_in:
            self._end(strand, "filtered", rule.name)
            return self._settle_open_choice(strand)
        if rule.samples > 1 and len(self.strands_of[strand.at]) == 1:
            for sample in range(1, rule.samples):
                seed = item_seed(self._seed, strand.item.id, sample)
                item = Item(strand.item.index, strand.item.id, seed, strand.item.group)
                self._add(strand.at, sample, item, dict(strand.outputs), strand.n_stages)
            return [StageTask(strand.n_stages, number) for number in self.strands_of[strand.at]]
        return [StageTask(strand.n_stages, strand.number)]

    def _plain_values(self, strand: Strand) -> dict[str, Any]:
        return {"id": strand.item.id, "group": strand.item.group, **self.inputs[strand.at], **strand.outputs}

    def _left(self, strand: Strand, stage: int) -> list[StageTask]:
        rule = self.rules[stage]
        if rule.best_by is None:
            return self._go_on(strand)
        if fault := _fault_of_choice(strand.outputs, rule.best_by):
            self._refuse(strand, rule, fault)
        return self._choose(strand.at, stage)

    def _go_on(self, strand: Strand) -> list[StageTask]:
        if strand.n_stages == len(self.rules):
            strand.fate = "done"
            self.n_open -= 1
            return []
        return self._enter(strand)

    def _choose(self, at: int, stage: int) -> list[StageTask]:
        """Once all of an item's strands are through ``stage`` or ended, the best of them go on."""
        mine = [self.strands[number] for number in self.strands_of[at]]
        if any(strand.fate == "open" and strand.n_stages <= stage for strand in mine):
            return []
        rule = self.rules[stage]
        open_ones = [strand for strand in mine if strand.fate == "open"]
        ranks = {one.number: _rank(one.outputs.get(rule.best_by or ""), rule) for one in open_ones}
        ranked = sorted(
            (rank, one.sample, one) for one in open_ones if (rank := ranks[one.number]) is not None
        )
        chosen = [strand for _, _, strand in ranked[: rule.n_best]]
        for strand in open_ones:
            if not ranked:
                self._refuse(strand, rule, ConfigError(f"best: no sample has a number for {rule.best_by!r}"))
            elif strand not in chosen:
                self._end(strand, "not chosen", rule.name)
        chosen.sort(key=lambda strand: strand.sample)
        return [task for strand in chosen for task in self._go_on(strand)]

    def _settle_open_choice(self, strand: Strand) -> list[StageTask]:
        """``strand`` has ended: a choice that waited only for it can be made."""
        stage = next(
            (n for n, rule in enumerate(self.rules) if rule.best_by is not None and n >= strand.n_stages),
            None,
        )
        if stage is None or len(self.strands_of[strand.at]) == 1:
            return []
        return self._choose(strand.at, stage)

    def _refuse(self, strand: Strand, rule: StageRule, error: ConfigError) -> None:
        self._end(strand, "failed", rule.name, ItemFailure(rule.name, "ConfigError", str(error)))
        self.refused.append(strand)

    def _end(self, strand: Strand, fate: str, stage: str, error: ItemFailure | None = None) -> None:
        strand.fate, strand.ended_in, strand.error = fate, stage, error
        self.n_open -= 1
        mine = self.strands_of[strand.at]
        fates = {self.strands[number].fate for number in mine}
        self.n_failed += fate == "failed" and fates <= {"failed", "not chosen"}


def _fault_of_choice(outputs: Mapping[str, Any], name: str) -> ConfigError | None:
    """Return why a sample cannot be compared by its output ``name``; None if it can, or has null there."""
    if name not in outputs:
        return ConfigError(f"best: the item has no {name!r}", hint=f"outputs: {', '.join(outputs) or 'none'}")
    if isinstance(outputs[name], bool | str):
        found = type(outputs[name]).__name__
        return ConfigError(f"best: {name!r} is {found}, not a number", hint="choose by a number")
    return None


def _rank(value: Any, rule: StageRule) -> float | None:
    """Return a number that is smallest for the best sample; None for one that has none and is not chosen."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return value if rule.is_lowest else -value
