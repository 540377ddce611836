"""The loop of a run: attend to requests, let devices work, keep what came of it, go on from there.

flow (who needs what) ──► driver (who runs it) ──► ledger (on disk) ──► flow, events

Its parts are built from the job and its plan: dispatcher, workers, replanner, the ledger's thread.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evenload.errors import EvenloadError
from evenload.executor.loop.control import Control
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.hang_watch import HangWatch
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageTask
from evenload.pipeline.dispatch.waiting import BatchRule
from evenload.pipeline.job.names import priorities_of
from evenload.pipeline.job.spec import JobSpec
from evenload.pipeline.job.stage_devices import barred_stages
from evenload.pipeline.planning.estimates.run_history import mean_load_s
from evenload.pipeline.planning.job_plan import PlannedJob, build_job_problem, pool_devices
from evenload.pipeline.problem import PlanDevice
from evenload.pipeline.run.device_changes import DeviceChanges
from evenload.pipeline.run.machines.fleet import RunFleet
from evenload.pipeline.run.replanner import Replanner, described
from evenload.pipeline.run.result_recorder import ResultRecorder
from evenload.pipeline.run.run_events import ItemCounts, QueueLengths
from evenload.pipeline.run.stage_driver import StageDriver
from evenload.pipeline.run.stage_inputs import RunContext, StageInputs
from evenload.pipeline.store.ledger import GroupCommit, StageResult
from evenload.pipeline.worker.parking import parking_budget


class RunLoop:
    """The loop of one run over the devices of ``fleet``; making one starts nothing.

    tasks       what may run at first
    check       raises what is to end it now, if anything
    has_failed  it was stopped because of failures, and deals nothing more
    is_late     it was ended because its time was up
    """

    def __init__(
        self,
        context: RunContext,
        recorder: ResultRecorder,
        tasks: Sequence[StageTask],
        fleet: RunFleet,
        planned: PlannedJob,
        check: Callable[[], None],
    ):
        self.has_failed = self.is_late = False
        self._check = check
        self._context, self._recorder, self._fleet = context, recorder, fleet
        spec, flow, log = context.spec, context.flow, context.log
        self._inputs = StageInputs(context)
        self._dispatcher = dispatcher = _dispatcher(context, planned, fleet, self._inputs)
        dispatcher.add(tasks, {task.strand: self._inputs.size_of(task) for task in tasks})
        free_bytes = fleet.host_bytes()
        park_bytes = parking_budget(free_bytes, planned.plan.streamed_bytes, len(dispatcher.groups))
        self._driver = StageDriver(context, self._inputs, dispatcher, fleet, _watch(spec, flow), park_bytes)
        self._commit = GroupCommit(context.run_folder.ledger, self._driver.wake, context.share)
        self._changes = DeviceChanges(
            self._driver, flow, lambda devices: _numbered(spec, barred_stages(spec, devices)), fleet.find
        )
        self._queues = QueueLengths(log, dispatcher, dispatcher.stages)
        self._counts = ItemCounts(log, flow)
        self._replanner = (
            _replanner(context, planned, dispatcher, self._driver, fleet) if dispatcher.is_measured else None
        )

    def go(self) -> None:
        """Until nothing is left, or what is left need not be done. Raises what ends the run for all items.

        KeyboardInterrupt if another program has asked to stop.
        """
        limit_s = self._context.spec.job.timeout_s
        try:
            if (machines := self._fleet.machines) is not None:
                follows = self._fleet.use if self._fleet.follows else None
                self._changes.watch(machines, follows, self._context.log)
            with Control(self._context.run_folder.path, self._changes), contextlib.closing(self._changes):
                while self._is_going_on() or self._commit.pending:
                    self._round()
                    is_time_up = limit_s is not None and self._context.log.now() > limit_s
                    self.is_late = is_time_up and self._is_going_on()
                    if self.is_late:
                        break
        finally:
            self._close()

    def _round(self) -> None:
        recorder = self._recorder
        self._check()
        self._changes.attend()
        if self._changes.is_stopped:
            raise KeyboardInterrupt
        ended = self._driver.step(
            deals=not (self.has_failed or self._changes.is_paused),
            seeks_plan=lambda why: self._replanner is not None and self._replanner.seeks(why),
        )
        self._queues.look()
        self._counts.look()
        results, fault = recorder.results_of(ended)
        self._commit.put(results)
        self._dispatcher.go_on(recorder.advance(results))
        self._commit.put(recorder.take_adopted())
        self.has_failed = self.has_failed or self._must_stop(results)
        recorder.tell(self._commit.taken())
        if fault is not None:
            raise fault
        if self._replanner is not None and not self.has_failed:
            self._replanner.look()

    def _is_going_on(self) -> bool:
        """Is anything to be done, or being done?"""
        return bool(self._context.flow.n_open) and (not self.has_failed or self._driver.is_busy)

    def _must_stop(self, results: Sequence[StageResult]) -> bool:
        rule, flow = self._context.spec.errors, self._context.flow
        failed = (result.task.stage for result in results if result.kept.error is not None)
        refused = (why for strand, _ in flow.refused for why in strand.errors)
        has_error = not all(map(flow.excuses, (*failed, *refused)))
        return has_error and (
            rule.on_error == "stop" or flow.n_failed > rule.max_error_rate * len(flow.items)
        )

    def _close(self) -> None:
        try:
            self._driver.close()
        finally:  # whatever ends the waiting: nothing is claimed that is not in the journal
            self._settle()
        self._queues.tell()
        self._inputs.close()
        with contextlib.suppress(OSError):
            (self._context.run_folder.path / "control").rmdir()

    def _settle(self) -> None:
        """The journal has what it can have; the rest was not done."""
        commit, recorder = self._commit, self._recorder
        commit.close()
        try:
            with contextlib.suppress(EvenloadError):  # there is an error already
                recorder.tell(commit.taken())
        finally:
            recorder.disown(commit.pending)

    def measured(self) -> dict[str, Any]:
        """What the plan can be compared with."""
        found: dict[str, Any] = self._driver.outcomes.measured()
        if self._replanner is not None:
            found["replans"] = self._replanner.made
        return found


def _dispatcher(
    context: RunContext, planned: PlannedJob, fleet: RunFleet, inputs: StageInputs
) -> GroupScheduler:
    spec, stages = context.spec, dict(enumerate(context.spec.stages))
    is_alone = len(fleet.pool) < 2  # the run need not rename each file then, which takes 0.1 ms
    memory = [one for one in planned.plan.memory if one.free_bytes is not None]
    return GroupScheduler(
        planned.plan.phases,
        [stage.name for stage in spec.stages],
        queue=spec.schedule.queue,
        policy=fleet.policy,
        speeds={one.id: one.speed for one in planned.job_problem.problem.devices},
        copyable=() if is_alone or fleet.machines is not None else _copyable(spec),
        fits={stage.name: stage.fit for stage in spec.stages},
        oom=spec.errors.oom,
        free={one.device: one.free_bytes for one in memory if one.free_bytes is not None},
        item_s={at: s.estimate.item_s for at, s in stages.items() if s.estimate.item_s},
        load_s={at: s.estimate.load_s for at, s in stages.items() if s.estimate.load_s},
        batch={
            at: BatchRule(stage.batch, stage.max_wait_s, inputs.key_of)
            for at, stage in stages.items()
            if stage.repeatable and stage.n_in_flight == 1
        },
        once=[at for at, stage in stages.items() if not stage.repeatable],
        barred=_numbered(spec, {one.id: one.barred for one in planned.job_problem.problem.devices}),
        graph=spec.graph,
        priority_of=_priority_of(spec, context.flow),
    )


def _copyable(spec: JobSpec) -> list[int]:
    """Stages of which two workers may run one item: none unless the job's schedule asks for copies.

    Not those that ask a server, which would do the item twice, nor those in another interpreter, which gives
    its files their last names itself.
    """
    if not spec.schedule.copies:
        return []
    alone = ((at, one) for at, one in enumerate(spec.stages) if one.repeatable and one.n_in_flight == 1)
    return [at for at, one in alone if one.python is None and one.kind != "openai"]


def _priority_of(spec: JobSpec, flow: ItemFlow) -> Callable[[int], float] | None:
    """The priority of a strand by its number; None if all are alike."""
    if spec.schedule.priority is None:
        return None
    priorities = priorities_of(spec.schedule.priority, zip(flow.items, flow.inputs, strict=True))
    return lambda strand: priorities[flow.strands[strand].at]


def _numbered(spec: JobSpec, barred: Mapping[str, frozenset[str]]) -> dict[str, frozenset[int]]:
    """``barred`` with numbers for the names of stages."""
    number = {stage.name: at for at, stage in enumerate(spec.stages)}
    return {device: frozenset(number[name] for name in names) for device, names in barred.items()}


def _watch(spec: JobSpec, flow: ItemFlow) -> HangWatch:
    stages = dict(enumerate(spec.stages))
    loads = {at: stage.load_timeout_s or spec.errors.load_timeout_s for at, stage in stages.items()}
    return HangWatch(
        flow.limit_of,
        {at: limit_s for at, limit_s in loads.items() if limit_s is not None},
        {at: stage.estimate.item_s for at, stage in stages.items() if stage.estimate.item_s},
        [at for at, stage in stages.items() if not stage.repeatable],
    )


def _replanner(
    context: RunContext, planned: PlannedJob, dispatcher: GroupScheduler, driver: StageDriver, fleet: RunFleet
) -> Replanner:
    asked = planned.job_problem

    def describe(device: str) -> PlanDevice | None:
        """What the planner needs to know of a device that joins the run."""
        devices = pool_devices(driver.pool, fleet.free_bytes(driver.pool))
        again = build_job_problem(context.spec, len(context.flow.items), context.folder, devices).problem
        return described(asked.problem, again, device)

    return Replanner(
        asked.problem,
        planned.plan,
        context.spec.schedule.mode,
        dispatcher,
        context.flow,
        context.log,
        sources={stage.name: stage.item_from for stage in asked.stages},
        devices=driver.devices_there,
        describe=describe,
        load_s=lambda: mean_load_s(driver.outcomes.load_s),
    )
