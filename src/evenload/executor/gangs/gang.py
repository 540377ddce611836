"""One function as a group of ranks that talk to each other, one per device.

    gang ──► a worker per device ──► all join a torch.distributed group ──► fn(rank, *args) ──► results

For work whose parts exchange data; ``map`` is for independent items. Ranks are workers like any others: each
has a device, its output is shown, and it ends with this program. If a rank raises, dies or is late, all
others are ended.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evenload._arguments import length, seconds, sequence, suggests_arguments
from evenload._optional import require
from evenload.devices import Device, DevicePool, worker_environment
from evenload.devices.selection import Spec
from evenload.errors import ConfigError
from evenload.events import EventLog, StageFinished, StageStarted
from evenload.executor.backends import Backend, BackendSettings, WorkerOptions, make_backend
from evenload.executor.decide.record import Record
from evenload.executor.gangs.fault import RankFault, is_waiting, is_whole, main_stack, root_cause
from evenload.executor.gangs.ranks import (
    LOCAL,
    Rendezvous,
    call_function,
    join,
    loopback_name,
    open_store,
    returned,
    run_rank,
)
from evenload.executor.supervisor.awake_clock import LATE_S
from evenload.executor.supervisor.supervisor import GRACE_S, Supervisor
from evenload.executor.supervisor.worker import Worker
from evenload.executor.task.failure import Failure
from evenload.executor.task.messages import Answered, Gone, Spoilt
from evenload.executor.task.prepare import Tasks, name_of, pickle_callable
from evenload.executor.task.task import PreparedTask
from evenload.executor.worker.fork_server import imports_of

SETTLE_S = 2.0  # at most, to hear of more faults: the cause of the others may be reported last
ANSWER_S = 5.0  # at most, for late ranks to print their stacks: beside other work that takes a while
EXTRA_S = 60.0  # torch's time limit is later, as this one reports more
LOOK_S = 1.0  # how often to look at the clock
IMPORTS = ("numpy", "torch")  # once for all ranks, where they are forked


@dataclass(frozen=True, slots=True)
class GangCall:
    """A function to run as a gang, with its options; see ``gang``."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    each: Sequence[Any] | None = None
    timeout_s: float | None = None
    stage: str = "gang"

    def check(self, n_ranks: int) -> None:
        """Raise ConfigError if the options make no sense for ``n_ranks`` ranks."""
        if self.timeout_s is not None:
            seconds("timeout_s", self.timeout_s)
        if self.each is not None and length("each", self.each) != n_ranks:
            raise ConfigError(
                f"each= has {len(self.each)} values, the gang {n_ranks} ranks",
                hint="give one value per device",
            )

    def arguments(self, number: int) -> tuple[Any, ...]:
        """Return what rank ``number`` is called with, after its ``Rank``."""
        return self.args if self.each is None else (self.each[number], *self.args)


@suggests_arguments
def gang(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    devices: Spec | DevicePool = "all",
    each: Sequence[Any] | None = None,
    timeout_s: float | None = None,
    backend: str | BackendSettings = "process",
    events: EventLog | None = None,
    echo: bool = True,
    stage: str = "gang",
) -> list[Any]:
    """Run ``fn(rank, *args)`` once on every device, as ranks of one process group; the results by rank.

    ``rank`` is a ``Rank``: its number, the gang's size, its device. ``torch.distributed`` is ready to use in
    ``fn``: NCCL where every device is a CUDA GPU, gloo otherwise.
    each       one value per rank, its second argument: only its own part is sent to a rank
    timeout_s  the gang ends with an error if it is not done by then; starting is not counted
    backend    "process", or "ray" for ranks on several machines
    Raises GangError, which names the rank, its device and the cause, if a rank raises, dies or is late; the
    others are ended at once. Raises MissingExtra without torch, ConfigError, UnknownName or NoUsableDevice.
    """
    call = GangCall(fn, sequence("args", args), each, timeout_s, stage)
    return _run(backend, devices, Record(events, echo), call)


def gang_beside(
    backend: str | BackendSettings, pool: DevicePool, record: Record, call: GangCall
) -> list[Any]:
    """Run a gang on ``pool``, whose devices have workers of ``backend`` already."""
    if backend == "ray":
        from evenload.executor.backends.ray.backend import Ray

        backend = Ray()
    return _run(backend if isinstance(backend, str) else backend.beside(), pool, record, call)


def _run(
    backend: str | BackendSettings, devices: Spec | DevicePool, record: Record, call: GangCall
) -> list[Any]:
    used = [name for name in imports_of(call.fn) if name not in IMPORTS]
    reached = make_backend(backend, WorkerOptions(imports=(*IMPORTS, *used)))
    try:
        pool = devices if isinstance(devices, DevicePool) else reached.devices(devices)
        return Gang(reached, pool, record, call).results()
    finally:
        reached.close(GRACE_S)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What a worker is sent: to join the process group, or to run the function."""

    number: int
    is_join: bool


class Gang:
    """A gang as the parent process runs it, the driver of its workers: a rank on each device, in order.

    A worker's first chunk joins the process group, its second runs the function.

    Raises ConfigError if ``call`` does not fit the pool or the backend, MissingExtra without torch.
    """

    def __init__(self, backend: Backend, pool: DevicePool, record: Record, call: GangCall):
        call.check(len(pool))
        if not backend.is_threaded:
            raise ConfigError("ranks run side by side; inline they take turns", hint="use backend='process'")
        require("torch", extra="torch", why="a gang's process group")
        self._backend = backend
        self._pool = pool
        self._devices: list[Device] = list(pool)
        self._rank_of = {device.id: number for number, device in enumerate(self._devices)}
        self._record = record
        self._call = call
        self._began_s = 0.0
        self._rendezvous: Rendezvous | None = None
        self._joined: set[int] = set()
        self._results: dict[int, Any] = {}
        self._faults: list[RankFault] = []
        self._task = Tasks().prepare(call_function)
        self._supervisor = Supervisor(backend, record, self)

    def results(self) -> list[Any]:
        """Run the call on all ranks; returns their results by rank. Raises GangError."""
        size, stage, timeout_s = len(self._devices), self._call.stage, self._call.timeout_s
        pickled = pickle_callable(self._call.fn)
        host = self._backend.host if self._is_spread else LOCAL
        limit_s = None if timeout_s is None else timeout_s + EXTRA_S
        with open_store(host) as (store, port):
            self._rendezvous = Rendezvous(host, port, size, self._group, limit_s)
            self._record.tell(StageStarted, stage, size)
            for device in self._devices:
                worker = self._supervisor.start(device.id, device, self._pool, self._environment(device))
                if worker is not None:
                    self._supervisor.load(worker, self._task)
            self._wait_for(self._joined)
            self._began_s = time.monotonic()
            for worker in tuple(self._supervisor.workers.values()) if not self._faults else ():
                number = self._rank_of[worker.slot]
                call = (run_rank, pickled, self._call.arguments(number), self._rendezvous, number)
                self._send(worker, call, is_join=False)
            until = None if timeout_s is None else self._began_s + timeout_s
            self._wait_for(self._results, until)
            if not self._faults and len(self._results) < size:
                self._blame(f"did not end within {timeout_s:g} s")
            if self._faults:
                self._settle()
                fault = root_cause(self._faults, returned(store))
                raise fault.to_error(name_of(self._call.fn), self._devices[fault.rank].id)
        self._record.tell(StageFinished, stage)
        return [self._results[number] for number in range(size)]

    def _wait_for(self, done: set[int] | dict[int, Any], until: float | None = None) -> None:
        """Read messages until all ranks are in ``done``, one has a fault, or the time is up.

        What passes while the program is stopped, and its ranks maybe with it, does not count.
        """
        while len(done) < len(self._devices) and not self._faults:
            now = time.monotonic()
            if until is not None and until <= now:
                return
            self._supervisor.poll(LOOK_S if until is None else min(LOOK_S, until - now))
            if until is not None and time.monotonic() - now > LOOK_S + LATE_S:
                until += time.monotonic() - now

    def _send(self, worker: Worker, call: tuple, *, is_join: bool) -> None:
        self._supervisor.send(worker, _Chunk(self._supervisor.next_chunk(), is_join), self._task, [call])

    # --- what the supervisor tells ----------------------------------------------------------------

    def loaded(self, worker: Worker) -> None:
        assert self._rendezvous is not None
        self._send(worker, (join, self._rendezvous, self._rank_of[worker.slot]), is_join=True)

    def refused(self, worker: Worker, task: PreparedTask, failure: Failure) -> None:
        self._fault(worker, f"failed: {failure.summary}", failure)

    def spoilt(self, worker: Worker, chunk: _Chunk, message: Spoilt) -> None:
        self._fault(worker, f"failed: {message.failure.summary}", message.failure)

    def gone(self, worker: Worker, message: Gone) -> None:
        if self._rank_of[worker.slot] not in self._results:
            self._fault(worker, message.reason, last_words=message.last_words)

    def answered(self, worker: Worker, chunk: _Chunk, message: Answered) -> None:
        answer, number = message.answer, self._rank_of[worker.slot]
        if answer.skipped is not None:
            return  # it is being killed
        failure = answer.failures.get(0)
        if failure is not None:
            self._fault(worker, f"raised {failure.summary}", failure)
        if chunk.is_join:
            self._joined.add(number)
            return
        answer.bound_times(self._began_s, time.monotonic())
        self._results[number] = answer.values[0]
        self._record.span(
            self._call.stage, worker.slot, worker.name, (number,),
            answer.start_s, answer.stop_s, answer.busy_s,
            "ok" if failure is None else "failed", "a rank", self._began_s, False,
            waited_s=answer.waited_s, cpu_s=answer.cpu_s,
        )  # fmt: skip

    # --- the rank at fault ------------------------------------------------------------------------

    def _fault(self, worker: Worker, what: str, failure: Failure | None = None, last_words: str = "") -> None:
        self._faults.append(RankFault(self._rank_of[worker.slot], what, failure, last_words))

    def _settle(self) -> None:
        """Wait for more faults: a rank that dies makes others raise, and theirs may be reported first."""

        def is_settled() -> bool:
            is_clear = any(fault.distance == 0 for fault in self._faults)
            return is_clear or {fault.rank for fault in self._faults} >= set(range(len(self._devices)))

        self._listen(SETTLE_S, is_settled)

    def _blame(self, what: str) -> None:
        """Ask late ranks for their stacks: those inside torch.distributed only wait for others."""
        late = [
            one for one in self._supervisor.workers.values() if self._rank_of[one.slot] not in self._results
        ]
        for worker in late:
            self._supervisor.ask_stack(worker)
        self._listen(ANSWER_S, lambda: bool(self._faults) or all(is_whole(one.stack or []) for one in late))
        for worker in late if not self._faults else ():
            stack = main_stack(worker.stack or [])
            self._faults.append(
                RankFault(
                    self._rank_of[worker.slot],
                    what,
                    last_words="\n".join(stack),
                    is_waiting=is_waiting(stack),
                )
            )

    def _listen(self, seconds: float, is_enough: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not is_enough():
            self._supervisor.poll(max(0.0, until - time.monotonic()))

    # --- where ------------------------------------------------------------------------------------

    @property
    def _group(self) -> str:
        return "nccl" if all(device.backend == "cuda" for device in self._devices) else "gloo"

    @property
    def _is_spread(self) -> bool:
        return any(device.node for device in self._devices)

    def _environment(self, device: Device) -> dict[str, str]:
        environment = worker_environment(device, self._pool)
        loopback = loopback_name()
        if loopback is not None and not self._is_spread:
            environment["GLOO_SOCKET_IFNAME"] = loopback  # no other machine needs to reach the ranks
        return environment
