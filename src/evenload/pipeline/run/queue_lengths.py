"""How many items wait before each stage of a run and how many are at work in it, as events now and then."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from evenload.events import EventLog, Queued

if TYPE_CHECKING:
    from evenload.pipeline.dispatch.dispatcher import Dispatcher

__all__ = ["QueueLengths"]

EVERY_S = 1.0


class QueueLengths:
    """``look`` in each round of the run's loop: a stage is told once in ``EVERY_S``, and when it has emptied.

    An item waits if its stage may run on it and no device has begun. Stages that nobody has come to are not
    told.
    """

    def __init__(self, log: EventLog, dispatcher: "Dispatcher", stages: Sequence[str]):
        self._log, self._dispatcher, self._stages = log, dispatcher, tuple(stages)
        self._told: dict[int, bool] = {}  # stage -> had it anything?
        self._next_s = log.now()

    def look(self) -> None:
        now = self._log.now()
        if now < self._next_s:
            return
        self._next_s = now + EVERY_S
        self.tell()

    def tell(self) -> None:
        """Now, whenever that was told last; at the end of a run its queues are seen to be empty."""
        running: dict[int, Counter[str]] = {}
        for group in self._dispatcher.groups.values():
            for task in group.running:
                running.setdefault(task.stage, Counter())[group.id] += 1
        for at, name in enumerate(self._stages):
            waiting, at_work = self._dispatcher.waiting.count(at), running.get(at, Counter())
            has_any = bool(waiting or at_work)
            if has_any or self._told.get(at):
                self._told[at] = has_any
                self._log.emit(Queued(self._log.now(), name, waiting, dict(at_work)))
