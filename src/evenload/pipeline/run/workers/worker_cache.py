"""Workers that outlive a run, with the models that they hold: for many runs over the same models.

    workers = KeptWorkers("process")
    pipeline.run(backend=workers)
    pipeline.run(backend=workers)           the same processes; models that are there are not loaded again
    workers.close()

The supervisor stays, and gets another driver for each run. A worker that waits in it is told of the new job
(``worker_protocol.ADOPT``); a run leaves those that have answered all, and ends the others.
"""

import os
from collections.abc import Collection

from evenload._closing import Closing
from evenload.errors import ConfigError
from evenload.executor.backends import Backend, WorkerOptions, make_backend
from evenload.executor.decide.record import Record
from evenload.executor.supervisor.start_watch import StartLimits
from evenload.executor.supervisor.supervisor import GRACE_S, Driver, Supervisor


class KeptWorkers(Closing):
    """Workers with their models, kept from one run to the next; a backend by value, for one run at a time.

    inner  the name of the backend that starts them
    """

    def __init__(self, inner: str = "process"):
        self.inner = inner
        self.is_lent = False
        self._backend: Backend | None = None
        self._supervisor: Supervisor | None = None
        self._pid = os.getpid()
        self._of_parent: list[object] = []

    def make(self, options: WorkerOptions) -> Backend:
        """For one run, until ``give_back``. Raises ConfigError while another has them."""
        self._look_for_fork()
        if self.is_lent:
            raise ConfigError("these workers are at work in another run", hint="wait for it to end")
        if self._backend is None:
            self._backend = make_backend(self.inner, options)
        self.is_lent = True
        return self._backend

    def supervisor(self, record: Record, driver: Driver, limits: StartLimits) -> Supervisor:
        """Have ``driver`` drive the workers, until ``give_back``."""
        assert self._backend is not None
        if self._supervisor is None:
            self._supervisor = Supervisor(self._backend, record, driver, limits=limits)
        self._supervisor.serve(record, driver)
        return self._supervisor

    def give_back(self, slots: Collection[str] = ()) -> None:
        """The run is over: let its idle workers of ``slots`` wait for the next, and end the others.

        What a worker still answers, or writes, would be taken for the next run's.
        """
        self.is_lent = False
        if self._supervisor is not None:
            self._supervisor.leave(slots)

    def beside(self) -> "KeptWorkers":
        return KeptWorkers(self.inner)

    def close(self, grace_s: float = GRACE_S) -> None:
        """End the workers, and with them their models."""
        self._look_for_fork()
        backend, self._backend, self._supervisor = self._backend, None, None
        if backend is not None:
            backend.close(grace_s)

    def _look_for_fork(self) -> None:
        """In a forked process: the workers are its parent's, and what they say is read there."""
        if self._pid != os.getpid():
            self._of_parent += [self._backend, self._supervisor]  # held, as their end would be that of theirs
            self._backend, self._supervisor = None, None
            self.is_lent, self._pid = False, os.getpid()

    def __str__(self) -> str:
        return f"{self.inner}, kept"
