"""``BackwardMarks``: tells when a rank's own gradients are ready, and when all ranks' are.

    scaled loss ──► backward ──► own gradients are ready ──► wait for others (DDP, FSDP2) ──► all done

Callbacks at the end of a backward pass are called in the order in which they were queued: this one's is
queued with the first gradient, before those in which DDP and FSDP2 wait for the exchange; and one that it
queues itself comes after them. No model has to be wrapped or changed.
"""

from collections.abc import Callable
from typing import Any


class BackwardMarks:
    """A pair of marks in each backward pass: ``on_ready`` before the wait for others, ``on_done`` after."""

    def __init__(self, on_ready: Callable[[], None], on_done: Callable[[], None]):
        self._on_ready, self._on_done = on_ready, on_done
        self._is_queued = False

    def watch(self, loss: Any) -> None:
        """Have the backward pass of ``loss`` call both; once, if several losses are added up."""
        self._is_queued = False
        if loss.requires_grad:
            loss.register_hook(self._begin)

    def _begin(self, _: Any) -> None:
        if not self._is_queued:
            self._is_queued = True
            _queue(self._ready)

    def _ready(self) -> None:
        self._on_ready()
        _queue(self._done)

    def _done(self) -> None:
        self._is_queued = False
        self._on_done()


def _queue(callback: Callable[[], None]) -> None:
    import torch

    torch.autograd.Variable._execution_engine.queue_callback(callback)
