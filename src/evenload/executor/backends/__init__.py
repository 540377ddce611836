"""Backends: how the executor reaches workers. One file each, chosen by name and imported on first use."""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from evenload.devices import Device, DevicePool
from evenload.devices.selection import Spec
from evenload.errors import ConfigError, UnknownName, quoted
from evenload.executor.task.messages import Message
from evenload.executor.task.task import PreparedTask
from evenload.executor.transport.progress_cell import NOT_BEGUN
from evenload.executor.worker.program_settings import ProgramSettings

__all__ = [
    "BACKENDS",
    "Backend",
    "BackendSettings",
    "FreeMemory",
    "Machines",
    "WorkerOptions",
    "make_backend",
]

BACKENDS = {
    "inline": "evenload.executor.backends.inline:InlineBackend",
    "process": "evenload.executor.backends.process:ProcessBackend",
    "ray": "evenload.executor.backends.ray.backend:RayBackend",
}


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options for starting and reaching workers; a backend ignores those that do not apply to it.

    shared_memory_limit  bytes, or text such as "2 GiB"; None: from the settings
    memory_limit         of each worker, in bytes or as text; one that uses more is killed; None: no limit
    start                "forkserver" or "spawn"; None: from the settings
    imports              packages that every worker will import: the fork server imports them for all
    program              settings that workers take over; None: those of the process that starts them
    """

    shared_memory_limit: int | str | None = None
    start: str | None = None
    memory_limit: int | str | None = None
    imports: tuple[str, ...] = ()
    program: ProgramSettings | None = None


class Backend:
    """A way to run workers. Everything but ``wake`` is called from one thread.

    The executor names workers by numbers and never uses one again. The effect of a call is reported by the
    messages of ``poll``. Methods that need not do anything do nothing here.
    """

    is_threaded: bool
    """Workers run beside the executor; if not, they run inside ``poll``, in the caller's thread."""

    @property
    def host(self) -> str:
        """The address at which workers on other machines reach this program."""
        return "127.0.0.1"

    def devices(self, spec: Spec) -> DevicePool:
        """Select ``spec`` among the devices that it reaches. Raises as ``DevicePool.select``."""
        return DevicePool.find(spec)

    def expect(self) -> None:
        """Begin what takes long before the first worker can start."""

    def start(self, worker: int, device: Device, pool: DevicePool, environment: Mapping[str, str]) -> None:
        """Begin to start a worker; Up or Gone follows. Raises OSError if not even that is possible."""
        raise NotImplementedError

    def load(self, worker: int, task: PreparedTask) -> None:
        """Build ``task`` in the worker; Loaded or Refused follows."""
        raise NotImplementedError

    def unload(self, worker: int, task: int) -> None:
        """Free what the worker has built of ``task``."""
        raise NotImplementedError

    def send(self, worker: int, task: int, chunk: int, items: Sequence[Any], singly: bool) -> int | None:
        """Send ``items`` to be run after what was sent before; Answered, Spoilt or Gone follows.

        Returns the bytes sent, None in this process. Raises what pickling raises; nothing was sent then.
        """
        raise NotImplementedError

    def drop(self, worker: int, chunk: int) -> None:
        """Skip the items of ``chunk``, and of those before it, that are not begun yet."""

    def position(self, worker: int) -> tuple[int, float]:
        """Return the position in the first chunk it holds, and the seconds there; see ``progress_cell``."""
        return NOT_BEGUN, 0.0

    def activity(self, worker: int) -> float | None:
        """What the worker has done so far, as ``StartWatch`` counts it; None if nobody can see."""
        return None

    def stop(self, worker: int) -> None:
        """End the worker when it has done what was sent before and freed its tasks; Gone follows."""
        raise NotImplementedError

    def kill(self, worker: int) -> None:
        """Kill the worker and all processes it has started; Gone follows."""
        raise NotImplementedError

    def show_stack(self, worker: int) -> None:
        """Have the worker print where its threads are, as lines of its output."""

    def poll(self, timeout_s: float | None) -> list[Message]:
        """Wait for messages, ``wake`` or the end of the time, and return the messages."""
        raise NotImplementedError

    def wake(self) -> None:
        """Make ``poll`` return soon; from any thread."""

    def close(self, grace_s: float) -> list[Message]:
        """Stop the workers; those that are busy after ``grace_s`` are killed. Frees everything.

        Those that have nothing to do have longer, unless ``grace_s`` is 0. Returns the last messages.
        """
        raise NotImplementedError


class FreeMemory(NamedTuple):
    """The memory that was free on each device, by id, and on each machine, by name."""

    devices: Mapping[str, int]
    machines: Mapping[str, int]


@runtime_checkable
class Machines(Protocol):
    """A backend over machines that come and go. These methods are for any thread."""

    def watch(self, changed: Callable[[], None]) -> None:
        """Call ``changed``, in a thread of its own, whenever a machine has come or gone, until ``close``."""
        ...

    def lost(self, devices: Iterable[Device]) -> tuple[str, ...]:
        """Return the ids of those whose machine is there no more."""
        ...

    def arrivals(self, spec: Spec) -> tuple[Device, ...]:
        """Select what ``spec`` means of the machines that have come since devices were last asked for."""
        ...

    def free_memory(self) -> FreeMemory:
        """Return what the drivers of each machine said when its devices were last listed."""
        ...


@runtime_checkable
class BackendSettings(Protocol):
    """A backend with settings of its own, such as ``evenload.executor.Ray``."""

    def make(self, options: WorkerOptions) -> Backend:
        """Make the backend."""
        ...

    def beside(self) -> "BackendSettings":
        """Return settings for a second backend on devices that already have workers."""
        ...


def make_backend(which: str | BackendSettings, options: WorkerOptions | None = None) -> Backend:
    """Make a backend. Raises UnknownName, or MissingExtra if it needs a package that is not installed."""
    if not isinstance(which, str):
        if not isinstance(which, BackendSettings):
            raise ConfigError(
                f"backend={quoted(which)} is neither a name nor a backend", hint="use 'process'"
            )
        return which.make(options or WorkerOptions())
    if which not in BACKENDS:
        raise UnknownName("backend", which, BACKENDS)
    module, _, cls = BACKENDS[which].partition(":")
    return getattr(importlib.import_module(module), cls)(options or WorkerOptions())
