"""One function as a group of ranks that talk to each other, one per device.

    gang ──► a worker per device ──► all join a torch.distributed group ──► fn(rank, *args) ──► results

For work whose parts exchange data; ``map`` is for independent items. Ranks are workers like any others: each
has a device, its output is shown, and it ends with this program. If a rank raises, dies or is late, all
others are ended.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evenload._arguments import length, seconds, sequence, suggests_arguments
from evenload._optional import require
from evenload.devices import Device, DevicePool, worker_environment
from evenload.devices.selection import Spec
from evenload.errors import ConfigError
from evenload.events import EventLog
from evenload.executor.backends import Backend, BackendSettings, WorkerOptions, make_backend
from evenload.executor.decide.record import Record
from evenload.executor.gangs.fault import RankFault, is_waiting, is_whole, root_cause
from evenload.executor.gangs.ranks import Rendezvous, call_function, join, run_rank
from evenload.executor.gangs.store import LOCAL, loopback_name, open_store, returned
from evenload.executor.supervisor.start_watch import StartLimits, StartWatch
from evenload.executor.supervisor.worker import Worker
from evenload.executor.task.messages import (
    Answered,
    Gone,
    Loaded,
    Message,
    Said,
    Spoilt,
    TaskRefused,
    Untrue,
    Up,
    Warned,
)
from evenload.executor.task.prepare import Tasks, name_of, pickle_callable
from evenload.executor.worker.fork_server import imports_of

__all__ = ["Gang", "GangCall", "gang", "gang_beside"]

SETTLE_S = 2.0  # at most, to hear of more faults: the cause of the others may be reported last
ANSWER_S = 5.0  # at most, for late ranks to print their stacks: beside other work that takes a while
EXTRA_S = 60.0  # torch's time limit is later, as this one reports more
GRACE_S = 1.0
LOOK_S = 1.0  # how often to look at the clock
LATE_S = 1.0  # a look so late: the program itself was stopped meanwhile
JOIN, RUN = 1, 2  # the chunks that each worker gets
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
    reached = make_backend(backend, _options(fn))
    try:
        pool = devices if isinstance(devices, DevicePool) else reached.devices(devices)
        return Gang(reached, pool, Record(events, echo), call).run()
    finally:
        reached.close(GRACE_S)


def _options(fn: Callable[..., Any]) -> WorkerOptions:
    used = [name for name in imports_of(fn) if name not in IMPORTS]
    return WorkerOptions(imports=(*IMPORTS, *used))


def gang_beside(
    backend: str | BackendSettings, pool: DevicePool, record: Record, call: GangCall
) -> list[Any]:
    """Run a gang on ``pool``, whose devices have workers of ``backend`` already."""
    if backend == "ray":
        from evenload.executor.backends.ray.backend import Ray

        backend = Ray()
    reached = make_backend(backend if isinstance(backend, str) else backend.beside(), _options(call.fn))
    try:
        return Gang(reached, pool, record, call).run()
    finally:
        reached.close(GRACE_S)


class Gang:
    """A gang as the parent process runs it: worker n is rank n, on the n-th device.

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
        self._record = record
        self._call = call
        self._began_s = 0.0
        self._pids: dict[int, int | None] = {}
        self._joined: set[int] = set()
        self._results: dict[int, Any] = {}
        self._faults: list[RankFault] = []
        self._stacks: dict[int, list[str]] = {number: [] for number in range(len(pool))}
        self._is_asking = False
        self._task = Tasks().prepare(call_function)
        asked_s = time.monotonic()
        self._ranks = [
            Worker(number, device.id, self._worker(number), asked_s, device, loading=self._task)
            for number, device in enumerate(self._devices)
        ]
        self._starts = StartWatch(StartLimits(), backend.activity)

    def run(self) -> list[Any]:
        """Run the call on all ranks; returns their results by rank. Raises GangError."""
        size, stage, timeout_s = len(self._devices), self._call.stage, self._call.timeout_s
        pickled = pickle_callable(self._call.fn)
        host = self._backend.host if self._is_spread else LOCAL
        limit_s = None if timeout_s is None else timeout_s + EXTRA_S
        with open_store(host) as (store, port):
            rendezvous = Rendezvous(host, port, size, self._group, limit_s)
            self._record.stage_started(stage, size)
            for number, device in enumerate(self._devices):
                self._backend.start(number, device, self._pool, self._environment(device))
            self._wait_for(self._joined, lambda number: (join, rendezvous, number))
            self._began_s = time.monotonic()
            for number in range(size) if not self._faults else ():
                call = (run_rank, pickled, self._call.arguments(number), rendezvous, number)
                self._send(number, RUN, call)
            until = None if timeout_s is None else self._began_s + timeout_s
            self._wait_for(self._results, None, until)
            if not self._faults and len(self._results) < size:
                self._blame(f"did not end within {timeout_s:g} s")
            if self._faults:
                self._settle()
                fault = root_cause(self._faults, returned(store))
                raise fault.to_error(name_of(self._call.fn), self._devices[fault.rank].id)
        self._record.stage_finished(stage, None)
        return [self._results[number] for number in range(size)]

    # --- messages ---------------------------------------------------------------------------------

    def _wait_for(
        self,
        done: set[int] | dict[int, Any],
        first: Callable[[int], tuple] | None,
        until: float | None = None,
    ) -> None:
        """Read messages until all ranks are in ``done``, one has a fault, or the time is up.

        What passes while the program is stopped, and its ranks maybe with it, does not count.
        ``first`` makes the call to send to a rank that has loaded the task.
        """
        while len(done) < len(self._devices) and not self._faults:
            now = time.monotonic()
            if until is not None and until <= now:
                return
            limit_s = LOOK_S if until is None else min(LOOK_S, until - now)
            messages = self._backend.poll(None if until is None and first is None else limit_s)
            if until is not None and time.monotonic() - now > LOOK_S + LATE_S:
                until += time.monotonic() - now
            for message in messages:
                if isinstance(message, Up):
                    self._pids[message.worker] = message.pid
                    self._ranks[message.worker].is_up = True
                    self._backend.load(message.worker, self._task)
                elif isinstance(message, Loaded) and first is not None:
                    self._ranks[message.worker].loading = None
                    self._send(message.worker, JOIN, first(message.worker))
                else:
                    self._take(message)
            if first is not None:
                self._look_at_starts()

    def _look_at_starts(self) -> None:
        for rank, how, is_over in self._starts.look(self._ranks, time.monotonic()):
            self._record.note("warning", f"{rank.slot}: rank {rank.number} {how}")
            if is_over:
                self._faults.append(RankFault(rank.number, how))

    def _send(self, number: int, chunk: int, call: tuple) -> None:
        self._backend.run(number, self._task.id, chunk, [call], False)

    def _take(self, message: Message) -> None:
        number = message.worker
        if isinstance(message, Answered):
            self._answered(number, message)
        elif isinstance(message, Spoilt | TaskRefused):
            self._faults.append(RankFault(number, f"failed: {message.failure.summary}", message.failure))
        elif isinstance(message, Untrue):
            self._faults.append(RankFault(number, f"sent {message.why}"))
        elif isinstance(message, Gone) and number not in self._results:
            self._record.worker_exited(self._devices[number].id, self._worker(number), message.reason)
            self._faults.append(RankFault(number, message.reason, last_words=message.last_words))
        elif isinstance(message, Said) and self._is_asking:
            self._stacks[number].append(message.line)
        elif isinstance(message, Said):
            self._record.said(self._devices[number].id, message.line)
        elif isinstance(message, Warned):
            self._record.note("warning", message.text)

    def _answered(self, number: int, message: Answered) -> None:
        answer, device = message.answer, self._devices[number].id
        untrue = answer.fault(1) or ("nothing" if answer.skipped is not None else "")
        if untrue:
            self._faults.append(RankFault(number, f"sent {untrue}"))
            return
        failure = answer.failures.get(0)
        if failure is not None:
            self._faults.append(RankFault(number, f"raised {failure.summary}", failure))
        if message.chunk == JOIN:
            self._joined.add(number)
            startup_s = answer.stop_s - answer.start_s
            self._record.worker_started(device, self._worker(number), self._pids[number], startup_s)
            return
        answer.bound_times(self._began_s, time.monotonic())
        self._results[number] = answer.values[0]
        self._record.span(
            self._call.stage, device, self._worker(number), (number,),
            answer.start_s, answer.stop_s, answer.busy_s,
            "ok" if failure is None else "failed", "a rank", self._began_s, False,
            waited_s=answer.waited_s, cpu_s=answer.cpu_s,
        )  # fmt: skip

    def _worker(self, number: int) -> str:
        return f"{self._devices[number].id}/1"

    # --- the rank at fault ------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait for more faults: a rank that dies makes others raise, and theirs may be reported first."""

        def is_settled() -> bool:
            is_clear = any(fault.distance == 0 for fault in self._faults)
            return is_clear or {fault.rank for fault in self._faults} >= set(range(len(self._devices)))

        self._listen(SETTLE_S, is_settled)

    def _blame(self, what: str) -> None:
        """Ask late ranks for their stacks: those inside torch.distributed only wait for others."""
        late = [number for number in range(len(self._devices)) if number not in self._results]
        self._is_asking, stacks = True, []
        for number in late:
            pid = self._pids.get(number)
            if pid and not self._devices[number].node:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGUSR1)
                    stacks.append(self._stacks[number])
        self._listen(ANSWER_S, lambda: bool(self._faults) or all(map(is_whole, stacks)))
        for number in late if not self._faults else ():
            stack = self._stacks[number]
            self._faults.append(
                RankFault(number, what, last_words="\n".join(stack), is_waiting=is_waiting(stack))
            )

    def _listen(self, seconds: float, is_enough: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not is_enough():
            for message in self._backend.poll(max(0.0, until - time.monotonic())):
                if not isinstance(message, Up | Loaded):
                    self._take(message)

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
