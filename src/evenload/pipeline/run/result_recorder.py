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

from evenload.errors import EvenloadError
from evenload.events import EventLog, ItemFailed, ItemFinished, Note, Restored, read_events
from evenload.pipeline.dispatch.item_failure import ItemFailure
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageTask, Strand
from evenload.pipeline.job.spec import JobSpec
from evenload.pipeline.run.outcome_reader import EndedTask
from evenload.pipeline.stage import Item
from evenload.pipeline.store.full_disk import HINT, says_full
from evenload.pipeline.store.group_commit import StageResult
from evenload.pipeline.store.ledger import Ledger, LedgerEntry, digest_inputs, digest_result
from evenload.pipeline.store.run_folder import RunFolder

__all__ = ["ResultRecorder"]


class ResultRecorder:
    """The keeper of a run's results: in its ledger, in its items' courses and in its events.

    n_restored  results that came from an earlier session
    """

    def __init__(
        self,
        spec: JobSpec,
        flow: ItemFlow,
        items: Sequence[tuple[Item, Mapping[str, Any]]],
        run_folder: RunFolder,
        ledger: Ledger,
        log: EventLog,
        *,
        retries_failed: bool = False,
    ):
        self.n_restored = 0
        self._spec, self._flow, self._log = spec, flow, log
        self._run_folder, self._ledger = run_folder, ledger
        self._retries_failed = retries_failed
        self._digests: dict[int, str] = {}  # strand -> digest of all that its next result is made of
        self._inputs_digests = [digest_inputs(inputs, item.seed) for item, inputs in items]
        self._told: dict[tuple[str, str], bool] = {}
        self._n_untold: Counter[int] = Counter()  # strand -> its results that the disk does not have yet
        self._refused: list[Strand] = []  # failed between stages, and not told yet
        self._n_refused = 0

    def restore(self, tasks: list[StageTask]) -> list[StageTask]:
        """Take what is on disk already; returns the tasks that are left."""
        if self._run_folder.is_resumed:
            self._told = self._told_already()
            tasks = sorted(self._without_kept(tasks), key=lambda task: (task.stage, task.strand))
            for text in self._ledger.notes:
                self._log.emit(Note(self._log.now(), "warning", "pipeline", text))
        self._tell_refused()
        return tasks

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
        for strand in self._refused:
            error, name = strand.error, self._flow.name_of(strand)
            if self._n_untold[strand.number]:
                waiting.append(strand)
            elif error is not None and self._told.get((error.stage, name)) is not False:
                self._told[error.stage, name] = False
                self._log.emit(
                    ItemFailed(
                        self._log.now(), error.stage, strand.number, name, error.type, error.message, "", ""
                    )
                )
        self._refused = waiting

    def disown(self, results: Sequence[StageResult]) -> None:
        """The disk will not have these: they were not done."""
        for result in results:
            result.strand.fate, result.strand.error = "open", None
            for name in result.kept.outputs:
                result.strand.outputs.pop(name, None)

    def _without_kept(self, tasks: list[StageTask]) -> list[StageTask]:
        """``tasks``, and what follows from them, without those whose results are on disk."""
        if not self._run_folder.is_resumed:
            return tasks
        left: list[StageTask] = []
        restored: list[list[int]] = [[] for _ in self._spec.stages]
        todo = list(reversed(tasks))
        while todo:
            task = todo.pop()
            strand = self._flow.strands[task.strand]
            stage = self._spec.stages[task.stage].name
            kept = self._ledger.find(stage, strand, self._digest_of(strand))
            if kept is None or (kept.error is not None and self._retries_failed):
                left.append(task)
                continue
            restored[task.stage].append(task.strand)
            key, more = (stage, self._flow.name_of(strand)), self._advance(task, kept)
            if self._told.get(key) is not (strand.error is None or strand.error.stage != stage):
                self._tell(task, kept)
                self._told[key] = kept.error is None
            todo += reversed(more)
        for stage, strands in zip(self._spec.stages, restored, strict=True):
            if strands:
                self._log.emit(
                    Restored(self._log.now(), stage.name, strands[0], len(strands), tuple(strands))
                )
        self.n_restored += sum(map(len, restored))
        return left

    def _digest_of(self, strand: Strand) -> str:
        return self._digests.setdefault(strand.number, self._inputs_digests[strand.at])

    def _told_already(self) -> dict[tuple[str, str], bool]:
        """Stage and item -> was it done? By what earlier sessions have said last in events.jsonl."""
        with contextlib.suppress(OSError):
            return {
                (event.stage, event.item): isinstance(event, ItemFinished)
                for event in read_events(self._run_folder.path)
                if isinstance(event, ItemFinished | ItemFailed)
            }
        return {}

    def _kept_of(self, one: EndedTask) -> LedgerEntry:
        strand, outcome = self._flow.strands[one.task.strand], one.outcome
        digest, seconds = self._digest_of(strand), outcome.stop_s - outcome.start_s
        if outcome.kind == "done":
            return LedgerEntry(digest, outcome.outputs, outcome.files, None, seconds, one.device)
        kind, text, traceback = outcome.error
        if says_full(text):
            raise EvenloadError(f"the disk of {self._run_folder.path} takes no more: {text}", hint=HINT)
        stage = self._spec.stages[one.task.stage].name
        return LedgerEntry(
            digest, error=ItemFailure(stage, kind, text, traceback), seconds=seconds, device=one.device
        )

    def _advance(self, task: StageTask, kept: LedgerEntry) -> list[StageTask]:
        strand = self._flow.strands[task.strand]
        if kept.error is not None:
            return self._flow.failed(task, kept.error)
        made = digest_result(self._digest_of(strand), kept)
        tasks = self._flow.done(task, kept.outputs, kept.seconds)
        for one in tasks if len(tasks) > 1 else ():
            self._digests.setdefault(one.strand, made)  # samples of it, unless they have come farther
        self._digests[task.strand] = made
        return tasks

    def _tell(self, task: StageTask, kept: LedgerEntry) -> None:
        strand, stage = self._flow.strands[task.strand], self._spec.stages[task.stage].name
        now, name, error = self._log.now(), self._flow.name_of(strand), kept.error
        if error is None:
            shown = {**kept.outputs, **(self._before(strand) if task.stage == 0 else {})}
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
            self._log.emit(Note(self._log.now(), "warning", "pipeline", f"no copy of {path}: {error}"))
            return more
