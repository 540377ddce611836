"""One run of a job: takes what an earlier one has done, plans, runs the loop, and says what came of it.

restore ──► plan ──► parts ──► loop ──► rows, headline, what was measured
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evenload._version import __version__
from evenload.devices import DevicePool
from evenload.devices.telemetry import Telemetry
from evenload.events import Event, EventFile, EventLog, RunFinished, RunStarted, json_text
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageRule, StageTask
from evenload.pipeline.dispatch.results import ItemResult, row_of
from evenload.pipeline.job.spec import JobSpec
from evenload.pipeline.job.spec_stage import sampled_stages
from evenload.pipeline.plan import Plan
from evenload.pipeline.planning.job_plan import PlannedJob
from evenload.pipeline.reuse.decision import StageReuse
from evenload.pipeline.run.interrupts import Interrupts
from evenload.pipeline.run.machines.fleet import RunFleet
from evenload.pipeline.run.result_recorder import ResultRecorder
from evenload.pipeline.run.run_events import ItemCounts, declared_work, planned_event
from evenload.pipeline.run.run_loop import RunLoop
from evenload.pipeline.run.stage_inputs import RunContext
from evenload.pipeline.stage import Item
from evenload.pipeline.store.kept_results import KeptResults, ReuseSettings
from evenload.pipeline.store.run_folder import RunFolder
from evenload.pipeline.store.uploads import Uploads
from evenload.pipeline.target import load_target, locate_target


class JobSession:
    """One run of a job in its folder: ``go``, ``finish``, then ``rows`` and the rest say what came of it.

    status    done | failures | failed | timed out | interrupted
    error     what ended the run for all items, to be raised once the results are written
    headline  the figures of the job's own function
    measured  what the plan can be compared with
    plan      None if nothing was left to do
    """

    def __init__(
        self,
        spec: JobSpec,
        items: Iterable[tuple[Item, Mapping[str, Any]]],
        job_folder: Path,
        run_folder: RunFolder,
        sinks: Iterable[Callable[[Event], None]],
        *,
        reuse: ReuseSettings,
        interrupts: Interrupts | None = None,
        may_use_cpu: bool = True,
        skipped: Collection[str] = (),
        uploads: Uploads | None = None,
    ):
        self.status = "done"
        self.error: Exception | None = None
        self.headline: dict[str, Any] = {}
        self.measured: dict[str, Any] = {}
        self.plan: Plan | None = None
        self._interrupts = interrupts or Interrupts()
        items = list(items)
        rules = [StageRule.of(stage, spec.errors.timeout_s) for stage in spec.stages]
        limit_s = spec.errors.item_timeout_s
        self._flow = ItemFlow(
            rules, items, spec.job.seed, graph=spec.graph, timeout_s=limit_s, skipped=skipped
        )
        self._log = EventLog(*sinks)
        self._context = RunContext(
            spec, job_folder, run_folder, self._flow, self._log, may_use_cpu, reuse, uploads
        )
        self._kept = KeptResults(spec, self._flow, reuse, run_folder)
        self._recorder = ResultRecorder(self._context, self._kept)

    @property
    def n_restored(self) -> int:
        """Results that came from an earlier session."""
        return self._recorder.n_restored

    def go(
        self,
        fleet: RunFleet,
        make_plan: Callable[[ItemFlow, Sequence[StageReuse]], PlannedJob],
        sample_s: float = 1.0,
    ) -> None:
        """Run what is not done yet, as ``make_plan`` says of items and earlier results if anything is left.

        Returns also when the run ends early: see ``status`` and ``error``. What the drivers say of the
        devices is recorded every ``sample_s`` seconds.
        """
        log = self._log
        self._announce(fleet)
        self._begin_uploads()
        try:
            tasks = self._recorder.restore(self._flow.begin())
            if any(stage.n_kept for stage in self._kept.reuse):
                log.note("info", "pipeline", "; ".join(one.to_text() for one in self._kept.reuse))
            if tasks:
                planned = make_plan(self._flow, self._kept.reuse)
                self.plan = planned.plan
                log.note("info", "plan", f"{self.plan.mode}: {self.plan.why}")
                log.emit(planned_event(self.plan, log.now()))
                # A signal ends the run between two rounds; or at once, where a stage runs in this thread.
                in_order = self._interrupts.deferred() if fleet.is_threaded else contextlib.nullcontext()
                with in_order, self._watched(fleet.pool, sample_s):
                    self._run(tasks, fleet, planned)
        except KeyboardInterrupt:
            self.status = "interrupted"
        except Exception as error:  # the results so far are written, then it is raised
            self.status, self.error = "failed", error
            log.note("error", "pipeline", str(error))

    def _announce(self, fleet: RunFleet) -> None:
        spec, log = self._context.spec, self._log
        facts: dict[str, Any] = {
            "seed": spec.job.seed,
            "policy": fleet.policy,
            "backend": fleet.name,
            "evenload": __version__,
            "pid": os.getpid(),
            "stages": [stage.name for stage in spec.stages],
            "sort": spec.report.sort,
            "item_work": declared_work(spec.stages),
        }
        if costs := spec.cost_facts(fleet.pool.ids):
            facts["costs"] = costs
        log.emit(
            RunStarted(log.now(), spec.job.name, time.time(), self._n_expected(), fleet.pool.facts(), facts)
        )
        for text in (*spec.notes, *self._context.reuse.notes):
            log.note("warning", "job", text)

    def _begin_uploads(self) -> None:
        """Try the store with a first file, so that it is known soon if it takes none."""
        uploads, log = self._context.uploads, self._log
        if uploads is not None:
            uploads.tell = lambda why: log.note(
                "warning", "upload", f"{why}; the run goes on, and copies results later"
            )
            uploads.offer("config.yaml")

    def _n_expected(self) -> int:
        """How many strands go through the last stage if none ends before."""
        stages = self._context.spec.stages
        n_samples = max((stage.samples for stage in stages), default=1)
        return len(self._flow.items) * (n_samples if len(stages) - 1 in sampled_stages(stages) else 1)

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
                self._log.note("warning", "telemetry", text)

    def _run(self, tasks: list[StageTask], fleet: RunFleet, planned: PlannedJob) -> None:
        began_s, plan, check = self._log.now(), planned.plan, self._interrupts.check
        loop = RunLoop(self._context, self._recorder, tasks, fleet, planned, check)
        try:
            loop.go()
        finally:
            cache = self._context.reuse.cache
            for text in cache.faults if cache is not None else ():
                self._log.note("warning", "pipeline", text)
            self.status = "failed" if loop.has_failed else "timed out" if loop.is_late else self.status
            wall_s, plan_s = self._log.now() - began_s, plan.makespan_s
            self.measured = loop.measured() | {"wall_s": wall_s, "planned_s": plan_s, "mode": plan.mode}
            if plan_s and self.status == "done":
                text = f"planned {plan_s:.1f} s ({plan.mode}), took {wall_s:.1f} s with starting workers"
                self._log.note("info", "plan", text)

    # --- what came of it --------------------------------------------------------------------------

    def rows(self) -> list[ItemResult]:
        """One row for each item, in input order. Paths below the job's folder are given relative to it."""
        flow, context = self._flow, self._context
        return [
            row_of(
                item,
                {name: _portable(value, context.folder) for name, value in flow.inputs[at].items()},
                [flow.strands[number] for number in flow.strands_of[at]],
                flow.parts_of,
            )
            for at, item in enumerate(flow.items)
        ]

    def finish(self) -> None:
        """Make the headline figures and emit the run's last event."""
        if self.status == "done" and self._flow.n_failed:
            self.status = "failures"
        target = self._context.spec.report.headline
        if target is not None:
            self.headline = self._headline_of(target)
        ItemCounts(self._log, self._flow).tell()
        code = getattr(self.error, "exit_code", None)
        self._log.emit(RunFinished(self._log.now(), self.status, self.headline, code))

    def _headline_of(self, target: str) -> dict[str, Any]:
        """The figures that the function ``target`` makes of the rows; {} and a warning if it raises."""
        try:
            function = load_target(locate_target(target, self._context.folder))
            figures = function([row.to_json() for row in self.rows()])
            return json.loads(json_text({str(name): figure for name, figure in figures.items()}))
        except Exception as error:  # a mistake in a summary must not cost the results
            text = f"no headline: {target} raised {type(error).__name__}: {error}"
            self._log.note("warning", "pipeline", text)
            return {}

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


def _portable(value: Any, job_folder: Path) -> Any:
    folder = f"{job_folder}/"
    return value[len(folder) :] if isinstance(value, str) and value.startswith(folder) else value
