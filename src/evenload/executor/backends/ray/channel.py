"""A channel to one actor: commands, replies in order, and the offset of its clock."""

import math
import queue
import time
from typing import Any

from evenload.devices import Device
from evenload.executor.backends.ray.actor import ActorCommand, ExchangeReply, boot_id
from evenload.executor.task.answer import Answer

MOST_EXCHANGES = 4  # under way; each holds a thread of the actor until the next has come


class ActorChannel:
    """A channel to one actor: commands are written, and sent with the next ``flush``.

    At least one exchange is always under way, so that the actor can report at any time.
    n_unanswered       times in a row that it did not say where its worker is
    ready_until_s  until when its first answer must be here; None: it has come
    """

    def __init__(self, device: Device, actor: Any, arrived: queue.SimpleQueue, ready_until_s: float):
        self.device = device
        self.actor = actor
        self.clock = Clock()
        self.is_lost = False
        self.n_unanswered = 0
        self.ready_until_s: float | None = ready_until_s
        self._arrived = arrived
        self._commands: list[ActorCommand] = []
        self._sent_s: dict[int, float] = {}
        self._early: dict[int, ExchangeReply] = {}
        self._n_sent = self._n_taken = 0
        actor.hello.remote().future().add_done_callback(lambda future: self._deliver(-1, future))

    def write(self, command: ActorCommand) -> None:
        self._commands.append(command)

    def flush(self) -> None:
        under_way = self._n_sent - self._n_taken
        if self.is_lost or under_way >= MOST_EXCHANGES or (under_way and not self._commands):
            return
        number, self._n_sent = self._n_sent, self._n_sent + 1
        commands, self._commands = self._commands, []
        self._sent_s[number] = time.monotonic()
        self.actor.exchange.remote(number, commands).future().add_done_callback(
            lambda future: self._deliver(number, future)
        )

    def take(self, number: int, answer: Any) -> list[ExchangeReply]:
        """Take in a reply that has arrived; returns those that are next in order."""
        if number < 0:
            self.ready_until_s = None
            self.clock.is_ours = answer["boot"] == boot_id()
            return []
        self.clock.hear(self._sent_s.pop(number), answer, time.monotonic())
        self._early[number] = answer
        replies = []
        while self._n_taken in self._early:
            replies.append(self._early.pop(self._n_taken))
            self._n_taken += 1
        return replies

    def end(self) -> None:
        """Have Ray kill the actor, and with it the worker."""
        import ray

        ray.kill(self.actor, no_restart=True)

    def _deliver(self, number: int, future: Any) -> None:
        """Put a reply into the queue; called in a thread of Ray."""
        error = future.exception()
        self._arrived.put((self, number, future.result() if error is None else error))


class Clock:
    """An estimate of how far the actor's clock is behind this process's.

    A message leaves before it arrives, so each exchange gives a lower and an upper bound.
    """

    def __init__(self) -> None:
        self.is_ours = False  # the same machine, the same clock
        self._least_s, self._most_s = -math.inf, math.inf

    def hear(self, sent_s: float, reply: ExchangeReply, heard_s: float) -> None:
        least_s, most_s = sent_s - reply.came_s, heard_s - reply.left_s
        if least_s <= self._most_s and most_s >= self._least_s:
            least_s, most_s = max(least_s, self._least_s), min(most_s, self._most_s)
        self._least_s, self._most_s = (
            least_s,
            most_s,
        )  # where they contradict, the clocks have drifted: take the last exchange

    @property
    def behind_s(self) -> float:
        if self.is_ours or math.isinf(self._least_s):
            return 0.0
        return (self._least_s + self._most_s) / 2

    def translate(self, answer: Answer, sent_s: float, heard_s: float) -> None:
        """Convert an answer's times to this clock, within the time from sending to receiving."""
        behind_s = self.behind_s
        answer.start_s = min(max(answer.start_s + behind_s, sent_s), heard_s)
        answer.stop_s = min(max(answer.stop_s + behind_s, answer.start_s), heard_s)
