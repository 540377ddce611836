"""What the integrations have in common: the executor of a call, and a user's function inside our own task."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from evenload._arguments import instance_of
from evenload.executor.executor import DeviceSpec, Executor
from evenload.executor.task.hybrid import Implementation


def executor_for(executor: Executor | None, devices: DeviceSpec) -> AbstractContextManager[Executor]:
    """``executor``, which stays open, or one of its own on ``devices``, which is closed after the block."""
    if executor is None:
        return Executor(devices)
    return nullcontext(instance_of("executor", executor, Executor, "an evenload.Executor, or leave it out"))


class BuiltFunction:
    """A function, or an instance of a class that was built on the worker's device, closed in the end."""

    def __init__(self, built: Implementation, device: Any):
        self._function: Any = built.build(device)

    def close(self) -> None:
        close = getattr(self._function, "close", None)
        if callable(close):
            close()
