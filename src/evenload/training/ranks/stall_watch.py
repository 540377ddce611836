"""``StallWatch``: names the rank for which the others wait, while they wait.

Who has waited for ``stall_s`` says so in the store of torch.distributed; who has not said so a while later is
the one that the others wait for. Nothing is asked of a rank that stalls, and nothing is ended.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["StallWatch", "late"]

LOG = logging.getLogger("evenload.training")
ANSWER_S = 5.0  # at most, for others that have waited as long to say so


class StallWatch:
    """A thread of its own that looks at how long this rank has waited for others.

    store    of torch.distributed, for these ranks alone
    tell     is given what there is to say, once for each step; by default a warning of the logger
             ``evenload.training``
    """

    def __init__(
        self, store: Any, number: int, size: int, stall_s: float, tell: Callable[[str], None] = LOG.warning
    ):
        self._store, self._number, self._size = store, number, size
        self._stall_s, self._tell = stall_s, tell
        self._since: tuple[int, float] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="evenload-stalls", daemon=True)
        self._thread.start()

    def waiting(self, step: int) -> None:
        """Say that this rank has done its part of ``step``, and waits."""
        self._since = (step, time.monotonic())

    def done(self) -> None:
        """Say that all have come."""
        self._since = None

    def stop(self) -> None:
        """End the watch; does not wait for it."""
        self._stop.set()

    def _look(self) -> None:
        told = -1
        while not self._stop.wait(self._stall_s / 4):
            since = self._since
            if since is None or since[0] == told or time.monotonic() - since[1] < self._stall_s:
                continue
            with contextlib.suppress(RuntimeError):  # the store is gone: torch says so to who waits
                told = self._ask(*since, told)

    def _ask(self, step: int, began_s: float, told: int) -> int:
        """Name who has not said that it waits, if this rank still does; returns the step that was told."""
        keys = [f"waits/{step}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._number], "yes")
        self._stop.wait(min(ANSWER_S, self._stall_s))
        missing = late(self._store.check([key]) for key in keys)
        if self._since != (step, began_s) or not missing:
            return told
        waited_s = time.monotonic() - began_s
        self._tell(f"{missing} not done with step {step}: the others have waited {waited_s:.0f} s")
        return step


def late(waits: Iterable[bool]) -> str:
    """Name the ranks that do not wait, by what each says; "" if all do."""
    missing = [rank for rank, does in enumerate(waits) if not does]
    if not missing:
        return ""
    names = ", ".join(map(str, missing[:20])) + (", ..." if len(missing) > 20 else "")
    return f"rank {names} is" if len(missing) == 1 else f"ranks {names} are"
