"""Which stages each item still has to go through: pure, without device, clock or file.

    begin() ──► tasks ──► done(task, outputs) | failed(task, why) ──► more tasks ──► ... ──► fates

A strand is one sample of one item on its way; without fan-out each item has one. It enters a stage once it is
through with all that the stage needs; stages that do not need each other run side by side. A stage with
``samples`` makes strands of an item, one with ``best`` ends all but the best of them. One with ``when`` is
closed to those for which the condition does not hold, and so is what needs it; the same when a stage fails.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from evenload.errors import ConfigError, quoted
from evenload.pipeline.dispatch.course.stage_rule import StageRule, TimeLimit, fault_of_choice, rank_of
from evenload.pipeline.dispatch.course.strand import Made, Refusal, StageTask, Strand
from evenload.pipeline.dispatch.item_failure import ItemFailure
from evenload.pipeline.seeds import item_seed
from evenload.pipeline.stage import Item
from evenload.pipeline.stage_graph import StageGraph, chain

__all__ = ["STOPPED", "ItemFlow", "StageRule", "StageTask", "Strand", "TimeLimit", "check_ids"]

STOPPED = ("Stopped", "it was given up by `evenload stop`")


class ItemFlow:
    """The way of all items of a run through its stages, as far as it has come.

    strands     all samples of all items, by number
    strands_of  of item ``at``, the numbers of its strands, in order of sample
    n_open      strands that are on their way
    n_failed    items of which every strand has failed that was not passed over for a better one
    refused     strands that failed between stages: a condition or a choice could not be made of their values,
                two stages gave outputs of one name, or their time was up

    graph       what each stage needs; by default the one before it
    timeout_s   seconds that an item (each sample by itself) may take over all stages
    skipped     ids of items that are to go through no stage now
    """

    def __init__(
        self,
        rules: Sequence[StageRule],
        items: Sequence[tuple[Item, Mapping[str, Any]]],
        seed: int = 0,
        *,
        graph: StageGraph | None = None,
        timeout_s: float | None = None,
        skipped: Collection[str] = (),
    ):
        self.rules = tuple(rules)
        self.graph = graph or chain(len(self.rules))
        self.items = [item for item, _ in items]
        self.inputs = [inputs for _, inputs in items]
        self.strands: list[Strand] = []
        self.strands_of: list[list[int]] = [[] for _ in items]
        self.n_open = 0
        self.n_failed = 0
        self.refused: list[Refusal] = []
        self._before = [sorted(before) for before in self.graph.before]
        self._seed, self._timeout_s, self._skipped = seed, timeout_s, frozenset(skipped)
        self._stopped: set[int] = set()

    def begin(self) -> list[StageTask]:
        """The first tasks, in input order."""
        tasks = []
        for at, item in enumerate(self.items):
            strand = self._add(Strand(len(self.strands), at, 0, item))
            if item.id in self._skipped:
                self._end(strand, "skipped", self.rules[0].name)
            else:
                tasks += self._go_on(strand)
        return tasks

    def values(self, task: StageTask) -> dict[str, Any]:
        """What the stage is given: the item's own, and what it needs of others; files as relative paths."""
        return {**self.inputs[self.strands[task.strand].at], **self.made_before(task).outputs}

    def made_before(self, task: StageTask) -> Made:
        """What the stages gave that the task's stage needs, themselves or through others."""
        return self.strands[task.strand].merged(self._before[task.stage])

    def n_coming(self, stage: int) -> int | None:
        """How many strands enter ``stage`` in all; None while that is not known."""
        needs = self.graph.needs[stage]
        if not all(s.is_decided(need) for s in self.strands if s.fate == "open" for need in needs):
            return None
        return sum(all(need in strand.made for need in needs) for strand in self.strands)

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
        strand, rule = self.strands[task.strand], self.rules[task.stage]
        assert strand.fate == "open", strand
        assert not strand.is_decided(task.stage), (strand, task)
        strand.made[task.stage] = Made(dict(outputs), dict(files or {}))
        strand.spent_s += seconds
        if rule.best_by is None:
            return self._go_on(strand)
        if fault := fault_of_choice(strand.outputs, rule.best_by):
            self._refuse(strand, task.stage, fault)
            self._end(strand, "failed", rule.name)
        return self._choose(strand.at, task.stage)

    def failed(self, task: StageTask, error: ItemFailure) -> list[StageTask]:
        """The strand enters nothing that needs this stage; others of its item may go on because of it."""
        strand = self.strands[task.strand]
        strand.closed[task.stage], strand.errors[task.stage] = "failed", error
        return self._go_on(strand)

    # --- inside -----------------------------------------------------------------------------------

    def _add(self, strand: Strand) -> Strand:
        self.strands.append(strand)
        self.strands_of[strand.at].append(strand.number)
        self.n_open += 1
        return strand

    def _go_on(self, strand: Strand) -> list[StageTask]:
        """Let ``strand`` into each stage whose needs are there, or end it if nothing is left."""
        tasks: list[StageTask] = []
        for stage, needs in enumerate(self.graph.needs):
            if stage in strand.begun or stage in strand.closed:
                continue
            if any(need in strand.closed for need in needs):
                strand.closed[stage] = "shut"
            elif all(need in strand.made for need in needs):
                tasks += self._enter(strand, stage)
        if len(strand.made) + len(strand.closed) < len(self.rules):
            return tasks
        self._settle(strand)
        return [*tasks, *(self._settle_open_choice(strand) if strand.fate != "done" else ())]

    def _enter(self, strand: Strand, stage: int) -> list[StageTask]:
        """Let ``strand`` into a stage, or close the stage if its condition fails; returns what may run."""
        rule = self.rules[stage]
        if ended := self._ended_early(strand):
            self._refuse(strand, stage, ended[1], ended[0])
            return []
        try:
            self._refuse_doubled(strand, self._before[stage])
            is_let_in = rule.condition is None or rule.condition.holds(self._plain_values(strand, stage))
        except ConfigError as error:
            self._refuse(strand, stage, error)
            return []
        if not is_let_in:
            strand.closed[stage] = "filtered"
            return []
        strand.begun.add(stage)
        if rule.samples > 1 and len(self.strands_of[strand.at]) == 1:
            for sample in range(1, rule.samples):
                seed = item_seed(self._seed, strand.item.id, sample)
                item = Item(strand.item.index, strand.item.id, seed, strand.item.group)
                self._add(strand.twin(len(self.strands), sample, item))
            return [StageTask(stage, number) for number in self.strands_of[strand.at]]
        return [StageTask(stage, strand.number)]

    def _ended_early(self, strand: Strand) -> tuple[str, str] | None:
        """Why the strand goes no further, whatever its values: type and text of the failure."""
        if strand.at in self._stopped:
            return STOPPED
        if self._timeout_s is not None and strand.spent_s > self._timeout_s:
            text = f"its stages took {strand.spent_s:.3g} s so far, longer than {self._timeout_s:g} s in all"
            return "TaskTimeout", text
        return None

    def _refuse_doubled(self, strand: Strand, stages: Sequence[int]) -> None:
        """Raise ConfigError if two of ``stages``, which ran side by side, gave outputs of one name."""
        doubled = None if self.graph.is_chain else strand.doubled(stages)
        if doubled is not None:
            name, first, second = doubled
            who = f"stage {self.rules[first].name!r} and stage {self.rules[second].name!r}"
            raise ConfigError(f"{name!r} was given by {who}", hint="let one of them give it another name")

    def _plain_values(self, strand: Strand, stage: int) -> dict[str, Any]:
        names = {"id": strand.item.id, "group": strand.item.group}
        return {**names, **self.values(StageTask(stage, strand.number))}

    def _choose(self, at: int, stage: int) -> list[StageTask]:
        """Once all of an item's strands are through ``stage`` or ended, the best of them go on."""
        mine = [self.strands[number] for number in self.strands_of[at]]
        if any(strand.fate == "open" and stage not in strand.made for strand in mine):
            return []
        rule = self.rules[stage]
        open_ones = [strand for strand in mine if strand.fate == "open"]
        ranks = {one.number: rank_of(one.outputs.get(rule.best_by or ""), rule) for one in open_ones}
        ranked = sorted(
            (rank, one.sample, one) for one in open_ones if (rank := ranks[one.number]) is not None
        )
        chosen = [strand for _, _, strand in ranked[: rule.n_best]]
        for strand in open_ones:
            if not ranked:
                fault = ConfigError(f"best: no sample has a number for {rule.best_by!r}")
                self._refuse(strand, stage, fault)
                self._end(strand, "failed", rule.name)
            elif strand not in chosen:
                self._end(strand, "not chosen", rule.name)
        chosen.sort(key=lambda strand: strand.sample)
        return [task for strand in chosen for task in self._go_on(strand)]

    def _settle_open_choice(self, strand: Strand) -> list[StageTask]:
        """``strand`` has ended: a choice that waited only for it can be made."""
        stage = next(
            (n for n, rule in enumerate(self.rules) if rule.best_by is not None and n not in strand.made),
            None,
        )
        if stage is None or len(self.strands_of[strand.at]) == 1:
            return []
        return self._choose(strand.at, stage)

    def _refuse(self, strand: Strand, stage: int, error: Any, kind: str = "ConfigError") -> None:
        name = self.rules[stage].name
        failure = ItemFailure(name, kind, str(error))
        strand.closed[stage], strand.errors[stage] = "failed", failure
        self.refused.append(Refusal(strand, failure))

    def _settle(self, strand: Strand) -> None:
        """Every stage of ``strand`` is decided: say what became of it."""
        last = len(self.rules) - 1
        try:
            self._refuse_doubled(strand, range(len(self.rules)))
        except ConfigError as error:
            self._refuse(strand, last, error)
        if strand.errors:
            return self._end(strand, "failed", self.rules[min(strand.errors)].name)
        if self.graph.ends & strand.made.keys():
            return self._end(strand, "done", None)
        first = min(stage for stage, why in strand.closed.items() if why == "filtered")
        return self._end(strand, "filtered", self.rules[first].name)

    def _end(self, strand: Strand, fate: str, stage: str | None) -> None:
        strand.fate, strand.ended_in = fate, stage
        strand.error = strand.errors[min(strand.errors)] if strand.errors else None
        self.n_open -= 1
        mine = self.strands_of[strand.at]
        fates = {self.strands[number].fate for number in mine}
        self.n_failed += fate == "failed" and fates <= {"failed", "not chosen"}


def check_ids(ids: Iterable[str], known: Collection[str]) -> None:
    """Raises ConfigError for the first of ``ids`` that no item has; the hint names the nearest."""
    for one in ids:
        if one not in known:
            near = difflib.get_close_matches(one[:200], known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "ids are in results.jsonl, and in the inputs"
            raise ConfigError(f"no item is called {quoted(one)}", hint=hint)
