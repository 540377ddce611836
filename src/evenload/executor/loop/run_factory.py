"""Makes the runs of an executor: each with its dealer, its scheduler and, if asked for, its journal."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evenload.balance.dealing.dealer import Dealer
from evenload.balance.policy import Measured, Policy, Static, policy_from_name
from evenload.devices import DevicePool
from evenload.devices.rates.known import rates_of
from evenload.errors import ConfigError
from evenload.executor.decide.delivery import Delivery, Sink
from evenload.executor.decide.record import Record
from evenload.executor.decide.scheduler import Scheduler
from evenload.executor.decide.source import Source, make_source
from evenload.executor.loop.cost_history import CostHistory
from evenload.executor.loop.engine import RunEngine
from evenload.executor.loop.membership import helpers
from evenload.executor.run.item_describer import ItemDescriber
from evenload.executor.run.map_options import MapOptions, spread
from evenload.executor.run.run import LOOK_AHEAD, LOOK_AHEAD_BYTES, Run
from evenload.executor.task.hybrid import Task as HybridTask
from evenload.executor.task.item_context import CallerContext
from evenload.executor.task.prepare import Tasks, named
from evenload.executor.task.task import PreparedTask

if TYPE_CHECKING:
    from evenload.executor.run.calls import CallSource

MOST_CALLS = 1_000_000  # submitted, and not done


class RunFactory:
    """A maker of runs for one engine.

    costs              what is known of tasks from before
    max_worker_deaths  an item that has ended so many workers is given up
    call_timeout_s     a submitted call that runs longer fails
    initializer        called in each worker before its first submitted call
    """

    def __init__(
        self,
        engine: RunEngine,
        record: Record,
        costs: CostHistory,
        max_worker_deaths: int,
        call_timeout_s: float | None = None,
        initializer: Callable[[], Any] | None = None,
    ):
        self._engine, self._record, self._costs = engine, record, costs
        self._max_worker_deaths, self._call_timeout_s = max_worker_deaths, call_timeout_s
        self._initializer = initializer
        self._tasks = Tasks()
        self._is_balancing = True

    def set_balancing(self, on: bool) -> None:
        """Begin the runs to come with their balancer switched on or off."""
        self._is_balancing = on

    def make_map(
        self,
        fn: Any,
        items: Iterable[Any],
        options: MapOptions,
        policy: Policy,
        devices: DevicePool,
        on_over: Callable[[Run], None],
    ) -> tuple[Run, Delivery]:
        """Make the run of a map, and the delivery of its results. Raises ConfigError."""
        if options.balancer is not None and not isinstance(policy, Static):
            raise ConfigError("a balancer moves queued items, and only policy 'static' queues any")
        is_threaded = self._engine.backend.is_threaded
        if options.fresh is not False and not is_threaded:
            raise ConfigError(
                "fresh has no meaning inline: there are no workers to renew", hint="leave it out"
            )
        if options.shared:
            fn = fn.bind(options.shared) if isinstance(fn, HybridTask) else partial(fn, **options.shared)
        task = self._tasks.prepare(
            fn,
            batch=options.batch,
            may_split=options.repeatable,
            is_spread=options.is_spread,
            is_tidied=True,
            sends=is_threaded,
            caller=CallerContext.of_now() if is_threaded else None,
            is_seeded=options.seed is not None,
        )
        source = make_source(items, options.cost, self._engine.wake if is_threaded else None)
        if source.total is None:
            source.total = options.total
        if isinstance(policy, Static) and source.total is not None:
            most = max(options.look_ahead or LOOK_AHEAD, source.total)
            options = replace(options, look_ahead=most)  # every device has its slice from the start
        dealer, size = self._dealer(task, source, policy, options, devices)
        delivery = self._delivery(fn, source, options)
        return self._run(task, source, dealer, delivery, options, devices, on_over, size), delivery

    def make_calls(self, devices: DevicePool, on_over: Callable[[Run], None]) -> tuple[Run, "CallSource"]:
        """Make the run of all submitted calls, and their source."""
        from evenload.executor.run.calls import AfterInitializer, Call, CallSource, FutureSink

        calls, is_threaded = CallSource(self._engine.call), self._engine.backend.is_threaded
        fn: Any = Call.make
        if self._initializer is not None:
            fn = partial(AfterInitializer, self._initializer)
        task = self._tasks.prepare(named("submitted calls", fn), is_tidied=True, sends=is_threaded)
        limit_s = self._call_timeout_s
        options = MapOptions(stage="submit", look_ahead=MOST_CALLS, is_policy_fixed=True, timeout_s=limit_s)
        dealer, size = self._dealer(task, calls, policy_from_name("pull"), options, devices)
        return self._run(task, calls, dealer, FutureSink(calls), options, devices, on_over, size), calls

    def _dealer(
        self, task: PreparedTask, source: Source, policy: Policy, options: MapOptions, devices: DevicePool
    ) -> tuple[Dealer, str | None]:
        """A dealer that knows what is known of the task, and the size of its items, for what will be."""
        size, costs, is_hearsay = self._costs.of(task, source, devices)
        # Sizes are learned where they are not given, and the policy deals by them.
        may_learn = options.cost is None and not source.is_apart and isinstance(policy, Measured)
        dealer = Dealer(
            policy,
            list(devices.ids),
            priors={device: devices.score(device) for device in devices.ids},
            history=costs,
            is_hearsay=is_hearsay,
            repeatable=options.repeatable and self._engine.backend.is_threaded,  # a copy inline gains nothing
            max_chunk=None if options.repeatable else 1,  # a crash then leaves one item in doubt, not a chunk
            helpers=helpers(devices),
            balancer=options.balancer,
            learner=self._costs.learner_of(task) if may_learn else None,
        )
        dealer.set_balancing(self._is_balancing)
        return dealer, size

    def _delivery(self, fn: Any, source: Source, options: MapOptions) -> Delivery:
        """A delivery of results; by way of a journal, if there is one. ``fn``: as the caller gave it."""
        engine, is_threaded = self._engine, self._engine.backend.is_threaded
        pump = None if is_threaded else engine.step
        how = (options.ordered, engine.wake, pump, engine.reading.look)
        if options.journal is None:
            return Delivery(*how)
        from evenload.executor.run.journal_sink import JournalSink, open_journal

        journal = open_journal(options.journal, _made_by(fn, options), options.on_change)
        call = engine.call if is_threaded else None
        return JournalSink(
            journal, source, call, *how, repeatable=options.repeatable, on_change=options.on_change
        )

    def _run(
        self,
        task: PreparedTask,
        source: Source,
        dealer: Dealer,
        sink: Sink,
        options: MapOptions,
        devices: DevicePool,
        on_over: Callable[[Run], None],
        size: str | None,
    ) -> Run:
        """A run of ``task`` on ``devices``; ``on_over`` is called when it is over."""
        scheduler = Scheduler(
            dealer,
            batch=task.batch or 1,
            repeatable=options.repeatable,
            max_worker_deaths=self._max_worker_deaths,
            memory_bytes={device.id: device.memory_bytes or 0 for device in devices},
            most_retries=options.retries,
        )
        describer = None
        if dealer.sizes is not None:
            limit, may_thread = options.look_ahead_bytes or LOOK_AHEAD_BYTES, self._engine.backend.is_threaded
            describer = ItemDescriber(
                dealer.sizes, source, sink, task.batch or 1, limit, may_thread=may_thread
            )
        return Run(
            task, source, dealer, scheduler, sink, self._record, options, _known(devices, options),
            on_over=on_over, size=size, describer=describer,
        )  # fmt: skip


def _made_by(fn: Any, options: MapOptions) -> Any:
    """What the results depend on beside the items, for the journal; it is never called."""
    made_by = partial(spread, fn) if options.is_spread else fn
    return made_by if options.seed is None else partial(made_by, seed=options.seed)


def _known(devices: DevicePool, options: MapOptions) -> dict[str, dict[str, Any]]:
    """What the factors of a run need to know of each device: its kind, and if asked for, its rates."""
    rates = {one.id: rates_of(one) for one in devices} if options.work else {}
    return {one.id: {"name": one.name, "kind": one.kind, **rates.get(one.id, {})} for one in devices}
