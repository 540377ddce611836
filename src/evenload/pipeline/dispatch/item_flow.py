"""Which stages each item still has to go through: pure, without device, clock or file.

    begin() ──► tasks ──► done(task, outputs) | failed(task, why) ──► more tasks ──► ... ──► fates

A strand is one sample of one item on its way; without fan-out each item has one. A stage with ``samples``
makes strands of an item, one with ``best`` ends all but the best of them, one with ``when`` ends those for
which the condition does not hold.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from evenload.errors import ConfigError, quoted
from evenload.pipeline.dispatch.item_failure import ItemFailure
from evenload.pipeline.seeds import item_seed
from evenload.pipeline.stage import Item

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import StageSpec

__all__ = ["STOPPED", "ItemFlow", "StageRule", "StageTask", "Strand", "TimeLimit", "check_ids"]

STOPPED = ("Stopped", "it was given up by `evenload stop`")


class _Holds(Protocol):
    def holds(self, values: Mapping[str, Any]) -> bool: ...


@dataclass(frozen=True, slots=True)
class StageRule:
    """The rule of who enters a stage and who leaves it.

    samples    strands that an item has from here on
    condition  who does not meet it ends before the stage
    best_by    of an item's strands those with the largest of this output go on, ``n_best`` of them
    timeout_s  seconds that an item may take in the stage; None: as long as it likes
    """

    name: str
    condition: _Holds | None = None
    samples: int = 1
    best_by: str | None = None
    is_lowest: bool = False
    n_best: int = 1
    timeout_s: float | None = None

    @classmethod
    def of(cls, stage: "StageSpec", timeout_s: float | None = None) -> "StageRule":
        """As the job file says; ``timeout_s`` where the stage says nothing."""
        best, limit_s = stage.best, stage.timeout_s or timeout_s
        rule = cls(stage.name, stage.condition, stage.samples, timeout_s=limit_s)
        return rule if best is None else replace(rule, best_by=best.by, is_lowest=best.lowest, n_best=best.n)


class TimeLimit(NamedTuple):
    """The seconds that one task may take, and whose limit that is, in words that fit after "longer than"."""

    seconds: float
    text: str


class StageTask(NamedTuple):
    """One strand's run through one stage; both by number."""

    stage: int
    strand: int


@dataclass(slots=True)
class Strand:
    """One sample of one item on its way through the stages.

    at        the item's place in the input
    n_stages  stages that it is through with
    spent_s   seconds that these took
    fate      open | done | failed | filtered (no condition met) | not chosen (others were better) | skipped
    ended_in  the stage that it ended in, unless it came through
    files     of the outputs that are files: bytes, digest and more, as the ledger has them
    """

    number: int
    at: int
    sample: int
    item: Item
    n_stages: int = 0
    spent_s: float = 0.0
    outputs: dict[str, Any] = field(default_factory=dict)
    fate: str = "open"
    error: ItemFailure | None = None
    ended_in: str | None = None
    files: dict[str, list] = field(default_factory=dict)


class ItemFlow:
    """The way of all items of a run through its stages, as far as it has come.

    strands     all samples of all items, by number
    strands_of  of item ``at``, the numbers of its strands, in order of sample
    n_open      strands that are on their way
    n_failed    items of which every strand has failed that was not passed over for a better one
    refused     strands that failed between stages: a condition or a choice could not be made of their values,
                or their time was up

    timeout_s   seconds that an item (each sample by itself) may take over all stages
    skipped     ids of items that are to go through no stage now
    """

    def __init__(
        self,
        rules: Sequence[StageRule],
        items: Sequence[tuple[Item, Mapping[str, Any]]],
        seed: int = 0,
        *,
        timeout_s: float | None = None,
        skipped: Collection[str] = (),
    ):
        self.rules = tuple(rules)
        self.items = [item for item, _ in items]
        self.inputs = [inputs for _, inputs in items]
        self.strands: list[Strand] = []
        self.strands_of: list[list[int]] = [[] for _ in items]
        self.n_open = 0
        self.n_failed = 0
        self.refused: list[Strand] = []
        self._seed, self._timeout_s, self._skipped = seed, timeout_s, frozenset(skipped)
        self._stopped: set[int] = set()

    def begin(self) -> list[StageTask]:
        """The first tasks, in input order."""
        tasks = []
        for at, item in enumerate(self.items):
            strand = self._add(at, 0, item, {})
            if item.id in self._skipped:
                self._end(strand, "skipped", self.rules[0].name)
            else:
                tasks += self._enter(strand)
        return tasks

    def values(self, task: StageTask) -> dict[str, Any]:
        """What the stage is given: the item's own and the outputs so far, files as relative paths."""
        strand = self.strands[task.strand]
        return {**self.inputs[strand.at], **strand.outputs}

    def stop(self, item: str) -> set[int]:
        """Let the item with this id enter no further stage; returns its strands that are on their way.

        Raises ConfigError if there is none, with the nearest.
        """
        check_ids([item], [one.id for one in self.items])
        at = next(at for at, one in enumerate(self.items) if one.id == item)
        self._stopped.add(at)
        return {number for number in self.strands_of[at] if self.strands[number].fate == "open"}

    def name_of(self, strand: Strand) -> str:
        """The item, and which of its samples it is, for people and events."""
        return strand.item.id if strand.sample == 0 else f"{strand.item.id} #{strand.sample}"

    def limit_of(self, task: StageTask) -> TimeLimit | None:
        """How long the task may take; None: as long as it likes."""
        rule, spent_s = self.rules[task.stage], self.strands[task.strand].spent_s
        left_s = None if self._timeout_s is None else max(0.0, self._timeout_s - spent_s)
        if left_s is not None and (rule.timeout_s is None or left_s < rule.timeout_s):
            text = f"{self._timeout_s:g} s over all stages ({spent_s:.3g} s before this one)"
            return TimeLimit(left_s, text)
        return None if rule.timeout_s is None else TimeLimit(rule.timeout_s, f"{rule.timeout_s:g} s")

    def done(
        self,
        task: StageTask,
        outputs: Mapping[str, Any],
        seconds: float = 0.0,
        files: Mapping[str, list] | None = None,
    ) -> list[StageTask]:
        """The task gave ``outputs`` after ``seconds``; ``files`` are those of them that are files."""
        strand = self.strands[task.strand]
        assert strand.fate == "open", strand
        assert strand.n_stages == task.stage, (strand, task)
        strand.outputs.update(outputs)
        strand.files.update(files or {})
        strand.n_stages += 1
        strand.spent_s += seconds
        return self._left(strand, task.stage)

    def failed(self, task: StageTask, error: ItemFailure) -> list[StageTask]:
        """The strand goes no further; others of its item may, because of it."""
        strand = self.strands[task.strand]
        self._end(strand, "failed", self.rules[task.stage].name, error)
        return self._settle_open_choice(strand)

    # --- inside -----------------------------------------------------------------------------------

    def _add(
        self,
        at: int,
        sample: int,
        item: Item,
        outputs: dict[str, Any],
        n_stages: int = 0,
        spent_s: float = 0.0,
    ) -> Strand:
        strand = Strand(len(self.strands), at, sample, item, n_stages, spent_s, outputs)
        self.strands.append(strand)
        self.strands_of[at].append(strand.number)
        self.n_open += 1
        return strand

    def _enter(self, strand: Strand) -> list[StageTask]:
        """Move ``strand`` to its next stage, or end it if the condition fails; returns what may run."""
        rule = self.rules[strand.n_stages]
        if ended := self._ended_early(strand):
            self._refuse(strand, rule, ended[1], ended[0])
            return self._settle_open_choice(strand)
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
                twin = self._add(
                    strand.at, sample, item, dict(strand.outputs), strand.n_stages, strand.spent_s
                )
                twin.files.update(strand.files)
            return [StageTask(strand.n_stages, number) for number in self.strands_of[strand.at]]
        return [StageTask(strand.n_stages, strand.number)]

    def _ended_early(self, strand: Strand) -> tuple[str, str] | None:
        """Why the strand goes no further, whatever its values: type and text of the failure."""
        if strand.at in self._stopped:
            return STOPPED
        if self._timeout_s is not None and strand.spent_s > self._timeout_s:
            text = f"its stages took {strand.spent_s:.3g} s so far, longer than {self._timeout_s:g} s in all"
            return "TaskTimeout", text
        return None

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

    def _refuse(
        self, strand: Strand, rule: StageRule, error: ConfigError | str, kind: str = "ConfigError"
    ) -> None:
        self._end(strand, "failed", rule.name, ItemFailure(rule.name, kind, str(error)))
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


def check_ids(ids: Iterable[str], known: Collection[str]) -> None:
    """Raises ConfigError for the first of ``ids`` that no item has; the hint names the nearest."""
    for one in ids:
        if one not in known:
            near = difflib.get_close_matches(one[:200], known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "ids are in results.jsonl, and in the inputs"
            raise ConfigError(f"no item is called {quoted(one)}", hint=hint)
