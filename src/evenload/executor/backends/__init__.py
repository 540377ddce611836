"""How tasks reach workers. One file per back end, chosen by name; nothing is imported before it is."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from evenload.devices import Device, DevicePool
from evenload.devices.selection import Spec
from evenload.errors import ConfigError, UnknownName
from evenload.executor.task.messages import Message
from evenload.executor.task.task import PreparedTask

__all__ = ["BACKENDS", "Backend", "BackendSettings", "WorkerOptions", "make_backend"]

BACKENDS = {
    "inline": "evenload.executor.backends.inline:InlineBackend",
    "process": "evenload.executor.backends.process:ProcessBackend",
    "ray": "evenload.executor.backends.ray.backend:RayBackend",
}


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How workers are started and reached; a back end heeds what means something to it.

    shared_memory_limit  of what travels: bytes, or words such as "2 GiB"; None for what the settings say
    start                "forkserver" or "spawn"; None for what the settings say
    """

    shared_memory_limit: int | str | None = None
    start: str | None = None


class Backend(Protocol):
    """What the executor asks of a back end. Everything but ``wake`` is called from one thread.

    A worker is a number that the executor chooses; numbers are not used again. What a call brings about is
    told by the messages of ``poll``.
    """

    is_threaded: bool
    """Workers run beside the executor; if not, they run inside ``poll``, in the caller's thread."""

    @property
    def host(self) -> str:
        """At which address workers that are not on this machine reach this program."""
        ...

    def devices(self, spec: Spec) -> DevicePool:
        """What ``spec`` means among the devices that it reaches. Raises as ``DevicePool.select``."""
        ...

    def start(self, worker: int, device: Device, pool: DevicePool, environment: Mapping[str, str]) -> None:
        """Begin to start a worker: Up, or Gone. Raises OSError if not even that is possible."""
        ...

    def load(self, worker: int, task: PreparedTask) -> None:
        """Build ``task`` there: Loaded or Refused."""
        ...

    def unload(self, worker: int, task: int) -> None: ...

    def run(self, worker: int, task: int, chunk: int, items: Sequence[Any], singly: bool) -> int | None:
        """Run ``items`` when what was sent before is done: Answered, Spoilt or Gone.

        Returns the bytes that travel, if any do. Raises what pickling raises; nothing was sent then.
        """
        ...

    def drop(self, worker: int, chunk: int) -> None:
        """Skip what is not begun of ``chunk`` and of those before it: answers come sooner, and shorter."""
        ...

    def position(self, worker: int) -> tuple[int, float]:
        """Position in the first chunk it holds, and seconds since it got there; see ``progress_cell``."""
        ...

    def stop(self, worker: int) -> None:
        """Have it free what its tasks hold, when it has done what was sent before, and leave: Gone."""
        ...

    def kill(self, worker: int) -> None:
        """End it and everything it has started, now: Gone."""
        ...

    def poll(self, timeout_s: float | None) -> list[Message]:
        """Wait until there is something to tell (or ``wake``, or the time is up) and tell it."""
        ...

    def wake(self) -> None:
        """Make ``poll`` return soon; from any thread."""
        ...

    def close(self, grace_s: float) -> list[Message]:
        """Stop the workers; those still there after ``grace_s`` are killed. Nothing is left afterwards.

        Returns what there was to tell until then.
        """
        ...


@runtime_checkable
class BackendSettings(Protocol):
    """A back end by value, for one that needs more than its name; such as ``evenload.executor.Ray``."""

    def make(self, options: WorkerOptions) -> Backend: ...

    def beside(self) -> "BackendSettings":
        """The same for workers beside others, which hold the devices already."""
        ...


def make_backend(which: str | BackendSettings, options: WorkerOptions | None = None) -> Backend:
    """A new back end. Raises UnknownName, or MissingExtra if it needs a package that is not installed."""
    if not isinstance(which, str):
        if not isinstance(which, BackendSettings):
            raise ConfigError(f"backend={which!r} is neither a name nor a back end", hint="use 'process'")
        return which.make(options or WorkerOptions())
    if which not in BACKENDS:
        raise UnknownName("backend", which, BACKENDS)
    module, _, cls = BACKENDS[which].partition(":")
    return getattr(importlib.import_module(module), cls)(options or WorkerOptions())
