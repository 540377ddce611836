"""A user's function or class inside a task of our own, as a worker holds it."""

from typing import Any

from evenload.executor.task.hybrid import Implementation

__all__ = ["BuiltFunction"]


class BuiltFunction:
    """A function, or an instance of a class that was built on the worker's device, closed in the end."""

    def __init__(self, built: Implementation, device: Any):
        self._function: Any = built.build(device)

    def close(self) -> None:
        close = getattr(self._function, "close", None)
        if callable(close):
            close()
