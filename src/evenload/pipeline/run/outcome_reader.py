"""What workers' outcomes mean: told to the dispatcher and the record, and kept as what was measured."""

import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenload.errors import reason_of
from evenload.executor.decide.record import Record
from evenload.executor.supervisor.worker import Worker
from evenload.executor.task.failure import Failure
from evenload.executor.task.messages import Gone
from evenload.pipeline.artifacts import UNWRITABLE, is_unwritable, staged_path
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.hang_watch import EndWorker
from evenload.pipeline.dispatch.item_flow import STOPPED, StageTask
from evenload.pipeline.dispatch.worker_protocol import LOAD, Order, OrderOutcome
from evenload.pipeline.plan import Fit
from evenload.pipeline.run.outcome_check import bound_times
from evenload.pipeline.stage import StageSetup

LONG_S = 1.0  # in which an item of a stage that waits does not


@dataclass(slots=True)
class EndedTask:
    """A task that is over: ``outcome`` has its outputs or its error, ``device`` the group that ran it."""

    task: StageTask
    outcome: OrderOutcome
    device: str


class OutcomeReader:
    """Takes in what workers answer. What was seen is kept by group of devices.

    stages      the run's stages, in order
    load_s      seconds to load each stage, by its name
    peak_bytes  most memory
    batches     stage -> what became of the first batch, by group
    parked      stages that waited in host memory
    ended       tasks that are over, and were not taken yet
    """

    def __init__(self, dispatcher: GroupScheduler, stages: Sequence[StageSetup], record: Record):
        self.load_s: dict[str, dict[str, float]] = {}
        self.peak_bytes: dict[str, int] = {}
        self.batches: dict[str, dict[str, str]] = {}
        self.parked: dict[str, set[int]] = {}
        self.ended: deque[EndedTask] = deque()
        self._keyless: set[int] = set()  # stages of which it was told that an item has no key
        self._blocking: set[int] = set()  # stages of which it was told that they hold their event loop
        self._dispatcher, self._setups, self._record = dispatcher, tuple(stages), record
        self._stages = tuple(stage.stage for stage in stages)

    def take_ended(self) -> list[EndedTask]:
        ended = list(self.ended)
        self.ended.clear()
        return ended

    def measured(self) -> dict[str, dict]:
        """What a plan can be compared with, for the summary of the run."""
        found: dict[str, dict] = {"load_s": self.load_s, "peak_bytes": self.peak_bytes}
        if self.batches:
            found["batches"] = self.batches
        names = {
            group: [self._stages[stage] for stage in sorted(held)] for group, held in self.parked.items()
        }
        return {**found, "parked": names}

    def take(self, worker: Worker, outcome: OrderOutcome, fit: Fit) -> bool:
        """Take in one outcome of ``worker``; returns True if the worker must be replaced.

        fit  how the stage was to be held, if the order was to load it
        """
        outcome = bound_times(outcome, time.monotonic())
        group, name = worker.slot, self._stages[outcome.stage]
        if outcome.peak_bytes is not None:
            self.peak_bytes[group] = max(self.peak_bytes.get(group, 0), outcome.peak_bytes)
        if outcome.task is None:
            return self._take_load(group, outcome, fit)
        if outcome.kind == "made":
            self._dispatcher.made(group, outcome.task, outcome.stop_s - outcome.start_s)
        elif outcome.kind == "keyed":
            self._take_key(group, outcome)
        elif outcome.kind == "again":
            self._dispatcher.again(group, outcome.task)
        else:
            tried = self._dispatcher.out_of_memory(group, outcome.task) if outcome.kind == "memory" else None
            if tried is None:
                self._end(worker, outcome.task, outcome)
            else:
                self._record.note("warning", f"{group}: no memory for an item of {name}; trying {tried}")
        if outcome.how:
            self._take_comparison(group, outcome.stage, outcome.how)
        return outcome.must_replace

    def unanswered(self, worker: Worker, order: Order, failure: Failure) -> None:
        """``order`` or its answer could not be read: all that it asked for has failed."""
        error = (failure.type_name, failure.message, failure.traceback)
        if order.kind == LOAD:
            self.take(worker, OrderOutcome("refused", order.stage, error=error), order.fit)
        for inputs in order.inputs:
            self.take(worker, OrderOutcome("failed", order.stage, inputs.task, error=error), order.fit)

    def worker_gone(self, worker: Worker, message: Gone, said: str) -> None:
        """``worker`` has ended; ``said``: its last line, to go on a sentence with."""
        now, group, reason = time.monotonic(), worker.slot, message.reason
        running = self._dispatcher.running_on(group)
        for task, since_s in running.items():
            is_copy = self._dispatcher.copies.is_copy(group, task)
            self._span(worker, task, since_s, now, "lost", is_copy=is_copy)
        if running:
            self._record.note("info", f"worker {worker.name} {reason}; a new one is started")
        given_up = self._dispatcher.lost(group, now, reason, said, blames=not message.is_cut_off)
        once = [task for task in given_up if self._dispatcher.is_once_only(task)]
        self.not_again(once, group, reason, message.last_words)
        text = f"the item was given up: every worker that ran it {reason}"
        for task in given_up:
            if task not in once:
                self._fail(task, group, ("WorkerLost", text, message.last_words))

    def superseded(self, worker: Worker) -> None:
        """Note what ``worker`` still runs at the end of the run although another has done it."""
        now = time.monotonic()
        for task, since_s in self._dispatcher.running_on(worker.slot).items():
            if self._dispatcher.copies.is_done_elsewhere(self._dispatcher.groups[worker.slot], task):
                is_copy = self._dispatcher.copies.is_copy(worker.slot, task)
                self._span(worker, task, since_s, now, "superseded", is_copy=is_copy, is_ended=False)

    def not_again(self, tasks: Iterable[StageTask], group: str, reason: str, last_words: str = "") -> None:
        """The worker of these ended, ``reason`` says how, and their stage is not ``repeatable``."""
        text = (
            f"its worker {reason}; whether it was done is not known, and `repeatable: false` is not run again"
        )
        for task in tasks:
            self._fail(task, group, ("WorkerLost", text, last_words))

    def given_up(self, tasks: Sequence[StageTask]) -> None:
        """Note tasks that no worker has, and that are not run, as somebody asked."""
        for task in tasks:
            self._fail(task, "", (*STOPPED, ""))

    def ended_slow(self, worker: Worker, order: EndWorker, stack: str) -> None:
        """``worker`` was ended as ``order`` says; ``stack``: where its threads were."""
        now, group = time.monotonic(), worker.slot
        for task, since_s in self._dispatcher.running_on(group).items():
            self._span(worker, task, since_s, now, "lost")  # ended by us, it is work that nobody has
        if order.loading is not None:
            self.not_again(self._dispatcher.lost(group, now, order.why), group, order.why)
            return
        failed, given_up = self._dispatcher.end_slow(group, order)
        self.not_again(given_up, group, order.why)
        for task in failed:
            kind, text = order.error
            self._fail(task, group, (kind, f"{text} on {group}", stack))

    def _fail(self, task: StageTask, group: str, error: tuple[str, str, str]) -> None:
        self.ended.append(EndedTask(task, OrderOutcome("failed", task.stage, task, error=error), group))

    def _take_load(self, group: str, outcome: OrderOutcome, fit: Fit) -> bool:
        name, seconds = self._stages[outcome.stage], outcome.stop_s - outcome.start_s
        if outcome.kind != "loaded":
            self._refuse(group, outcome)
            return False
        is_read = outcome.how == "read"
        if is_read:
            self.load_s.setdefault(group, {})[name] = seconds
        if outcome.parked:
            self.parked.setdefault(group, set()).update(outcome.parked)
        back = f"brings {name} back from host memory" if outcome.how == "unparked" else f"has {name}"
        self._record.idle(group, outcome.start_s, outcome.stop_s, f"loads {name}" if is_read else back)
        seconds = seconds if is_read else None
        self._dispatcher.loaded(
            group, outcome.stage, fit, seconds, outcome.parked, gives_keys=outcome.gives_keys,
            n_lanes=outcome.n_lanes,
        )  # fmt: skip
        if fit.is_waiting and outcome.n_lanes == 1:
            self._record.note("warning", f"{group}: {name} is done one by one: its calls are not async")
        if not outcome.can_batch and self._dispatcher.batch_of(group, outcome.stage) > 1:
            self._take_comparison(group, outcome.stage, "refused")
        return outcome.must_replace

    def _refuse(self, group: str, outcome: OrderOutcome) -> None:
        """The stage could not be loaded: try another way to hold it, or do without the group."""
        name, (kind, text, _) = self._stages[outcome.stage], outcome.error
        lower = self._dispatcher.smaller_fit(group, outcome.stage) if outcome.kind == "memory" else None
        if lower is not None:
            return self._record.note("warning", f"{group}: no memory to load {name}; trying {lower}")
        self._record.note("warning", f"{group} takes no part in {name}: {kind}: {text}")
        return self._dispatcher.refused(group, outcome.stage, f"{kind}: {text}")

    def _take_key(self, group: str, outcome: OrderOutcome) -> None:
        """A worker says what must be equal in the batch of a task."""
        assert outcome.task is not None
        kind, text, _ = outcome.error
        if kind and outcome.stage not in self._keyless:
            self._keyless.add(outcome.stage)
            name = self._stages[outcome.stage]
            why = f"{name}: an item has no batch_key and runs alone: {kind}: {text}"
            self._record.note("warning", why)
        self._dispatcher.keyed(group, outcome.task, outcome.key)

    def _take_comparison(self, group: str, stage: int, how: str) -> None:
        """What a worker says of the first batch of a stage, beside single items."""
        name = self._stages[stage]
        is_first = group not in self.batches.setdefault(name, {})
        self.batches[name][group] = how
        if how.startswith("equal") and not is_first:
            return None  # of another key
        if how.startswith("equal"):
            text = f"{group}: a batch of {name} gives the bytes of single items: {how}"
            return self._record.note("info", text)
        self._dispatcher.one_by_one(group, stage)
        why = "a batch gives other bytes than single items"
        if how == "refused":
            why = "it has no method batch(inputs, items); write one, or take batch out of the job"
        return self._record.note("warning", f"{group}: {name} is done one by one: {why}")

    def _end(self, worker: Worker, task: StageTask, outcome: OrderOutcome) -> None:
        seconds = outcome.stop_s - outcome.start_s
        is_told = task in self._dispatcher.groups[worker.slot].saving
        is_measured = outcome.kind == "done" and seconds > 0 and not is_told
        if outcome.kind == "done" and seconds - outcome.waited_s > LONG_S:
            self._tell_blocking(worker, task, seconds - outcome.waited_s)
        is_copy = self._dispatcher.copies.is_copy(worker.slot, task)
        is_over = self._dispatcher.ended(
            worker.slot, task, seconds if is_measured else None, is_done=outcome.kind == "done"
        )
        if task.stage in self._dispatcher.copies.stages:
            outcome = self._settled(worker, outcome, is_over=is_over)
        if seconds > 0:
            status = "ok" if outcome.kind == "done" else "failed"
            self._span(
                worker, task, outcome.start_s, outcome.stop_s, status if is_over else "superseded",
                outcome.waited_s, outcome.cpu_s, is_copy=is_copy,
            )  # fmt: skip
        if is_over:
            self.ended.append(EndedTask(task, outcome, worker.slot))

    def _settled(self, worker: Worker, outcome: OrderOutcome, *, is_over: bool) -> OrderOutcome:
        """Give the files of an attempt that counts their names, and remove those of one that does not.

        Returns what became of the task then.
        """
        folder = self._setups[outcome.stage].run_folder
        try:
            for name in outcome.files:
                path = os.path.join(folder, outcome.outputs[name])
                if is_over:
                    os.replace(staged_path(path, worker.number), path)
                else:
                    Path(staged_path(path, worker.number)).unlink(missing_ok=True)
        except OSError as error:
            said = UNWRITABLE if is_unwritable(error) else "its file cannot be taken"
            text = f"{said}: {reason_of(error, with_path=True)}"
            return outcome.failed((type(error).__name__, text, ""))
        return outcome

    def _tell_blocking(self, worker: Worker, task: StageTask, seconds: float) -> None:
        """Say once of a stage whose items wait on one event loop that one of them held it for so long."""
        if self._dispatcher.is_waiting(worker.slot, task.stage) and task.stage not in self._blocking:
            self._blocking.add(task.stage)
            name = self._stages[task.stage]
            text = f"{name}: an item held the event loop of {worker.slot} for {seconds:.1f} s: no other"
            self._record.note("warning", f"{text} went on; `await asyncio.to_thread(...)` what takes long")

    def _span(
        self, worker: Worker, task: StageTask, start_s: float, stop_s: float, status: str,
        waited_s: float = 0.0, cpu_s: float | None = None, *, is_copy: bool = False, is_ended: bool = True,
    ) -> None:  # fmt: skip
        busy_s = stop_s - start_s if status != "lost" and is_ended else 0.0
        self._record.span(
            self._stages[task.stage], worker.slot, worker.name, (task.strand,), start_s, stop_s,
            busy_s, status, "", start_s, is_copy, None, waited_s, cpu_s,
        )  # fmt: skip
