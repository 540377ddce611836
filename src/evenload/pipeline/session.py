"""One run of a job while it runs: what is asked of the workers, what is kept of their answers.

course (who needs what) ──► driver (who runs it) ──► ledger (on disk) ──► course, events
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evenload._version import __version__
from evenload.devices import DevicePool
from evenload.devices.telemetry import Telemetry
from evenload.errors import EvenloadError
from evenload.events import (
    Event,
    EventFile,
    EventLog,
    ItemFailed,
    ItemFinished,
    Note,
    Restored,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
    json_text,
    read_events,
)
from evenload.executor.backends import make_backend
from evenload.executor.control import Control
from evenload.executor.record import Record
from evenload.pipeline.course import Course, StageRule, Strand, Task
from evenload.pipeline.dispatch import Dispatcher
from evenload.pipeline.drive import Driver, Ended
from evenload.pipeline.fleet import Fleet
from evenload.pipeline.folder import RunFolder
from evenload.pipeline.full_disk import HINT, says_full
from evenload.pipeline.host import RUN, Order, run_folder_path
from evenload.pipeline.ledger import Kept, Ledger, inputs_digest, made_digest
from evenload.pipeline.plan import Phase, Plan
from evenload.pipeline.results import ItemFailure, ItemResult, row_of
from evenload.pipeline.spec import JobSpec, StageSpec
from evenload.pipeline.stage import Item, ModelFolder, StageWorker
from evenload.pipeline.target import load_target, locate

__all__ = ["Session"]


class Session:
    """``go`` runs the stages, ``rows`` and ``headline`` say what came of it, ``finish`` ends the events.

    ``error`` is what ended the run for all items, to be raised once the results are written. ``measured``
    holds what the plan can be compared with.
    """

    def __init__(
        self,
        spec: JobSpec,
        items: Iterable[tuple[Item, Mapping[str, Any]]],
        job_folder: Path,
        run_folder: RunFolder,
        ledger: Ledger,
        sinks: Iterable[Callable[[Event], None]],
        *,
        may_use_cpu: bool = True,
        retries_failed: bool = False,
    ):
        self.status = "done"
        self.error: Exception | None = None
        self.headline: dict[str, Any] = {}
        self.measured: dict[str, Any] = {}
        self.plan: Plan | None = None
        self.n_restored = 0
        self._spec = spec
        items = list(items)
        self._course = Course([StageRule.of(stage) for stage in spec.stages], items, spec.job.seed)
        self._digests: dict[int, str] = {}  # strand -> digest of all that its next result is made of
        self._inputs_digests = [inputs_digest(inputs, item.seed) for item, inputs in items]
        self._job_folder, self._run_folder, self._ledger = job_folder, run_folder, ledger
        self._may_use_cpu, self._retries_failed = may_use_cpu, retries_failed
        self._log = EventLog(*sinks)
        self._files = {name for stage in spec.stages for name in stage.file_outputs}
        self._fanned = _fanned_stages(spec.stages)
        self._begun: set[int] = set()
        self._told: set[tuple[str, str]] = set()

    def go(
        self,
        pool: DevicePool,
        make_plan: Callable[[], Plan],
        policy: str,
        backend: str,
        sample_s: float = 1.0,
    ) -> None:
        """Run what is not done yet, as ``make_plan`` says if anything is left.

        Returns also when the run ends early: see ``status`` and ``error``. What the drivers say of the
        devices is recorded every ``sample_s`` seconds.
        """
        spec, log = self._spec, self._log
        facts: dict[str, Any] = {"seed": spec.job.seed, "policy": policy, "backend": backend}
        facts |= {
            "evenload": __version__,
            "pid": os.getpid(),
            "stages": [stage.name for stage in spec.stages],
        }
        log.emit(RunStarted(log.now(), spec.job.name, time.time(), self._n_expected(), pool.facts(), facts))
        for text in spec.notes:
            log.emit(Note(log.now(), "warning", "job", text))
        try:
            tasks = self._restore(self._course.begin())
            if tasks:
                self.plan = make_plan()
                log.emit(Note(log.now(), "info", "plan", f"{self.plan.mode}: {self.plan.why}"))
                with self._watched(pool, sample_s):
                    self._run(tasks, pool, self.plan.phases, policy, backend)
        except KeyboardInterrupt:
            self.status = "interrupted"
        except Exception as error:  # the results so far are written, then it is raised
            self.status, self.error = "failed", error
            log.emit(Note(log.now(), "error", "pipeline", str(error)))

    def _n_expected(self) -> int:
        """How many strands go through the last stage if none ends before."""
        last = len(self._spec.stages) - 1
        n_samples = max((stage.samples for stage in self._spec.stages), default=1)
        return len(self._course.items) * (n_samples if last in self._fanned else 1)

    @contextlib.contextmanager
    def _watched(self, pool: DevicePool, sample_s: float) -> Iterator[None]:
        """Sample the devices meanwhile. Drivers fail in their own ways; none of them is worth a run."""
        telemetry = Telemetry(pool, self._log, interval_s=sample_s)
        telemetry.start()
        try:
            yield
        finally:
            try:
                telemetry.stop()
            except Exception as error:
                text = f"telemetry did not close: {type(error).__name__}: {error}"
                self._log.emit(Note(self._log.now(), "warning", "telemetry", text))

    def _end(self, error: Exception) -> None:
        """``error`` is the end for all items."""
        self.status, self.error = "failed", error
        self._log.emit(Note(self._log.now(), "error", "pipeline", str(error)))

    def _run(
        self, tasks: list[Task], pool: DevicePool, phases: Sequence[Phase], policy: str, backend: str
    ) -> None:
        spec = self._spec
        dispatcher = Dispatcher(
            phases,
            [stage.name for stage in spec.stages],
            queue=spec.schedule.queue,
            holds=policy.startswith("measured"),
            fits={stage.name: stage.fit for stage in spec.stages},
            oom=spec.errors.oom,
            free=self._free_bytes(),
            item_s={at: s.estimate.item_s for at, s in enumerate(spec.stages) if s.estimate.item_s},
            load_s={at: s.estimate.load_s for at, s in enumerate(spec.stages) if s.estimate.load_s},
        )
        dispatcher.add(tasks, {task.strand: self._size_of(task) for task in tasks})
        workers = [self._worker(stage) for stage in spec.stages]
        record = Record(self._log)
        began = self._log.now()
        driver = Driver(make_backend(backend), pool, dispatcher, workers, record, self._order)
        fleet = Fleet(driver)
        try:
            with Control(self._run_folder.path, fleet):
                while self._course.n_open and (self.status == "done" or driver.is_busy):
                    fleet.attend()
                    ended = driver.step(deals=self.status == "done" and not fleet.is_paused)
                    if ended:
                        dispatcher.add(self._take(ended))
        finally:
            driver.close()
            with contextlib.suppress(OSError):
                (self._run_folder.path / "control").rmdir()
            self.measured = {"load_s": driver.load_s, "peak_bytes": driver.peak_bytes}
            self._compare(self._log.now() - began)
            for stage in sorted(self._begun):
                self._log.emit(StageFinished(self._log.now(), spec.stages[stage].name))

    def _free_bytes(self) -> dict[str, int]:
        memory = self.plan.memory if self.plan is not None else ()
        return {one.device: one.free_bytes for one in memory if one.free_bytes is not None}

    def _compare(self, seconds: float) -> None:
        """Plan against reality, where the plan said how long it would take."""
        plan = self.plan
        if plan is None:
            return
        self.measured |= {"wall_s": seconds, "planned_s": plan.makespan_s, "mode": plan.mode}
        if plan.makespan_s and self.status == "done":
            text = (
                f"planned {plan.makespan_s:.1f} s ({plan.mode}), took {seconds:.1f} s with starting workers"
            )
            self._log.emit(Note(self._log.now(), "info", "plan", text))

    def _worker(self, stage: StageSpec) -> StageWorker:
        model = stage.model
        return StageWorker(
            stage=stage.name,
            target=locate(stage.target, self._job_folder),
            folder=self._job_folder,
            run_folder=self._run_folder.path,
            params=stage.params,
            call=stage.call,
            outputs=stage.outputs,
            seed=self._spec.job.seed,
            retries=self._spec.errors.retries,
            model=ModelFolder(model.path, model.dtype, model.components) if model else None,
            may_use_cpu=self._may_use_cpu,
            python=stage.python,
        )

    def _size_of(self, task: Task) -> float:
        """How much work an item may be, roughly: by the size of its file, in powers of two."""
        path = self._course.inputs[self._course.strands[task.strand].at].get("path")
        try:
            return float(round(math.log2(max(1, os.path.getsize(path))))) if isinstance(path, str) else 0.0
        except (OSError, ValueError):
            return 0.0

    def _order(self, task: Task) -> Order:
        strand = self._course.strands[task.strand]
        self._announce(task.stage)
        values = run_folder_path(self._course.values(task), self._run_folder.path, self._files)
        place = f"sample-{strand.sample}/" if task.stage in self._fanned else ""
        return Order(RUN, task.stage, task=task, values=values, item=strand.item, place=place)

    def _announce(self, stage: int) -> None:
        if stage not in self._begun:
            self._begun.add(stage)
            strands = self._course.strands
            is_known = all(strand.n_stages >= stage or strand.fate != "open" for strand in strands)
            total = sum(strand.n_stages >= stage for strand in strands) if is_known else None
            self._log.emit(StageStarted(self._log.now(), self._spec.stages[stage].name, total))

    # --- what is kept -----------------------------------------------------------------------------

    def _restore(self, tasks: list[Task]) -> list[Task]:
        """Take what is on disk already; returns the tasks that are left."""
        if not self._run_folder.is_resumed:
            return tasks
        self._told = self._told_already()
        left = self._without_kept(tasks)
        for text in self._ledger.notes:
            self._log.emit(Note(self._log.now(), "warning", "pipeline", text))
        return sorted(left, key=lambda task: (task.stage, task.strand))

    def _without_kept(self, tasks: list[Task]) -> list[Task]:
        """``tasks``, and what follows from them, without those whose results are on disk."""
        if not self._run_folder.is_resumed:
            return tasks
        left: list[Task] = []
        restored: list[list[int]] = [[] for _ in self._spec.stages]
        todo = list(reversed(tasks))
        while todo:
            task = todo.pop()
            strand = self._course.strands[task.strand]
            stage = self._spec.stages[task.stage].name
            kept = self._ledger.find(stage, strand, self._digest_of(strand))
            if kept is None or (kept.error is not None and self._retries_failed):
                left.append(task)
                continue
            restored[task.stage].append(task.strand)
            is_told = (stage, self._name_of(strand)) in self._told
            todo += reversed(self._settle(task, kept, is_told=is_told))
        for stage, strands in zip(self._spec.stages, restored, strict=True):
            if strands:
                self._log.emit(
                    Restored(self._log.now(), stage.name, strands[0], len(strands), tuple(strands))
                )
        self.n_restored += sum(map(len, restored))
        return left

    def _digest_of(self, strand: Strand) -> str:
        return self._digests.setdefault(strand.number, self._inputs_digests[strand.at])

    def _told_already(self) -> set[tuple[str, str]]:
        """Stage and item of what earlier sessions have said in events.jsonl."""
        with contextlib.suppress(OSError):
            return {
                (event.stage, event.item)
                for event in read_events(self._run_folder.path)
                if isinstance(event, ItemFinished | ItemFailed)
            }
        return set()

    def _take(self, ended: Sequence[Ended]) -> list[Task]:
        """Keep results for good, then go on from them."""
        kept = [self._kept_of(one) for one in ended]
        stages = self._spec.stages
        strands = [self._course.strands[one.task.strand] for one in ended]
        self._ledger.keep(
            (stages[one.task.stage].name, strand, result)
            for one, strand, result in zip(ended, strands, kept, strict=True)
        )
        tasks = []
        for one, result in zip(ended, kept, strict=True):
            tasks += self._without_kept(self._settle(one.task, result))
        if self.status == "done" and self._must_stop(kept):
            self.status = "failed"
        return tasks

    def _kept_of(self, one: Ended) -> Kept:
        strand, outcome = self._course.strands[one.task.strand], one.outcome
        digest, seconds = self._digest_of(strand), outcome.stop_s - outcome.start_s
        if outcome.kind == "done":
            return Kept(digest, outcome.outputs, outcome.files, None, seconds, one.device)
        kind, text, traceback = outcome.error
        if says_full(text):
            raise EvenloadError(f"the disk of {self._run_folder.path} takes no more: {text}", hint=HINT)
        stage = self._spec.stages[one.task.stage].name
        return Kept(
            digest, error=ItemFailure(stage, kind, text, traceback), seconds=seconds, device=one.device
        )

    def _settle(self, task: Task, kept: Kept, *, is_told: bool = False) -> list[Task]:
        strand, stage = self._course.strands[task.strand], self._spec.stages[task.stage]
        now, name = self._log.now(), self._name_of(strand)
        if kept.error is not None:
            if not is_told:
                error = kept.error
                self._log.emit(
                    ItemFailed(
                        now,
                        stage.name,
                        task.strand,
                        name,
                        error.type,
                        error.message,
                        kept.device,
                        error.traceback,
                    )
                )
            return self._course.failed(task, kept.error)
        if not is_told:
            shown = {**kept.outputs, **(self._before(strand) if task.stage == 0 else {})}
            self._log.emit(ItemFinished(now, stage.name, task.strand, name, shown))
        made = made_digest(self._digest_of(strand), kept)
        tasks = self._course.done(task, kept.outputs)
        for one in tasks if len(tasks) > 1 else ():
            self._digests.setdefault(one.strand, made)  # samples of it, unless they have come farther
        self._digests[task.strand] = made
        return tasks

    def _name_of(self, strand: Strand) -> str:
        return strand.item.id if strand.sample == 0 else f"{strand.item.id} #{strand.sample}"

    def _before(self, strand: Strand) -> dict[str, str]:
        """What a reader of the report wants beside the outputs: the item's group, and a copy of its file."""
        more = {} if strand.item.group is None else {"group": strand.item.group}
        path = self._course.inputs[strand.at].get("path")
        if not self._spec.report.keep_inputs or not isinstance(path, str) or strand.sample:
            return more
        try:
            return {**more, "before": self._run_folder.keep_input(strand.item.id, Path(path))}
        except OSError as error:  # a copy for the report is not worth a run
            self._log.emit(Note(self._log.now(), "warning", "pipeline", f"no copy of {path}: {error}"))
            return more

    def _must_stop(self, kept: Sequence[Kept]) -> bool:
        rule, course = self._spec.errors, self._course
        has_failed = any(one.error is not None for one in kept)
        is_over = rule.on_error == "stop" or course.n_failed > rule.max_error_rate * len(course.items)
        return has_failed and is_over

    # --- what came of it --------------------------------------------------------------------------

    def rows(self) -> list[ItemResult]:
        """One row for each item, in input order."""
        course = self._course
        return [
            row_of(
                item,
                {name: self._portable(value) for name, value in course.inputs[at].items()},
                [course.strands[number] for number in course.strands_of[at]],
                self._spec.job.seed,
            )
            for at, item in enumerate(course.items)
        ]

    def finish(self) -> None:
        """Make the headline figures and emit the run's last event."""
        if self.status == "done" and self._course.n_failed:
            self.status = "failures"
        self.headline = self._make_headline()
        self._log.emit(RunFinished(self._log.now(), self.status, self.headline))

    def lost_events(self, file: EventFile) -> list[str]:
        """What the record of the run lacks, one sentence each; complete once ``file`` is closed."""
        said = []
        if file.error is not None:
            why = f"{type(file.error).__name__}: {file.error}"
            said.append(f"events.jsonl stops early ({why}): report and summary show only what is in it")
        said += [
            f"a watcher of the run failed and was left out: {type(error).__name__}: {error}"
            for error in self._log.sink_errors
            if error is not file.error
        ]
        return said

    def _portable(self, value: Any) -> Any:
        """A path below the job file's folder is given relative to it."""
        folder = str(self._job_folder)
        is_below = isinstance(value, str) and value.startswith(folder + "/")
        return value[len(folder) + 1 :] if is_below else value

    def _make_headline(self) -> dict[str, Any]:
        target = self._spec.report.headline
        if target is None:
            return {}
        try:
            figures = load_target(locate(target, self._job_folder))([row.to_json() for row in self.rows()])
            return json.loads(json_text({str(name): figure for name, figure in figures.items()}))
        except Exception as error:  # a mistake in a summary must not cost the results
            text = f"no headline: {target} raised {type(error).__name__}: {error}"
            self._log.emit(Note(self._log.now(), "warning", "pipeline", text))
            return {}


def _fanned_stages(stages: Sequence[StageSpec]) -> set[int]:
    """Stages that an item's samples go through one by one."""
    fanned, is_open = set(), False
    for number, stage in enumerate(stages):
        is_open |= stage.samples > 1
        if is_open:
            fanned.add(number)
        if stage.best is not None:
            is_open = stage.best.n > 1 and is_open
    return fanned
