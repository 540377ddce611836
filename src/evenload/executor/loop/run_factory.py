"""Makes the runs of an executor: each with its dealer, its scheduler and, if asked for, its journal."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evenload.balance.dealing.dealer import Dealer
from evenload.balance.policy import Measured, Policy, Static, policy_from_name
from evenload.balance.sizes.size_learner import SizeLearner
from evenload.devices import DevicePool
from evenload.devices.rates.known import rates_of
from evenload.errors import ConfigError
from evenload.executor.decide.delivery import Delivery
from evenload.executor.decide.record import Record
from evenload.executor.decide.scheduler import Scheduler
from evenload.executor.decide.source import Source, make_source
from evenload.executor.loop.cost_history import CostHistory
from evenload.executor.loop.engine import RunEngine
from evenload.executor.loop.membership import helpers
from evenload.executor.run.columns import spread
from evenload.executor.run.item_describer import ItemDescriber
from evenload.executor.run.map_options import MapOptions
from evenload.executor.run.run import LOOK_AHEAD, LOOK_AHEAD_BYTES, Run
from evenload.executor.run.sink import Sink
from evenload.executor.task.hybrid import Task as HybridTask
from evenload.executor.task.item_context import CallerContext
from evenload.executor.task.prepare import Tasks, named
from evenload.executor.task.task import PreparedTask

if TYPE_CHECKING:
    from evenload.executor.run.calls import CallSource
    from evenload.executor.run.journal_sink import JournalSink

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
        pump = None if is_threaded else self._engine.step
        delivery = Delivery(options.ordered, self._engine.wake, pump, self._engine.reading.look)
        run = self._make(task, source, delivery, policy, options, devices, on_over, _made_by(fn, options))
        return run, delivery

    def make_calls(self, devices: DevicePool, on_over: Callable[[Run], None]) -> tuple[Run, "CallSource"]:
        """Make the run of all submitted calls, and their source."""
        from evenload.executor.run.calls import AfterInitializer, CallSource, FutureSink, run_call

        calls, is_threaded = CallSource(self._engine.call), self._engine.backend.is_threaded
        fn: Any = run_call if is_threaded else _call_here
        if self._initializer is not None:
            fn = partial(AfterInitializer, self._initializer, fn)
        task = self._tasks.prepare(named("submitted calls", fn), is_tidied=True, sends=is_threaded)
        limit_s = self._call_timeout_s
        options = MapOptions(stage="submit", look_ahead=MOST_CALLS, is_policy_fixed=True, timeout_s=limit_s)
        run = self._make(task, calls, FutureSink(calls), policy_from_name("pull"), options, devices, on_over)
        return run, calls

    def _make(
        self,
        task: PreparedTask,
        source: Source,
        sink: Sink,
        policy: Policy,
        options: MapOptions,
        devices: DevicePool,
        on_over: Callable[[Run], None],
        fn: Any = None,
    ) -> Run:
        """A run of ``task`` on ``devices``; ``on_over`` is called when it is over.

        fn  as the caller gave it, for the journal's fingerprint
        """
        size, costs, is_hearsay = self._costs.of(task, source, devices)
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
            learner=self._learner(task, source, policy, options),
        )
        dealer.set_balancing(self._is_balancing)
        scheduler = self._scheduler(dealer, task, options, devices)
        journal = None
        if options.journal is not None and isinstance(sink, Delivery):
            sink = journal = self._journal_before(sink, source, options, fn)
        describer = self._describer(dealer, source, sink, task, options)
        return Run(
            task, source, dealer, scheduler, sink, self._record, options, _known(devices, options),
            journal=journal, on_over=on_over, size=size, describer=describer,
        )  # fmt: skip

    def _learner(
        self, task: PreparedTask, source: Source, policy: Policy, options: MapOptions
    ) -> SizeLearner | None:
        """A learner of sizes where these are not given, and the policy deals by them."""
        may_learn = options.cost is None and not source.is_apart and isinstance(policy, Measured)
        return self._costs.learner_of(task) if may_learn else None

    def _describer(
        self, dealer: Dealer, source: Source, sink: Sink, task: PreparedTask, options: MapOptions
    ) -> ItemDescriber | None:
        if dealer.sizes is None:
            return None
        limit = options.look_ahead_bytes or LOOK_AHEAD_BYTES
        may_thread = self._engine.backend.is_threaded
        return ItemDescriber(dealer.sizes, source, sink, task.batch or 1, limit, may_thread=may_thread)

    def _scheduler(
        self, dealer: Dealer, task: PreparedTask, options: MapOptions, devices: DevicePool
    ) -> Scheduler:
        return Scheduler(
            dealer,
            batch=task.batch or 1,
            repeatable=options.repeatable,
            max_worker_deaths=self._max_worker_deaths,
            memory_bytes={device.id: device.memory_bytes or 0 for device in devices},
            most_retries=options.retries,
        )

    def _journal_before(
        self, delivery: Delivery, source: Source, options: MapOptions, fn: Any
    ) -> "JournalSink":
        """A journal that results pass on their way to ``delivery``."""
        from evenload.executor.run.journal_sink import JournalSink, open_journal

        assert options.journal is not None
        return JournalSink(
            open_journal(options.journal, fn, options.on_change),
            delivery,
            source,
            self._engine.call if self._engine.backend.is_threaded else None,
            repeatable=options.repeatable,
            on_change=options.on_change,
        )


def _made_by(fn: Any, options: MapOptions) -> Any:
    """What the results depend on beside the items, for the journal; it is never called."""
    made_by = partial(spread, fn) if options.is_spread else fn
    return made_by if options.seed is None else partial(made_by, seed=options.seed)


def _known(devices: DevicePool, options: MapOptions) -> dict[str, dict[str, Any]]:
    """What the factors of a run need to know of each device: its kind, and if asked for, its rates."""
    rates = {one.id: rates_of(one) for one in devices} if options.work else {}
    return {one.id: {"name": one.name, "kind": one.kind, **rates.get(one.id, {})} for one in devices}


def _call_here(call: tuple[Callable, tuple, dict]) -> Any:
    fn, args, kwargs = call
    return fn(*args, **kwargs)
