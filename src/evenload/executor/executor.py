"""The executor: devices with workers, and three ways to hand them work."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from evenload._arguments import flag, sequence, suggests_arguments, whole
from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import Policy, policy_from_name
from evenload.devices import Device, DevicePool
from evenload.devices.fork_guard import ForkGuard
from evenload.errors import ConfigError, ExecutorClosed, NoUsableDevice, not_sendable
from evenload.events import EventLog
from evenload.executor.backends import BackendSettings, WorkerOptions, make_backend
from evenload.executor.decide.record import Record
from evenload.executor.finished_runs import FinishedRuns, Stats
from evenload.executor.loop.cost_history import CostHistory
from evenload.executor.loop.engine import EngineThread, RunEngine
from evenload.executor.loop.results import Results
from evenload.executor.loop.roster import Roster, pool_of
from evenload.executor.loop.run_factory import RunFactory
from evenload.executor.run.map_options import MapOptions, as_items
from evenload.executor.run.progress_line import progress_line
from evenload.executor.run.run import Run
from evenload.executor.runs_page import RunsPage
from evenload.executor.task.hybrid import Task as HybridTask

if TYPE_CHECKING:
    from concurrent.futures import Future

    from evenload.executor.run.calls import CallSource
    from evenload.executor.submitted import SubmittedCalls

R = TypeVar("R")
DeviceSpec = str | int | Sequence[str | int | Device] | Device | DevicePool


class Executor:
    """A pool of workers, one per device, warm between calls, that keeps every device equally busy.

    devices            which: "all", "cuda:0,1", "cpu*4", a number, a DevicePool
    policy             how items are dealt, unless a call says otherwise
    backend            "process", "inline", "ray", or ``Ray(...)`` with settings
    events             where events go
    echo               print the workers' output and warnings on stderr, with the device's name
    max_worker_deaths  an item that has ended so many workers is given up
    call_timeout_s     a submitted call that runs longer fails with TaskTimeout; its worker is replaced
    shared_memory_limit  for arrays on their way, such as "2 GiB"; 0 for none; by default a quarter of all
    memory_limit       of each worker, in bytes or such as "4 GB": one that uses more is replaced
    initializer        called in each worker before its first submitted call; one that raises has no worker
    start              how worker processes are started: "forkserver" or "spawn"; by default what the settings
                       say: the first where it is safe
    follow             take in what ``devices`` means of machines that join the cluster (``backend="ray"``)
    Raises UnknownName, ConfigError or NoUsableDevice. Use it in a ``with`` block, or call ``close``.
    """

    @suggests_arguments
    def __init__(
        self,
        devices: DeviceSpec = "all",
        *,
        policy: str | Policy = "measured",
        backend: str | BackendSettings = "process",
        events: EventLog | None = None,
        echo: bool = True,
        max_worker_deaths: int = 2,
        call_timeout_s: float | None = None,
        initializer: Callable[[], Any] | None = None,
        shared_memory_limit: int | str | None = None,
        memory_limit: int | str | None = None,
        start: str | None = None,
        follow: bool = False,
    ):
        whole("max_worker_deaths", max_worker_deaths, least=1, most=None)
        self._backend = backend
        self._policy = policy_from_name(policy)
        follow = flag("follow", follow)
        reached = make_backend(backend, WorkerOptions(shared_memory_limit, start, memory_limit))
        pool = pool_of(devices, reached, follow)
        self._guard = ForkGuard("this executor", "make an executor of the child's own")
        self._page = RunsPage(events)
        self._record = Record(self._page.log, echo)
        self._engine = RunEngine(pool, reached, self._record)
        self._is_threaded = self._engine.backend.is_threaded
        self._costs = CostHistory(self._engine.ceilings, self._record, is_kept=self._is_threaded)
        self._runs = RunFactory(
            self._engine, self._record, self._costs, max_worker_deaths, call_timeout_s, initializer
        )
        self._roster = Roster(pool, self._engine, self._record, devices if follow else None)
        self._finished = FinishedRuns(self._costs)
        self._lock = threading.RLock()
        self._submitted: SubmittedCalls | None = None
        self._is_closing = False
        self._thread = EngineThread(self._engine, partial(self._page.close, self._finished))
        self._finalizer = weakref.finalize(self, self._thread.shut_down)
        self._roster.watch()

    @property
    def devices(self) -> DevicePool:
        """The devices that take part now. The pool stays as it is when devices come and go later."""
        return self._roster.pool

    # --- work -------------------------------------------------------------------------------------

    @suggests_arguments
    def map(
        self,
        fn: Callable[..., R] | type | HybridTask,
        items: Iterable[Any],
        *more: Iterable[Any],
        strict: bool = False,
        ordered: bool = True,
        batch: int | None = None,
        cost: Callable[..., float] | Sequence[float] | bool | None = None,
        on_error: str = "raise",
        policy: str | Policy | None = None,
        balancer: LoadBalancer | None = None,
        repeatable: bool = True,
        timeout_s: float | None = None,
        retries: int = 0,
        look_ahead: int | None = None,
        look_ahead_bytes: int | None = None,
        total: int | None = None,
        stage: str = "map",
        shared: Mapping[str, Any] | None = None,
        journal: str | os.PathLike | None = None,
        on_change: str = "refuse",
        fresh: bool | int = False,
        work: Mapping[str, float] | None = None,
        seed: int | None = None,
        progress: bool | None = None,
    ) -> Results[R]:
        """Run ``fn`` on every item over all devices; iterate over what this returns to get the results.

        fn          a function, or a class: built once per worker on its device, called, closed at the end; or
                    an ``evenload.Task``, which has one for CPUs and one for GPUs
        more        further iterables, each for one more argument of ``fn``; the shortest ends them all.
                    With ``batch``, ``fn`` gets a list for each
        strict      refuse iterables that do not end together
        ordered     results in input order; False: as they are completed
        batch       call ``fn`` with lists of up to so many items; it returns a list as long
        cost        size hints, one per item or a function of it: the longest are dealt first. By default they
                    are learned from what the items are; False: they are dealt in their order
        on_error    "raise" the first failed item's TaskError in its turn, or "return" it in its place
        balancer    moves queued items between devices, for ``policy="static..."``; see ``set_balancing``
        repeatable  False: no item is run twice, not even if a worker died with it
        timeout_s   an item that runs longer fails with TaskTimeout, and its worker is replaced
        retries     so often an item is tried again whose task raises, elsewhere and after a growing pause
        look_ahead  items that may be begun beyond the last result fetched
        look_ahead_bytes  what results may take that are not fetched yet, and items that are read ahead;
                    512 MiB by default
        total       how many items there are, if ``items`` does not tell; no harm if it is wrong
        stage       name of this work in events and reports
        shared      keyword arguments of ``fn`` (or of its constructor), the same for all items; large arrays
                    in them are sent once, and may be written to by each worker for itself
        journal     a folder: results are on disk there before they are given, and are not made again
        on_change   if ``fn``, or an item, is another than the journal's: "refuse", or "rerun" what changed;
                    "keep" takes results of other code, too, and runs changed items
        fresh       True: each item gets a worker process that has run none before; a number: workers are
                    renewed after so many items (with ``batch``, after the call that reaches it)
        work        what an item needs, {"flop": 2.5e12, "bytes": 4e9}: ``summary.factors`` and reports then
                    know how well the devices are used (see ``torch_work``)
        progress    a line on standard error that says how far it is; None: at a terminal, after a second
        seed        random numbers of Python, numpy and torch depend on it and the item's index alone
        Raises ConfigError or UnknownName at once. Items are read as needed, an iterator in a thread of its
        own; if reading raises, what was read is finished and delivered first.
        """
        options = MapOptions.among(locals())
        if more:
            items, options = as_items((items, *more), options, strict=strict)
        return self.map_with(fn, items, options)

    def map_with(
        self,
        fn: Callable | HybridTask,
        items: Iterable[Any],
        options: MapOptions,
        devices: DevicePool | None = None,
        asked_s: float | None = None,
    ) -> Results[Any]:
        """``map`` with its options as one value.

        devices  a value that ``devices`` had, which the policy was made for; by default that of now
        asked_s  when the caller began to wait, by ``time.monotonic``; by default now
        """
        asked_s = time.monotonic() if asked_s is None else asked_s
        self._check_open()
        policy = self._policy if options.policy is None else policy_from_name(options.policy)
        if options.timeout_s is not None and not self._is_threaded:
            self._record.note("warning", "timeout_s has no effect inline: nobody could interrupt the task")
        pool = self._present() if devices is None else devices  # one snapshot for all that the run is made of
        run, delivery = self._runs.make_map(
            fn, items, options, policy, pool, partial(self._finished.take, pool)
        )
        run.show_progress(progress_line(options.progress))
        run.count_call(time.monotonic() - asked_s)
        return Results(
            run,
            delivery,
            raises=options.on_error == "raise",
            begin=partial(self._begin, run),
            finish=partial(self._thread.cancel, run),
            engine=self._engine,
            guard=self._guard,
            is_bringer=self._thread.asks,
        )

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> "Future[R]":
        """Run ``fn(*args, **kwargs)`` on whichever device is free next.

        A future among the arguments, or in lists, tuples and dicts in them, stands for its result: the call
        waits for it and occupies no worker meanwhile. If it fails, so does this call, with ArgumentFailed,
        whose ``__cause__`` is the first call's error; if it is cancelled, this call is, too.
        The future fails with a TaskError whose ``__cause__`` is what ``fn`` raised. Raises ConfigError if
        ``fn`` cannot be sent, ExecutorClosed after ``close``.
        """
        return self._calls().submit(fn, args, kwargs, self._run_of_calls)

    def finish_calls(self, *, wait: bool = False) -> None:
        """Let the run of what was submitted end when it is done; the next call begins a run of its own.

        ``evenload.last_run()`` and events then tell them apart. ``wait``: until it is done.
        """
        calls = self._calls()
        calls.finish()
        if wait:
            calls.wait()

    # --- devices that come and go -----------------------------------------------------------------

    def drain(self, *devices: str, at_once: bool = False) -> None:
        """Let these devices go, also while work runs: they end what they have, and get nothing more.

        Then their workers close and free the devices. ``at_once``: the workers are killed instead, and what
        they ran is run elsewhere (or has an unknown outcome, if it may not be repeated). Raises UnknownName,
        or ConfigError if no device would be left.
        """
        self._check_open()
        self._roster.drain(devices, at_once)

    def pause(self) -> None:
        """Begin nothing more until ``resume``; chunks that run come to their end. Twice is as once.

        Raises ConfigError where the work is done by whoever waits for it: it would wait for ever.
        """
        self._set_paused(True)

    def resume(self) -> None:
        """Go on after ``pause``."""
        self._set_paused(False)

    @property
    def is_paused(self) -> bool:
        return self._engine.is_paused

    def _set_paused(self, on: bool) -> None:
        self._check_open()
        with self._lock:
            self._check_open()
            if not self._engine.backend.is_threaded:
                raise ConfigError(
                    "this backend runs in the caller's own thread, which cannot be paused",
                    hint="use backend='process'",
                )
            self._engine.call(partial(self._engine.pause, on))

    def add(self, devices: DeviceSpec) -> tuple[str, ...]:
        """Have these work, too, also on what runs already; returns their ids.

        A device that was drained comes back by its id. ``cpu*2``, or a number where there are no
        accelerators, makes new CPU slots with the next free numbers. Work goes on while machines are asked.
        Raises as the constructor does, and ConfigError for a device that takes part already, by whichever
        name: ``cpu`` and ``all`` mean devices that may be there, too.
        """
        self._check_open()
        return self._roster.add(devices)

    def gang(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        *,
        devices: DeviceSpec = "all",
        each: Sequence[Any] | None = None,
        timeout_s: float | None = None,
        stage: str = "gang",
    ) -> list[Any]:
        """``evenload.gang`` on this executor's devices, or some of them, in processes beside its workers."""
        from evenload.executor.gangs.gang import GangCall, gang_beside

        self._check_open()
        pool = devices if isinstance(devices, DevicePool) else self.devices.select(devices)
        call = GangCall(fn, sequence("args", args), each, timeout_s, stage)
        return gang_beside(self._backend, pool, self._record, call)

    def set_policy(self, policy: str | Policy) -> None:
        """Deal by another policy from now on, also what is left of runs under way."""
        self._check_open()
        self._policy = policy_from_name(policy)
        self._engine.call(partial(self._engine.set_policy, None, self._policy))

    def set_balancing(self, on: bool) -> None:
        """Switch the balancers of all maps on or off: of those under way, and of those to come.

        ``map(balancer=...)`` says which map has one; they are on unless switched off. Items that a balancer
        has moved stay where they are. ``Results.set_balancing`` is for a single map.
        """
        self._check_open()
        on = flag("on", on)
        self._runs.set_balancing(on)
        self._engine.call(partial(self._engine.set_balancing, None, on))

    @property
    def stats(self) -> Stats:
        """Statistics of the runs that are finished."""
        return self._finished.stats

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the workers now, and not with the first call."""
        self._check_open()
        with self._lock:
            self._check_open()
            self._thread.start()
            self._engine.call(self._engine.start_workers)

    def close(self, *, cancel: bool = False, wait: bool = True) -> None:
        """Finish what was submitted (``cancel``: drop it), end the workers, free the devices.

        Maps that are still iterated over end with ExecutorClosed. A second call waits for the first. Within a
        future's callback, which everything else waits for, and with ``wait=False`` where work is done in
        other processes, it returns at once: the rest happens later.
        Does nothing in a child that was forked, which has no workers of its own.
        """
        if self._guard.is_child:
            return
        with self._lock:  # so that no call is submitted after the end
            self._is_closing = True
        if self._submitted is not None and self._submitted.close(cancel, wait):
            return
        if self._thread.asks():
            self._thread.shut_down()  # leaves the finalizer to whoever can wait
        else:
            self._finalizer()
        self._costs.save()

    def __reduce__(self) -> Any:
        raise not_sendable("an Executor", "use it outside of the task, or make one in the task")

    def __enter__(self) -> "Executor":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(cancel=kind is not None)

    # --- inside -----------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        run.ask()
        with self._lock:
            self._check_open()
            self._page.open(run.task.name, self.devices, self._record.note)
            self._thread.start()
            self._engine.call(partial(self._engine.begin, run))

    def _calls(self) -> "SubmittedCalls":
        from evenload.executor.submitted import SubmittedCalls

        self._check_open()
        with self._lock:
            if self._submitted is None:
                self._submitted = SubmittedCalls(self._engine, self._thread, self._lock)
            return self._submitted

    def _run_of_calls(self, taking: "CallSource | None") -> "CallSource":
        self._check_open()
        if taking is not None and taking.why_over is None:
            return taking
        pool = self._present()  # a new one: no device could run the last calls, or they were finished
        run, calls = self._runs.make_calls(pool, partial(self._finished.take, pool))
        self._begin(run)
        return calls

    def _present(self) -> DevicePool:
        """The devices of now. Raises NoUsableDevice if all were lost with their machines."""
        pool = self.devices
        if not len(pool):
            hint = "`add` devices of machines that are there, or make the executor with follow=True"
            raise NoUsableDevice("every device was lost with its machine", hint=hint)
        return pool

    def _check_open(self) -> None:
        """Raises ExecutorClosed, or ConfigError in a forked child; asked before any lock is taken, too."""
        self._guard.check()
        if self._is_closing or self._engine.is_closed:
            raise ExecutorClosed(
                "the executor is closed", hint="make a new one, or stay inside its with block"
            )
