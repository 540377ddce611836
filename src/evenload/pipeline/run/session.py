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
    Note,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
    json_text,
)
from evenload.executor.backends import BackendSettings, make_backend
from evenload.executor.decide.record import Record
from evenload.executor.loop.control import Control
from evenload.pipeline.dispatch.dispatcher import Dispatcher
from evenload.pipeline.dispatch.item_flow import Course, StageRule, Task
from evenload.pipeline.dispatch.results import ItemResult, row_of
from evenload.pipeline.dispatch.worker_protocol import Job
from evenload.pipeline.job.spec import JobSpec, StageSpec
from evenload.pipeline.plan import Plan
from evenload.pipeline.planning.estimates.run_history import mean_load_s
from evenload.pipeline.planning.job_plan import PlannedJob, free_host_bytes, pool_devices
from evenload.pipeline.planning.job_problem import build_job_problem
from evenload.pipeline.problem import PlanDevice
from evenload.pipeline.run.device_changes import Fleet
from evenload.pipeline.run.group_commit import Commits, Result
from evenload.pipeline.run.plan_event import planned_event
from evenload.pipeline.run.queue_lengths import QueueLengths
from evenload.pipeline.run.replanner import Steering
from evenload.pipeline.run.result_recorder import Keeping
from evenload.pipeline.run.run_loop import Driver
from evenload.pipeline.run.snapshot import described
from evenload.pipeline.stage import Item, ModelFolder, StageSetup
from evenload.pipeline.store.ledger import Ledger
from evenload.pipeline.store.run_folder import RunFolder
from evenload.pipeline.target import load_target, locate_target
from evenload.pipeline.worker.parking import parking_budget
from evenload.pipeline.worker.stage_host import run_folder_path

__all__ = ["Session"]

Reached = str | BackendSettings


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
        self._spec = spec
        items = list(items)
        self._course = Course([StageRule.of(stage) for stage in spec.stages], items, spec.job.seed)
        self._job_folder, self._run_folder, self._ledger = job_folder, run_folder, ledger
        self._may_use_cpu = may_use_cpu
        self._log = EventLog(*sinks)
        self._keeping = Keeping(
            spec, self._course, items, run_folder, ledger, self._log, retries_failed=retries_failed
        )
        self._files = {name for stage in spec.stages for name in stage.file_outputs}
        self._fanned = _fanned_stages(spec.stages)
        self._begun: set[int] = set()

    @property
    def n_restored(self) -> int:
        """Results that came from an earlier session."""
        return self._keeping.n_restored

    def go(
        self,
        pool: DevicePool,
        make_plan: Callable[[], PlannedJob],
        policy: str,
        backend: Reached,
        sample_s: float = 1.0,
    ) -> None:
        """Run what is not done yet, as ``make_plan`` says if anything is left.

        Returns also when the run ends early: see ``status`` and ``error``. What the drivers say of the
        devices is recorded every ``sample_s`` seconds.
        """
        spec, log = self._spec, self._log
        facts: dict[str, Any] = {"seed": spec.job.seed, "policy": policy, "backend": str(backend)}
        facts |= {
            "evenload": __version__,
            "pid": os.getpid(),
            "stages": [stage.name for stage in spec.stages],
            "sort": spec.report.sort,
        }
        log.emit(RunStarted(log.now(), spec.job.name, time.time(), self._n_expected(), pool.facts(), facts))
        for text in spec.notes:
            log.emit(Note(log.now(), "warning", "job", text))
        try:
            tasks = self._keeping.restore(self._course.begin())
            if tasks:
                planned = make_plan()
                self.plan = planned.plan
                log.emit(Note(log.now(), "info", "plan", f"{self.plan.mode}: {self.plan.why}"))
                log.emit(planned_event(self.plan, log.now()))
                with self._watched(pool, sample_s):
                    self._run(tasks, pool, planned, policy, backend)
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
        self, tasks: list[Task], pool: DevicePool, planned: PlannedJob, policy: str, backend: Reached
    ) -> None:
        spec = self._spec
        dispatcher = Dispatcher(
            planned.plan.phases,
            [stage.name for stage in spec.stages],
            queue=spec.schedule.queue,
            holds=policy.startswith("measured"),
            fits={stage.name: stage.fit for stage in spec.stages},
            oom=spec.errors.oom,
            free=self._free_bytes(),
            item_s={at: s.estimate.item_s for at, s in enumerate(spec.stages) if s.estimate.item_s},
            load_s={at: s.estimate.load_s for at, s in enumerate(spec.stages) if s.estimate.load_s},
            batch={at: stage.batch for at, stage in enumerate(spec.stages) if stage.repeatable},
        )
        dispatcher.add(tasks, {task.strand: self._size_of(task) for task in tasks})
        workers = [self._worker(stage) for stage in spec.stages]
        record = Record(self._log)
        began = self._log.now()
        queues = QueueLengths(self._log, dispatcher, [stage.name for stage in spec.stages])
        park_bytes = parking_budget(free_host_bytes(), planned.plan.streamed_bytes, len(dispatcher.groups))
        reached = make_backend(backend)
        driver = Driver(reached, pool, dispatcher, workers, record, self._job, park_bytes)
        commits = Commits(self._ledger, reached.wake)
        steering: Steering | None = None
        try:
            fleet = Fleet(driver)
            steering = self._steering(planned, driver) if policy.startswith("measured") else None
            with Control(self._run_folder.path, fleet):
                while self._is_going_on(driver) or commits.pending:
                    fleet.attend()
                    ended = driver.step(deals=self.status == "done" and not fleet.is_paused)
                    queues.look()
                    results, fault = self._keeping.results_of(ended)
                    commits.put(results)
                    dispatcher.add(self._advance(results))
                    self._keeping.tell(commits.taken())
                    if fault is not None:
                        raise fault
                    if steering is not None and self.status == "done":
                        steering.look()
        finally:
            try:
                driver.close()
            finally:  # whatever ends the waiting: nothing is claimed that is not in the journal
                self._settle(commits)
            queues.tell()
            with contextlib.suppress(OSError):
                (self._run_folder.path / "control").rmdir()
            self.measured = {"load_s": driver.load_s, "peak_bytes": driver.peak_bytes}
            self.measured |= {"batches": driver.batches} if driver.batches else {}
            self.measured["parked"] = {
                group: [spec.stages[stage].name for stage in sorted(stages)]
                for group, stages in driver.parked.items()
            }
            if steering is not None:
                self.measured["replans"] = steering.made
            self._compare(self._log.now() - began)
            for stage in sorted(self._begun):
                self._log.emit(StageFinished(self._log.now(), spec.stages[stage].name))

    def _settle(self, commits: Commits) -> None:
        """The journal has what it can have; the rest was not done."""
        commits.close()
        try:
            with contextlib.suppress(EvenloadError):  # there is an error already
                self._keeping.tell(commits.taken())
        finally:
            self._keeping.disown(commits.pending)

    def _steering(self, planned: PlannedJob, driver: Driver) -> Steering:
        asked, spec = planned.job_problem, self._spec

        def describe(device: str) -> PlanDevice | None:
            fleet = pool_devices(driver.pool)
            again = build_job_problem(spec, len(self._course.items), self._job_folder, fleet).problem
            return described(asked.problem, again, device)

        return Steering(
            asked.problem,
            planned.plan,
            spec.schedule.mode,
            driver.dispatcher,
            self._course,
            self._log,
            sources={stage.name: stage.item_from for stage in asked.stages},
            devices=driver.devices_there,
            describe=describe,
            load_s=lambda: mean_load_s(driver.load_s),
        )

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

    def _worker(self, stage: StageSpec) -> StageSetup:
        model = stage.model
        return StageSetup(
            stage=stage.name,
            target=locate_target(stage.target, self._job_folder),
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
            may_change_bits=stage.batch_changes_bits == "allow",
        )

    def _size_of(self, task: Task) -> float:
        """How much work an item may be, roughly: by the size of its file, in powers of two."""
        path = self._course.inputs[self._course.strands[task.strand].at].get("path")
        try:
            return float(round(math.log2(max(1, os.path.getsize(path))))) if isinstance(path, str) else 0.0
        except (OSError, ValueError):
            return 0.0

    def _job(self, task: Task) -> Job:
        strand = self._course.strands[task.strand]
        self._announce(task.stage)
        values = run_folder_path(self._course.values(task), self._run_folder.path, self._files)
        place = f"sample-{strand.sample}/" if task.stage in self._fanned else ""
        return Job(task, values, strand.item, place)

    def _announce(self, stage: int) -> None:
        if stage not in self._begun:
            self._begun.add(stage)
            strands = self._course.strands
            is_known = all(strand.n_stages >= stage or strand.fate != "open" for strand in strands)
            total = sum(strand.n_stages >= stage for strand in strands) if is_known else None
            self._log.emit(StageStarted(self._log.now(), self._spec.stages[stage].name, total))

    def _is_going_on(self, driver: Driver) -> bool:
        """Is anything to be done, or being done?"""
        return bool(self._course.n_open) and (self.status == "done" or driver.is_busy)

    def _advance(self, results: Sequence[Result]) -> list[Task]:
        """Go on from these; returns what may run because of them."""
        tasks = self._keeping.advance(results)
        if self.status == "done" and self._must_stop(results):
            self.status = "failed"
        return tasks

    def _must_stop(self, results: Sequence[Result]) -> bool:
        rule, course = self._spec.errors, self._course
        has_failed = any(result.kept.error is not None for result in results)
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
            figures = load_target(locate_target(target, self._job_folder))(
                [row.to_json() for row in self.rows()]
            )
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
