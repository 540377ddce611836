"""The generators of random numbers that a whole process shares: torch's, numpy's and Python's own."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def seeded(seed: int, devices: Any = None) -> Iterator[None]:
    """Seed the three generators for the block, and put them back as they were after it.

    seed     0 <= seed < 2**63; numpy's generator gets its lowest 32 bits
    devices  whose generators are put back, too; None: all GPUs
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            _seed_torch(seed)
            random.seed(seed)
            np.random.seed(seed & 0xFFFFFFFF)
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _seed_torch(seed: int) -> None:
    """``torch.manual_seed`` without the tracebacks that it keeps for GPUs in case one is used: 0.2 to 1 ms.

    Clients that are trained one by one, each with its own numbers, may take no longer than that.
    """
    kinds = getattr(torch, "accelerator", None)  # torch 2.4 and 2.5 have none
    if kinds is None or kinds.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


class Drawn:
    """The generators as they were when this was made, to ask later whether numbers were drawn since."""

    def __init__(self) -> None:
        self._torch, self._python = torch.get_rng_state(), random.getstate()
        self._numpy = np.random.get_state()

    def __bool__(self) -> bool:
        """Has anything drawn from one of them?"""
        return (
            self._python != random.getstate()
            or _comparable(self._numpy) != _comparable(np.random.get_state())
            or not torch.equal(self._torch, torch.get_rng_state())
        )

    def put_back(self) -> None:
        """Let the generators go on from where they were."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        np.random.set_state(self._numpy)


def _comparable(state: Any) -> tuple:
    return (state[1].tobytes(), *state[2:])
