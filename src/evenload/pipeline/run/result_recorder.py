"""From what workers answer to what is known for good, and what follows from it.

    ended ──► results_of ──┬──► advance ──► the tasks that may run because of it
                           └──► (ledger) ──► tell ──► events

Work goes on from a result at once: its files are there, and what is made of it is journaled behind it. It is
told when the journal has it. What an earlier session has on disk is taken in the same way, without running
anything.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenload.errors import EvenloadError, reason_of
from evenload.events import ItemFailed, ItemFinished, Restored, read_events
from evenload.pipeline.dispatch.item_flow import StageTask, Strand
from evenload.pipeline.dispatch.strand import ItemFailure, Refusal
from evenload.pipeline.run.outcome_reader import EndedTask
from evenload.pipeline.run.stage_inputs import RunContext
from evenload.pipeline.store.kept_results import KeptResults
from evenload.pipeline.store.ledger import LedgerEntry, StageResult
from evenload.pipeline.store.run_folder import HINT, says_full


class ResultRecorder:
    """The keeper of a run's results: in its ledger, in its items' courses and in its events.

    n_restored  results that came from an earlier session
    """

    def __init__(self, context: RunContext, kept: KeptResults):
        self.n_restored = 0
        self._spec, self._flow, self._log = context.spec, context.flow, context.log
        self._run_folder, self._ledger, self._kept = context.run_folder, context.run_folder.ledger, kept
        self._told: dict[tuple[str, str], Mapping[str, Any] | None] = {}
        self._n_untold: Counter[int] = Counter()  # strand -> its results that the disk does not have yet
        self._refused: list[Refusal] = []  # failed between stages, and not told yet
        self._n_refused = 0
        self._adopted: list[StageResult] = []  # from another folder, and not in this one's ledger yet

    def restore(self, tasks: list[StageTask]) -> list[StageTask]:
        """Take what is there already; returns the tasks that are left."""
        self._ledger.keep_facts({one.digest: one.facts for one in self._kept.settings.identities})
        if self._kept.settings.fresh:
            self._ledger.forget(self._kept.settings.fresh)
        self._told = self._told_already()
        tasks = sorted(self._without_kept(tasks), key=lambda task: (task.stage, task.strand))
        adopted = self.take_adopted()
        self._ledger.keep((one.stage, one.strand, one.kept) for one in adopted)
        self.tell(adopted)
        for text in self._kept.notes:
            self._log.note("warning", "pipeline", text)
        self._tell_refused()
        return tasks

    def take_adopted(self) -> list[StageResult]:
        """Results of other run folders that the ledger is to keep, too."""
        adopted, self._adopted = self._adopted, []
        return adopted

    def results_of(self, ended: Sequence[EndedTask]) -> tuple[list[StageResult], EvenloadError | None]:
        """What is to be kept of these, and an error if the disk of a worker takes no more."""
        stages, strands = self._spec.stages, self._flow.strands
        results, fault = [], None
        for one in ended:
            try:
                kept = self._kept_of(one)
            except EvenloadError as error:
                fault = error
                continue
            results.append(StageResult(one.task, stages[one.task.stage].name, strands[one.task.strand], kept))
        return results, fault

    def advance(self, results: Sequence[StageResult]) -> list[StageTask]:
        """Go on from these; returns what may run because of them."""
        tasks = []
        for result in results:
            self._n_untold[result.strand.number] += 1
            tasks += self._without_kept(self._advance(result.task, result.kept))
        return tasks

    def tell(self, results: Sequence[StageResult]) -> None:
        """The disk has these."""
        for result in results:
            self._tell(result.task, result.kept)
            self._n_untold[result.strand.number] -= 1
        self._tell_refused()

    def _tell_refused(self) -> None:
        """Tell which strands failed between stages; each after its own results, and once in all sessions."""
        self._refused += self._flow.refused[self._n_refused :]
        self._n_refused = len(self._flow.refused)
        waiting = []
        for refusal in self._refused:
            strand, error = refusal
            name = self._flow.name_of(strand)
            if self._n_untold[strand.number]:
                waiting.append(refusal)
            elif self._told.get((error.stage, name), {}) is not None:
                self._told[error.stage, name] = None
                self._log.emit(
                    ItemFailed(
                        self._log.now(), error.stage, strand.number, name, error.type, error.message, "", ""
                    )
                )
        self._refused = waiting

    def disown(self, results: Sequence[StageResult]) -> None:
        """The disk will not have these: they were not done."""
        for result in results:
            result.strand.take_back(result.task.stage)

    def _without_kept(self, tasks: list[StageTask]) -> list[StageTask]:
        """``tasks``, and what follows from them, without those whose results are there."""
        if not self._kept.has_any:
            return tasks
        left: list[StageTask] = []
        restored: list[list[int]] = [[] for _ in self._spec.stages]
        todo = list(reversed(tasks))
        while todo:
            task = todo.pop()
            found = self._kept.find(task)
            if found is None:
                left.append(task)
                continue
            restored[task.stage].append(task.strand)
            todo += reversed(self._take_over(task, found.entry, is_new=found.is_new))
        for stage, strands in zip(self._spec.stages, restored, strict=True):
            if strands:
                self._log.emit(
                    Restored(self._log.now(), stage.name, strands[0], len(strands), tuple(strands))
                )
        self.n_restored += sum(map(len, restored))
        return left

    def _take_over(self, task: StageTask, kept: LedgerEntry, *, is_new: bool) -> list[StageTask]:
        """Go on from a result that is there; one that is told already is not told again."""
        strand, stage = self._flow.strands[task.strand], self._spec.stages[task.stage].name
        more = self._advance(task, kept)
        made = strand.made[task.stage].outputs if kept.error is None else {}
        if is_new:
            self._n_untold[task.strand] += 1
            self._adopted.append(StageResult(task, stage, strand, kept))
            return more
        key = stage, self._flow.name_of(strand)
        if not self._is_told(key, made, strand):
            self._tell(task, kept)
            self._told[key] = None if kept.error is not None else made
        return more

    def _is_told(self, key: tuple[str, str], made: Mapping[str, Any], strand: Strand) -> bool:
        """Was this told last of the item in this stage?"""
        if key not in self._told:
            return False
        was = self._told[key]
        if any(error.stage == key[0] for error in strand.errors.values()):
            return was is None
        return was is not None and all(was.get(name) == value for name, value in made.items())

    def _told_already(self) -> dict[tuple[str, str], Mapping[str, Any] | None]:
        """Stage and item -> the outputs, None if it failed, that earlier sessions have told last."""
        with contextlib.suppress(OSError):
            return {
                (event.stage, event.item): event.outputs if isinstance(event, ItemFinished) else None
                for event in read_events(self._run_folder.path)
                if isinstance(event, ItemFinished | ItemFailed)
            }
        return {}

    def _kept_of(self, one: EndedTask) -> LedgerEntry:
        outcome, seconds = one.outcome, one.outcome.stop_s - one.outcome.start_s
        identity = self._kept.settings.identities[one.task.stage].digest
        reads = self._kept.reads_of(one.task, outcome.reads)
        if outcome.kind == "done":
            return LedgerEntry(identity, reads, outcome.outputs, outcome.files, None, seconds, one.device)
        kind, text, traceback = outcome.error
        if says_full(text):
            raise EvenloadError(f"the disk of {self._run_folder.path} takes no more: {text}", hint=HINT)
        stage = self._spec.stages[one.task.stage].name
        error = ItemFailure(stage, kind, text, traceback)
        return LedgerEntry(identity, reads, error=error, seconds=seconds, device=one.device)

    def _advance(self, task: StageTask, kept: LedgerEntry) -> list[StageTask]:
        if kept.error is not None:
            return self._flow.failed(task, kept.error)
        return self._flow.done(task, kept.outputs, kept.seconds, kept.files)

    def _tell(self, task: StageTask, kept: LedgerEntry) -> None:
        strand, stage = self._flow.strands[task.strand], self._spec.stages[task.stage].name
        now, name, error = self._log.now(), self._flow.name_of(strand), kept.error
        if error is None:
            # Of a stage that expands, what is of the whole item. A run that broke may not have come to it.
            made = strand.made[task.stage].outputs if task.stage in strand.made else kept.outputs
            shown = {**made, **(self._before(strand) if task.stage == 0 else {})}
            self._log.emit(ItemFinished(now, stage, task.strand, name, shown))
        else:
            self._log.emit(
                ItemFailed(
                    now, stage, task.strand, name, error.type, error.message, kept.device, error.traceback
                )
            )

    def _before(self, strand: Strand) -> dict[str, str]:
        """What a reader of the report wants beside the outputs: the item's group, and a copy of its file."""
        more = {} if strand.item.group is None else {"group": strand.item.group}
        path = self._flow.inputs[strand.at].get("path")
        if not self._spec.report.keep_inputs or not isinstance(path, str) or strand.sample:
            return more
        try:
            return {**more, "before": self._run_folder.keep_input(strand.item.id, Path(path))}
        except OSError as error:  # a copy for the report is not worth a run
            self._log.note("warning", "pipeline", f"no copy of {path}: {reason_of(error)}")

            return more
