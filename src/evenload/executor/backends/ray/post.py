"""Letters to one actor and back, in order, and its clock against ours."""

import math
import queue
import time
from typing import Any

from evenload.devices import Device
from evenload.executor.backends.ray.guard import Command, Turn, boot_id
from evenload.executor.task.task import Answer

__all__ = ["Clock", "Post"]

MOST_TURNS = 4  # under way; each holds a thread of the actor until the next has come


class Post:
    """A line to one guard: commands are written, and go with the next ``flush``.

    One turn at least is always under way, so that the guard can tell news at any time.
    n_silent       times in a row that it did not say where its worker is
    ready_until_s  until when its first answer must be here; None: it has come
    """

    def __init__(self, device: Device, guard: Any, arrived: queue.SimpleQueue, ready_until_s: float):
        self.device = device
        self.guard = guard
        self.clock = Clock()
        self.is_lost = False
        self.n_silent = 0
        self.ready_until_s: float | None = ready_until_s
        self._arrived = arrived
        self._commands: list[Command] = []
        self._sent_s: dict[int, float] = {}
        self._early: dict[int, Turn] = {}
        self._n_sent = self._n_taken = 0
        guard.hello.remote().future().add_done_callback(lambda future: self._deliver(-1, future))

    def write(self, command: Command) -> None:
        self._commands.append(command)

    def flush(self) -> None:
        under_way = self._n_sent - self._n_taken
        if self.is_lost or under_way >= MOST_TURNS or (under_way and not self._commands):
            return
        number, self._n_sent = self._n_sent, self._n_sent + 1
        commands, self._commands = self._commands, []
        self._sent_s[number] = time.monotonic()
        turn = self.guard.turn.remote(number, commands)
        turn.future().add_done_callback(lambda future: self._deliver(number, future))

    def take(self, number: int, answer: Any) -> list[Turn]:
        """An answer has arrived: those that can be read now, in order."""
        if number < 0:
            self.ready_until_s = None
            self.clock.is_ours = answer["boot"] == boot_id()
            return []
        self.clock.hear(self._sent_s.pop(number), answer, time.monotonic())
        self._early[number] = answer
        turns = []
        while self._n_taken in self._early:
            turns.append(self._early.pop(self._n_taken))
            self._n_taken += 1
        return turns

    def end(self) -> None:
        """Have Ray end the actor, and so its worker."""
        import ray

        ray.kill(self.guard, no_restart=True)

    def _deliver(self, number: int, future: Any) -> None:
        """In a thread of Ray's."""
        error = future.exception()
        self._arrived.put((self, number, future.result() if error is None else error))


class Clock:
    """How far the guard's clock is behind ours. A message left before it came: each turn narrows it down."""

    def __init__(self) -> None:
        self.is_ours = False  # the same machine, the same clock
        self._least_s, self._most_s = -math.inf, math.inf

    def hear(self, sent_s: float, turn: Turn, heard_s: float) -> None:
        least_s, most_s = sent_s - turn.came_s, heard_s - turn.left_s
        if least_s <= self._most_s and most_s >= self._least_s:
            least_s, most_s = max(least_s, self._least_s), min(most_s, self._most_s)
        self._least_s, self._most_s = least_s, most_s  # or they have drifted apart: believe the last turn

    @property
    def behind_s(self) -> float:
        if self.is_ours or math.isinf(self._least_s):
            return 0.0
        return (self._least_s + self._most_s) / 2

    def translate(self, answer: Answer, sent_s: float, heard_s: float) -> None:
        """Put an answer's moments on our clock, between when it was asked for and when it was heard."""
        behind_s = self.behind_s
        answer.start_s = min(max(answer.start_s + behind_s, sent_s), heard_s)
        answer.stop_s = min(max(answer.stop_s + behind_s, answer.start_s), heard_s)
