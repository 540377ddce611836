"""The actor of a device without Ray around it: which exchanges are answered, and when."""

import os
import sys
import threading
from collections.abc import Callable

from evenload.executor.backends import WorkerOptions
from evenload.executor.backends.ray.actor import ActorCommand, ExchangeReply, WorkerActor


def test_an_actor_that_has_ended_answers_only_because_the_next_exchange_has_come(
    until: Callable[..., None],
) -> None:
    """Once it answered at once, which was the driver's reason to ask again, until all others had ended."""
    actor = WorkerActor(sys.path, os.getcwd(), WorkerOptions(start="spawn"))
    replies: list[ExchangeReply] = []

    def exchange(number: int, *commands: ActorCommand) -> None:
        replies.append(actor.exchange(number, commands))

    def begin(number: int, *commands: ActorCommand) -> threading.Thread:
        thread = threading.Thread(target=exchange, args=(number, *commands), daemon=True)
        thread.start()
        return thread

    begin(0, ActorCommand("close", (0.0,)))
    until(lambda: actor._is_closed, "it is closed")
    begin(1)
    until(lambda: len(replies) == 1, "the first is answered")
    last = begin(2)
    until(lambda: len(replies) == 2, "the second is answered")
    assert [reply.number for reply in replies] == [0, 1]
    with actor._changed:
        actor._messages.append("the end")
        actor._changed.notify_all()
    last.join(timeout=500)
    assert [reply.messages for reply in replies] == [[], [], ["the end"]]
