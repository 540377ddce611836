"""Which stages each item still has to go through: pure, without device, clock or file.

    begin() ──► tasks ──► done(task, outputs) | failed(task, why) ──► more tasks ──► ... ──► fates

A strand is one sample of one item on its way, or a part of one; without fan-out each item has one. It enters
a stage once it is through with all that the stage needs; stages that do not need each other run side by side.
A stage with ``samples`` makes strands of an item, one with ``best`` ends all but the best of them. One with
``when`` is closed to those for which the condition does not hold, and so is what needs it; the same when a
stage fails. A stage that expands makes parts, which are strands of their own; one that gathers waits until it
is known of each part whether it gets there.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from evenload._plain_text import seconds_text
from evenload.errors import ConfigError, quoted
from evenload.events import json_text
from evenload.pipeline.artifacts import digest_of, part_id
from evenload.pipeline.dispatch.strand import (
    ItemFailure,
    Made,
    Refusal,
    StageRule,
    StageTask,
    Strand,
    TimeLimit,
    fault_of_choice,
    rank_of,
)
from evenload.pipeline.part_keys import MOST_PARTS, is_key
from evenload.pipeline.seeds import item_seed
from evenload.pipeline.stage import Item
from evenload.pipeline.stage_graph import StageGraph, chain

__all__ = ["STOPPED", "ItemFlow", "StageRule", "StageTask", "Strand", "TimeLimit"]

STOPPED = ("Stopped", "it was given up by `evenload stop`")


def fail_with_parts(strand: Strand, strands: Sequence[Strand], excused: AbstractSet[int]) -> None:
    """Note the failure of a part as that of ``strand``, unless it has one of its own.

    strands  all of the run, by number
    excused  stages in which a part may fail: those that gather go on without it
    """
    for stage, numbers in sorted(strand.parts.items()):
        lost = (strands[n] for n in numbers if strands[n].fate == "failed")
        unexcused = next((one for one in lost if not one.errors.keys() <= excused), None)
        if not strand.errors and unexcused is not None and unexcused.error is not None:
            why = unexcused.error
            strand.errors[stage] = replace(why, message=f"{unexcused.item.id}: {why.message}")


def fate_of(strand: Strand, strands: Sequence[Strand], graph: StageGraph) -> str:
    """Return failed, done or filtered; what is gathered of a part need not come farther to be done."""
    if strand.errors:
        return "failed"
    if has_come_through(strand, strands, graph):
        return "done"
    if strand.parent is None:
        return "filtered"
    is_used = strand.scope not in graph.scopes
    is_gathered = is_used or any(stage in strand.made for stage in graph.last_of(strand.scope))
    return "done" if is_gathered else "filtered"


def has_come_through(strand: Strand, strands: Sequence[Strand], graph: StageGraph) -> bool:
    """Is it, or a part of it, through with a stage that nobody needs, or was there no part?"""
    empty = [stage for stage, numbers in strand.parts.items() if not numbers]
    if graph.ends & strand.made.keys() or any(
        stage in graph.scopes[end] for end in graph.ends for stage in empty
    ):
        return True
    parts = (strands[number] for numbers in strand.parts.values() for number in numbers)
    return any(has_come_through(one, strands, graph) for one in parts)


class ItemFlow:
    """The way of all items of a run through its stages, as far as it has come.

    strands     all samples and parts of all items, by number
    strands_of  of item ``at``, the numbers of its strands, in order of sample
    n_open      strands that are on their way
    n_failed    items of which every strand has failed that was not passed over for a better one
    refused     strands that failed between stages: a condition or a choice could not be made of their values,
                two stages gave outputs of one name, or their time was up

    graph       what each stage needs; by default the one before it
    timeout_s   seconds that an item (each sample by itself) may take over all stages
    skipped     ids of items and parts that are to go through no stage now
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
        self._stages_of: dict[tuple[int, ...], list[int]] = {}
        for stage, scope in enumerate(self.graph.scopes):
            self._stages_of.setdefault(scope, []).append(stage)
        self._ids = frozenset(item.id for item in self.items) if self.graph.expands else frozenset[str]()
        partial = [stage for stage, rule in enumerate(self.rules) if rule.is_partial]
        self._excused = frozenset(stage for gather in partial for stage in self.graph.inner(gather))
        self._touched: list[Strand] = []  # that may go on because of what became of others
        self._seed, self._timeout_s = seed, timeout_s
        self._skipped, self._stopped = frozenset(skipped), set[str]()

    def begin(self) -> list[StageTask]:
        """The first tasks, in input order."""
        tasks = []
        for at, item in enumerate(self.items):
            strand = self._add(Strand(len(self.strands), at, 0, item))
            if item.id in self._skipped:
                self._end(strand, "skipped")
            else:
                tasks += self._go_on(strand)
        return tasks

    def values(self, task: StageTask) -> dict[str, Any]:
        """What the stage is given: the item's own, and what it needs of others; files as relative paths."""
        return {**self.inputs[self.strands[task.strand].at], **self.made_before(task).outputs}

    def made_before(self, task: StageTask) -> Made:
        """What the stages gave that the task's stage needs, themselves or through others."""
        strand, stage = self.strands[task.strand], task.stage
        made = strand.merged(self._before[stage])
        if stage in self.graph.gathers:
            name, needs = self.rules[stage].gather, self.graph.inner_needs(stage)
            found = gathered(self._parts(strand, stage), needs, self._before[stage])
            made.outputs[name], made.files[name] = found
        return made

    def n_coming(self, stage: int) -> int | None:
        """How many strands enter ``stage`` in all; None while that is not known."""
        needs, scope = self.graph.needs[stage], self.graph.scopes[stage]
        mine = [strand for strand in self.strands if strand.scope == scope]
        for whole in self.strands:
            depth = len(whole.scope)
            is_whole = whole.fate == "open" and depth < len(scope) and scope[:depth] == whole.scope
            if is_whole and not whole.is_decided(scope[depth]):
                return None
        states = [[self._state(strand, need) for need in needs] for strand in mine]
        if any(strand.fate == "open" and "open" in some for strand, some in zip(mine, states, strict=True)):
            return None
        return sum(set(some) <= {"made"} for some in states)

    def stop(self, name: str) -> set[int]:
        """Let the item or part with this id enter no further stage; returns its strands that are not over.

        Raises ConfigError if there is none, with the nearest.
        """
        expands = {rule.expand for rule in self.rules if rule.expand}
        check_ids([name], {one.id for one in self.items}, expands)
        self._stopped.add(name)
        still_open = (strand for strand in self.strands if strand.fate == "open")
        return {one.number for one in still_open if name in [owner.item.id for owner in one.line]}

    def name_of(self, strand: Strand) -> str:
        """The item, and which of its samples it is, for people and events."""
        return strand.item.id if strand.sample == 0 else f"{strand.item.id} #{strand.sample}"

    def limit_of(self, task: StageTask) -> TimeLimit | None:
        """How long the task may take; None: as long as it likes."""
        rule, spent_s = self.rules[task.stage], self.strands[task.strand].spent_s
        left_s = None if self._timeout_s is None else max(0.0, self._timeout_s - spent_s)
        if left_s is not None and (rule.timeout_s is None or left_s < rule.timeout_s):
            text = f"{self._timeout_s:g} s over all stages ({seconds_text(spent_s)} before this one)"
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
        strand.spent_s += seconds
        made = Made(dict(outputs), dict(files or {}))
        if rule.expand:
            self._expand(strand, task.stage, made)
            return self._go_on(strand)
        strand.made[task.stage] = made
        self._tell_parent(strand, task.stage)
        if rule.best_by is None:
            return self._go_on(strand)
        if fault := fault_of_choice(strand.outputs, rule.best_by):
            self._refuse(strand, task.stage, fault)
            self._end(strand, "failed")
        return self._choose(strand.at, task.stage)

    def failed(self, task: StageTask, error: ItemFailure) -> list[StageTask]:
        """The strand enters nothing that needs this stage; others of its item may go on because of it."""
        strand = self.strands[task.strand]
        strand.errors[task.stage] = error
        self._close(strand, task.stage, "failed")
        return self._go_on(strand)

    def excuses(self, stage: int) -> bool:
        """Does an item go on without its parts that failed in ``stage``?"""
        return stage in self._excused

    def parts_of(self, strand: Strand) -> list[Strand]:
        """All parts of ``strand``, and theirs, each before its own."""
        numbers = [number for stage in sorted(strand.parts) for number in strand.parts[stage]]
        return [one for n in numbers for one in (self.strands[n], *self.parts_of(self.strands[n]))]

    # --- inside -----------------------------------------------------------------------------------

    def _add(self, strand: Strand) -> Strand:
        self.strands.append(strand)
        if strand.parent is None:
            self.strands_of[strand.at].append(strand.number)
        self.n_open += 1
        return strand

    def _expand(self, strand: Strand, stage: int, made: Made) -> None:
        """Make the parts that a stage gave."""
        name = self.rules[stage].expand
        try:
            strand.made[stage], parts = split_parts(made, name)
        except ConfigError as error:
            return self._refuse(strand, stage, error)
        self._tell_parent(strand, stage)
        ids = [part_id(strand.item.id, name, key) for key, _ in parts]
        if taken := self._ids.intersection(ids):
            said = ConfigError(f"{quoted(min(taken))} would be a part and is an item", hint="rename the item")
            strand.parts[stage] = []
            return self._refuse(strand, stage, said)
        strand.parts[stage] = list(range(len(self.strands), len(self.strands) + len(parts)))
        strand.n_open_parts += len(parts)
        for place, (one, (_, given)) in enumerate(zip(ids, parts, strict=True)):
            item = Item(place, one, item_seed(self._seed, one), strand.item.group)
            part = Strand(len(self.strands), strand.at, 0, item, strand.spent_s, {stage: given})
            part.scope, part.parent = (*strand.scope, stage), strand
            self._touched.append(self._add(part))
            if one in self._skipped:
                self._leave_out(part)

    def _leave_out(self, part: Strand) -> None:
        """Let a part go through no stage, as one that does not meet a condition."""
        for stage in self._stages_of.get(part.scope, []):
            self._close(part, stage, "filtered")
        self._end(part, "skipped")

    def _go_on(self, strand: Strand) -> list[StageTask]:
        """Let ``strand``, and who waits for it, into each stage whose needs are there, or end them."""
        tasks = self._go_on_alone(strand)
        while self._touched:
            touched, self._touched = self._touched, []
            for one in touched:
                if one.fate == "open":
                    tasks += self._go_on_alone(one)
        return tasks

    def _go_on_alone(self, strand: Strand) -> list[StageTask]:
        tasks: list[StageTask] = []
        mine = self._stages_of.get(strand.scope, [])
        for stage in mine:
            if stage in strand.begun or stage in strand.closed:
                continue
            states = {self._state(strand, need) for need in self.graph.needs[stage]}
            if "closed" in states:
                self._close(strand, stage, "shut")
            elif "open" not in states:
                tasks += self._enter(strand, stage)
        if strand.n_open_parts or not all(map(strand.is_decided, mine)):
            return tasks
        self._settle(strand)
        is_choice = strand.fate != "done" and strand.parent is None
        return [*tasks, *(self._settle_open_choice(strand) if is_choice else ())]

    def _state(self, strand: Strand, need: int) -> str:
        """Is ``strand``, or what it is part of, through with ``need``: made | closed | open."""
        scope = self.graph.scopes[need]
        if len(scope) > len(strand.scope):  # it gathers
            parts = scope[-1]
            if parts in strand.closed:
                return "closed"
            is_open = parts not in strand.parts or strand.n_decided[need] < len(strand.parts[parts])
            return "open" if is_open else "made"
        owner = strand.line[len(scope)]
        return "closed" if need in owner.closed else "made" if need in owner.made else "open"

    def _parts(self, strand: Strand, gather: int) -> list[Strand]:
        return [self.strands[number] for number in strand.parts.get(self.graph.gathers[gather], ())]

    def _close(self, strand: Strand, stage: int, why: str) -> None:
        strand.closed[stage] = why
        self._tell_parent(strand, stage)

    def _tell_parent(self, strand: Strand, stage: int) -> None:
        """Note that it is known whether ``strand`` gets through it: who waits for that may go on."""
        parent = strand.parent
        if parent is not None:
            parent.n_decided[stage] += 1
            if parent.n_decided[stage] == len(parent.parts[strand.scope[-1]]):
                self._touched.append(parent)
        if any(len(self.graph.scopes[later]) > len(strand.scope) for later in self.graph.next[stage]):
            self._touched += self.parts_of(strand)

    def _enter(self, strand: Strand, stage: int) -> list[StageTask]:
        """Let ``strand`` into a stage, or close the stage if its condition fails; returns what may run."""
        rule = self.rules[stage]
        if ended := self._ended_early(strand):
            self._refuse(strand, stage, ended[1], ended[0])
            return []
        try:
            self._refuse_doubled(strand, self._before[stage])
            if stage in self.graph.gathers and not self.rules[stage].is_partial:
                parts, needs = self._parts(strand, stage), self.graph.inner_needs(stage)
                refuse_lost(parts, needs, self.graph, self.rules[stage].gather)
            values = {"group": strand.item.group, **self.values(StageTask(stage, strand.number))}
            is_let_in = rule.condition is None or rule.condition.holds({**values, "id": strand.item.id})
        except ConfigError as error:
            self._refuse(strand, stage, error)
            return []
        if not is_let_in:
            self._close(strand, stage, "filtered")
            return []
        strand.begun.add(stage)
        if rule.samples > 1 and len(self.strands_of[strand.at]) == 1:
            for sample in range(1, rule.samples):
                item = replace(strand.item, seed=item_seed(self._seed, strand.item.id, sample))
                self._add(strand.twin(len(self.strands), sample, item))
            return [StageTask(stage, number) for number in self.strands_of[strand.at]]
        return [StageTask(stage, strand.number)]

    def _ended_early(self, strand: Strand) -> tuple[str, str] | None:
        """Why the strand goes no further, whatever its values: type and text of the failure."""
        if self._stopped and any(one.item.id in self._stopped for one in strand.line):
            return STOPPED
        if self._timeout_s is not None and strand.spent_s > self._timeout_s:
            spent = seconds_text(strand.spent_s)
            text = f"its stages took {spent} so far, longer than {self._timeout_s:g} s in all"
            return "TaskTimeout", text
        return None

    def _refuse_doubled(self, strand: Strand, stages: Sequence[int]) -> None:
        """Raise ConfigError if two of ``stages``, which ran side by side, gave outputs of one name."""
        doubled = None if self.graph.is_chain else strand.doubled(stages)
        if doubled is not None:
            name, first, second = doubled
            who = f"stage {quoted(self.rules[first].name)} and stage {quoted(self.rules[second].name)}"
            raise ConfigError(
                f"{quoted(name)} was given by {who}", hint="let one of them give it another name"
            )

    def _choose(self, at: int, stage: int) -> list[StageTask]:
        """Once all of an item's strands are through ``stage`` or ended, the best of them go on."""
        mine = [self.strands[number] for number in self.strands_of[at]]
        if any(strand.fate == "open" and stage not in strand.made for strand in mine):
            return []
        rule = self.rules[stage]
        open_ones = [strand for strand in mine if strand.fate == "open"]
        ranks = [(rank_of(one.outputs.get(rule.best_by or ""), rule), one.sample, one) for one in open_ones]
        ranked = sorted((one for one in ranks if one[0] is not None), key=lambda one: one[:2])
        chosen = [strand for _, _, strand in ranked[: rule.n_best]]
        for strand in open_ones:
            if not ranked:
                fault = ConfigError(f"best: no sample has a number for {quoted(rule.best_by)}")
                self._refuse(strand, stage, fault)
                self._end(strand, "failed")
            elif strand not in chosen:
                self._end(strand, "not chosen")
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
        strand.errors[stage] = failure
        if strand.is_decided(stage):
            strand.closed[stage] = "failed"
        else:
            self._close(strand, stage, "failed")
        self.refused.append(Refusal(strand, failure))

    def _settle(self, strand: Strand) -> None:
        """Every stage of ``strand`` is decided, and its parts have ended: say what became of it."""
        mine = self._stages_of.get(strand.scope, [])
        try:
            self._refuse_doubled(strand, mine)
        except ConfigError as error:
            self._refuse(strand, mine[-1], error)
        fail_with_parts(strand, self.strands, self._excused)
        self._end(strand, fate_of(strand, self.strands, self.graph))

    def _end(self, strand: Strand, fate: str) -> None:
        strand.fate = fate
        strand.error = strand.errors[min(strand.errors)] if strand.errors else None
        self.n_open -= 1
        if strand.parent is not None:
            strand.parent.n_open_parts -= 1
            if not strand.parent.n_open_parts:
                self._touched.append(strand.parent)
            return
        fates = {self.strands[number].fate for number in self.strands_of[strand.at]}
        self.n_failed += fate == "failed" and fates <= {"failed", "not chosen"}


def split_parts(made: Made, parts: str) -> tuple[Made, list[tuple[str, Made]]]:
    """Divide what an expanding stage gave: what is of the whole, with the number of parts, and of each part.

    The stage gave ``{"pages": ["001", "002"], "001.text": ..., "002.text": ..., "title": ...}``.
    Raises ConfigError if it did not: workers check that, but who knows what a worker is.
    """
    keys = made.outputs.get(parts)
    if not isinstance(keys, list) or len(keys) > MOST_PARTS or not all(map(is_key, keys)):
        raise ConfigError(f"{parts} came back as {quoted(repr(keys)[:200])}, which are no names of parts")
    whole, each = Made({}, {}), {key: Made({}, {}) for key in keys}
    whole.outputs[parts] = len(each)
    for name, value in made.outputs.items():
        key, dot, output = name.partition(".")
        if name == parts:
            continue
        target, output = (each[key], output) if dot and key in each else (whole, name)
        target.outputs[output] = value
        if name in made.files:
            target.files[output] = made.files[name]
    return whole, list(each.items())


def gathered(parts: Sequence[Strand], needs: Iterable[int], before: Sequence[int]) -> tuple[list, list]:
    """Return the values of ``parts`` that are through with all ``needs``, and a digest of them.

    before  stages whose outputs count; what the parts share with the whole is left out
    The second is as the ledger has files: bytes (none) and digest, in which files count with their content.
    """
    needs, values, digests = list(needs), [], []
    for part in parts:
        if all(need in part.made for need in needs):  # those that were filtered are left out
            outputs: dict[str, Any] = {"id": part.item.id}
            files: dict[str, list] = {}
            for stage in before:
                if stage in part.made:
                    outputs.update(part.made[stage].outputs)
                    files.update(part.made[stage].files)
            values.append(outputs)
            digests.append({k: ["file", files[k][1]] if k in files else v for k, v in outputs.items()})
    return values, [0, digest_of(json_text(digests).encode("utf-8", "backslashreplace"))]


def refuse_lost(parts: Sequence[Strand], needs: Sequence[int], graph: StageGraph, name: str) -> None:
    """Raise ConfigError if one of ``parts`` has failed before it was through with ``needs``."""
    whys = ((part, _why_lost(part, need, graph)) for part in parts for need in needs)
    lost = {part.item.id: why for part, why in whys if why is not None}
    if lost:
        first, why = next(iter(lost.items()))
        raise ConfigError(
            f"{len(lost)} of {len(parts)} {name} failed, such as {quoted(first)} in {why.stage}: {why.type}: "
            f"{why.message}",
            hint="gather: {by: ..., allow_failed: true} goes on with the others",
        )


def _why_lost(part: Strand, stage: int, graph: StageGraph) -> ItemFailure | None:
    """Return the failure because of which ``part`` is not through with ``stage``; None if it was filtered."""
    owner = next((one for one in part.line if stage in one.closed), None)
    if owner is None:
        return None
    if stage in owner.errors:
        return owner.errors[stage]
    found = (_why_lost(owner, need, graph) for need in graph.needs[stage])
    return next((one for one in found if one is not None), None) if owner.closed[stage] == "shut" else None


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
