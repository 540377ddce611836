"""Builds the parts of a run from its job and its plan: dispatcher, workers, replanner, journal."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload.errors import EvenloadError
from evenload.events import EventLog, Note
from evenload.executor.backends import Machines
from evenload.executor.decide.record import Record
from evenload.pipeline.dispatch.dispatcher import GroupScheduler
from evenload.pipeline.dispatch.hang_watch import HangWatch
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageTask
from evenload.pipeline.dispatch.queues.stage_queue import BatchRule
from evenload.pipeline.job.names import priorities_of
from evenload.pipeline.job.spec import JobSpec
from evenload.pipeline.job.stage_devices import barred_stages
from evenload.pipeline.planning.estimates.run_history import mean_load_s
from evenload.pipeline.planning.job_plan import PlannedJob, build_job_problem, pool_devices
from evenload.pipeline.problem import PlanDevice
from evenload.pipeline.run.device_changes import DeviceChanges
from evenload.pipeline.run.machines.fleet import RunFleet
from evenload.pipeline.run.machines.remote_workers import RemoteWorkers
from evenload.pipeline.run.replanner import Replanner
from evenload.pipeline.run.run_events import ItemCounts, QueueLengths
from evenload.pipeline.run.snapshot import described
from evenload.pipeline.run.stage_driver import StageDriver
from evenload.pipeline.run.stage_inputs import StageInputs, stage_setups
from evenload.pipeline.stage import StageSetup
from evenload.pipeline.store.group_commit import GroupCommit
from evenload.pipeline.store.kept_results import ReuseSettings
from evenload.pipeline.store.ledger import LedgerEntry
from evenload.pipeline.store.run_folder import RunFolder
from evenload.pipeline.store.uploads import Uploads
from evenload.pipeline.worker.parking import parking_budget

LEFT = "was lost with its machine, which has left the cluster"


class MachineWatch:
    """A watch over the machines of a run, from ``begin`` until its backend is closed.

    machines  the backend; None where all devices are on this machine
    follows   what is taken in of machines that join; None: nothing
    """

    def __init__(self, machines: Machines | None, follows: Any, changes: DeviceChanges, log: EventLog):
        self._machines, self._follows = machines, follows
        self._changes, self._log = changes, log
        self._lost: set[str] = set()

    def begin(self) -> None:
        """Look from now on, in a thread of the backend."""
        if self._machines is not None:
            self._machines.watch(self._look)

    def _look(self) -> None:
        assert self._machines is not None
        try:
            lost = set(self._machines.lost(self._changes.all_devices))
            if lost - self._lost:
                self._changes.lose(sorted(lost - self._lost), LEFT)
                self._note(
                    "warning", f"{', '.join(sorted(lost - self._lost))}: the machine has left the cluster"
                )
            self._lost = lost
            came = self._machines.arrivals(self._follows) if self._follows is not None else ()
            if came:
                self._changes.enter(came)
                self._lost -= {device.id for device in came}
                self._note("info", f"{', '.join(device.id for device in came)} joined with a machine")
        except EvenloadError as error:
            self._note("warning", f"machines that came or went: {error.message}")

    def _note(self, level: str, text: str) -> None:
        self._log.emit(Note(self._log.now(), level, "cluster", text))


@dataclass(frozen=True, slots=True)
class RunContext:
    """The parts of a run before there are devices."""

    spec: JobSpec
    folder: Path
    run_folder: RunFolder
    flow: ItemFlow
    log: EventLog
    may_use_cpu: bool
    reuse: ReuseSettings
    uploads: Uploads | None = None

    def share(self, kept: LedgerEntry) -> None:
        """Hand on a result that is on disk: to a store, and to the cache that run folders share, if any."""
        if self.uploads is not None:
            for name in kept.files:
                self.uploads.offer(str(kept.outputs[name]))
        if self.reuse.cache is not None:
            run_folder = self.run_folder.path
            self.reuse.cache.keep(kept, run_folder, (str(run_folder), str(self.folder)))


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts of a run's loop. ``replanner`` is None where the policy never plans again."""

    dispatcher: GroupScheduler
    driver: StageDriver
    inputs: StageInputs
    commit: GroupCommit
    changes: DeviceChanges
    machines: MachineWatch
    queues: QueueLengths
    counts: ItemCounts
    replanner: Replanner | None


def build_parts(
    context: RunContext, tasks: Sequence[StageTask], fleet: RunFleet, planned: PlannedJob, policy: str
) -> RunParts:
    """All that runs ``tasks`` and what follows from them; starts nothing."""
    spec, log, run_folder = context.spec, context.log, context.run_folder.path
    names = [stage.name for stage in spec.stages]
    inputs = StageInputs(spec, context.flow, run_folder, log)
    is_alone = len(fleet.pool) < 2  # the run need not rename each file then, which takes 0.1 ms
    copyable = () if is_alone or fleet.machines is not None else _copyable(spec)
    dispatcher = _dispatcher(spec, planned, context.flow, inputs, policy, copyable)
    dispatcher.add(tasks, {task.strand: inputs.size_of(task) for task in tasks})
    sources = [identity.sources for identity in context.reuse.identities]
    setups = stage_setups(spec, context.folder, run_folder, sources, may_use_cpu=context.may_use_cpu)
    park_bytes = parking_budget(fleet.host_bytes(), planned.plan.streamed_bytes, len(dispatcher.groups))
    reached = fleet.take_backend()
    driver = StageDriver(
        reached,
        fleet.pool,
        dispatcher,
        setups,
        Record(log),
        inputs.of,
        park_bytes,
        _watch(spec, context.flow),
        lambda task: f"{names[task.stage]} of {context.flow.name_of(context.flow.strands[task.strand])}",
        _remote_workers(context, setups, inputs, fleet, reached.wake),
        place_of=inputs.place_of,
        kept=fleet.kept,
    )
    changes = DeviceChanges(driver, context.flow, functools.partial(_barred_on, spec), fleet.find)
    return RunParts(
        dispatcher,
        driver,
        inputs,
        GroupCommit(context.run_folder.ledger, reached.wake, context.share),
        changes,
        MachineWatch(fleet.machines, fleet.use if fleet.follows else None, changes, log),
        QueueLengths(log, dispatcher, names),
        ItemCounts(log, context.flow),
        _replanner(context, planned, dispatcher, driver, fleet) if dispatcher.is_measured else None,
    )


def _dispatcher(
    spec: JobSpec,
    planned: PlannedJob,
    flow: ItemFlow,
    inputs: StageInputs,
    policy: str,
    copyable: Collection[int],
) -> GroupScheduler:
    stages = dict(enumerate(spec.stages))
    memory = [one for one in planned.plan.memory if one.free_bytes is not None]
    return GroupScheduler(
        planned.plan.phases,
        [stage.name for stage in spec.stages],
        queue=spec.schedule.queue,
        policy=policy,
        speeds={one.id: one.speed for one in planned.job_problem.problem.devices},
        copyable=copyable,
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
        priority_of=_priority_of(spec, flow),
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


def _barred_on(spec: JobSpec, devices: Sequence[str]) -> dict[str, frozenset[int]]:
    return _numbered(spec, barred_stages(spec, devices))


def _numbered(spec: JobSpec, barred: Mapping[str, frozenset[str]]) -> dict[str, frozenset[int]]:
    """``barred`` with numbers for the names of stages."""
    number = {stage.name: at for at, stage in enumerate(spec.stages)}
    return {device: frozenset(number[name] for name in names) for device, names in barred.items()}


def _remote_workers(
    context: RunContext,
    setups: Sequence[StageSetup],
    inputs: StageInputs,
    fleet: RunFleet,
    wake: Callable[[], None],
) -> RemoteWorkers | None:
    if fleet.machines is None:
        return None
    limit = context.spec.backend.file_limit
    return RemoteWorkers(setups, context.run_folder.path, Record(context.log), inputs.place_of, wake, limit)


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
    return Replanner(
        asked.problem,
        planned.plan,
        context.spec.schedule.mode,
        dispatcher,
        context.flow,
        context.log,
        sources={stage.name: stage.item_from for stage in asked.stages},
        devices=driver.devices_there,
        describe=_describer(context, planned, driver, fleet),
        load_s=lambda: mean_load_s(driver.outcomes.load_s),
    )


def _describer(
    context: RunContext, planned: PlannedJob, driver: StageDriver, fleet: RunFleet
) -> Callable[[str], PlanDevice | None]:
    """What the planner needs to know of a device that joins the run."""

    def describe(device: str) -> PlanDevice | None:
        devices = pool_devices(driver.pool, fleet.free_bytes(driver.pool))
        again = build_job_problem(context.spec, len(context.flow.items), context.folder, devices).problem
        return described(planned.job_problem.problem, again, device)

    return describe
