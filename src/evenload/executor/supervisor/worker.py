"""A worker process as those see it who give it work."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenload.devices import Device
from evenload.executor.task.task import PreparedTask


@dataclass(slots=True, eq=False)
class Worker:
    """One worker process (or its like) from the decision to start it to its end.

    number      names it to the backend; numbers are not used again
    slot        the device, or group of devices, that it works on
    name        for people: the slot, and which of its workers this is
    device      that it was started for; ``environment``: what it was started with
    asked_s     when it was decided to start it
    startup_s   seconds until its first task was built; or that a later task took to build, if more
    tasks       the tasks that are built there
    loading     the task that is being built
    adopting    the chunk by which a worker that waited hears of a new task
    chunks      what it was sent and has not answered, in order: the driver's own values, with a ``number``
    n_in_chunk  how many items each of them has
    n_items     items that it was sent
    has_worked  it has begun or answered a chunk
    is_removed  it is killed with what it runs, because its device is to go at once
    leave_by_s  when it is killed, after it was told to leave
    why_killed  if that was told when it was killed
    is_untrue   it has sent what cannot be true: nothing it says is believed any more
    stack       what it has said of where its threads are; None if it was not asked
    last_dropped  the number of the last chunk that it was told to skip, if any
    """

    number: int
    slot: str
    name: str
    asked_s: float
    device: Device
    environment: Mapping[str, str] = field(default_factory=dict)
    startup_s: float = 0.0
    pid: int | None = None
    n_items: int = 0
    is_up: bool = False
    is_ready: bool = False
    has_worked: bool = False
    is_removed: bool = False
    tasks: dict[int, PreparedTask] = field(default_factory=dict)
    loading: PreparedTask | None = None
    adopting: Any = None
    chunks: deque[Any] = field(default_factory=deque)
    n_in_chunk: deque[int] = field(default_factory=deque)
    leave_by_s: float | None = None
    why_killed: str = ""
    stack: list[str] | None = None
    last_dropped: int = 0
    is_untrue: bool = False

    @property
    def is_idle(self) -> bool:
        return self.is_up and not self.chunks and self.loading is None

    def is_at(self, chunk: int) -> bool:
        """Whether the chunk with this number is the next that it should answer."""
        return bool(self.chunks) and self.chunks[0].number == chunk

    def take_chunk(self) -> Any:
        """The chunk that it has answered; it holds that no longer."""
        self.n_in_chunk.popleft()
        return self.chunks.popleft()

    @property
    def may_work(self) -> bool:
        """Whether the worker is idle, was not told to leave, and is not being killed."""
        return self.is_idle and self.leave_by_s is None and not self.why_killed
