"""Objects that a forked child cannot use: it lacks the threads, and locks may be held for ever."""

import os

from evenload.errors import ConfigError


class ForkGuard:
    """A guard that knows which process made an object, and refuses its use in a child forked from that.

    what  for the message, such as "this executor"
    hint  what to do in the child instead
    """

    __slots__ = ("_hint", "_pid", "_what")

    def __init__(self, what: str, hint: str):
        self._what, self._hint, self._pid = what, hint, os.getpid()

    @property
    def is_child(self) -> bool:
        """Whether another process made the object, or this one is at its end and has no modules any more."""
        return os is None or os.getpid() != self._pid  # results of a forked child may outlive its modules

    def check(self) -> None:
        """Raises ConfigError in a child."""
        if self.is_child:
            raise ConfigError(
                f"{self._what} belongs to process {self._pid}; this is process {os.getpid()}, forked from it",
                hint=self._hint,
            )
