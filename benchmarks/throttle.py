"""Make ranks of a training on CPUs unequal, as accelerators of different speeds would be.

device  a rank computes its gradients at once, and waits where its last gradient would be ready until the time
        has passed that a device of its speed would take. Exact even where cores are few: waiting needs none.
duty    the rank's work is real, and its process is stopped for the rest of every period of 20 ms.
"""

import os
import signal
import threading
import time
from collections.abc import Mapping

import torch
from torch import nn

PERIOD_S = 0.02
FOREVER_S = 3600.0


class DeviceTime:
    """A modelled device: ``begin(n)`` before the forward pass of n samples, and gradients are late enough.

    sample_s  seconds for one sample at speed 1; 0 waits for nothing
    speed     of this rank; ``changes`` names other ones, from a step on
    ended     when the last gradient of the last step was there
    """

    def __init__(self, sample_s: float, speed: float, changes: Mapping[int, float] | None = None) -> None:
        self.sample_s, self.speed, self.changes = sample_s, speed, dict(changes or {})
        self._until = self.ended = 0.0

    def slow(self, first: nn.Module) -> None:
        """Wait where ``first``, the model's first layer, gets its gradient, the last of a backward pass."""
        first.register_forward_hook(lambda _module, _given, out: _Wait.apply(out, self))

    def begin(self, n_samples: int, step: int) -> None:
        """Begin a step; a device of speed 0 never ends it."""
        speed = next(
            (self.changes[at] for at in sorted(self.changes, reverse=True) if at <= step), self.speed
        )
        self._until = time.monotonic() + (n_samples * self.sample_s / speed if speed else FOREVER_S)

    def wait(self) -> None:
        time.sleep(max(0.0, self._until - time.monotonic()))
        self.ended = time.monotonic()


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given, device):
        ctx.device = device
        return given.view_as(given)

    @staticmethod
    def backward(ctx, gradient):
        if gradient.is_cuda:
            torch.cuda.synchronize()
        ctx.device.wait()
        return gradient, None


class DutyCycle:
    """A thread that lets a process run for ``share`` of the time, by stopping it in every period."""

    def __init__(self, pid: int, share: float) -> None:
        self._pid, self._share, self._end = pid, share, threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def __enter__(self) -> "DutyCycle":
        if self._share < 1:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._share < 1:
            self._thread.join()

    def _go(self) -> None:
        try:
            while not self._end.wait(PERIOD_S * self._share):
                os.kill(self._pid, signal.SIGSTOP)
                self._end.wait(PERIOD_S * (1 - self._share))
                os.kill(self._pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
