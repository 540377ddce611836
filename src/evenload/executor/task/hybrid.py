"""One task with an implementation for each kind of device: hybrid work on GPUs and CPUs side by side."""

import functools
import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from evenload.errors import ConfigError

__all__ = ["Implementation", "Implementations", "Task"]


class Task:
    """What ``map`` runs where: ``Task(cpu=on_cpu, gpu=OnGpu)``.

    cpu, gpu   functions, or classes that are built once per worker, as ``map`` takes them. ``gpu`` is for
               every accelerator. A device without an implementation takes no part.

    Each worker imports and builds its own implementation only. Both are to give the same results, as far as
    you care: which device an item runs on is decided while it runs. Raises ConfigError if there is none.
    """

    def __init__(self, *, cpu: Callable | type | None = None, gpu: Callable | type | None = None):
        if cpu is None and gpu is None:
            raise ConfigError("a Task needs an implementation", hint="give cpu=, gpu= or both")
        for name, one in (("cpu", cpu), ("gpu", gpu)):
            if one is not None and not callable(one):
                raise ConfigError(f"{name}={one!r} cannot be called", hint="give a function or a class")
        self.cpu = cpu
        self.gpu = gpu

    def bind(self, arguments: Mapping[str, Any]) -> "Task":
        """The same with these keyword arguments given to both."""
        cpu, gpu = (
            None if one is None else functools.partial(one, **arguments) for one in (self.cpu, self.gpu)
        )
        return Task(cpu=cpu, gpu=gpu)

    def __repr__(self) -> str:
        return f"Task(cpu={_name(self.cpu)}, gpu={_name(self.gpu)})"


class Implementation(NamedTuple):
    """One implementation: itself, or pickled with its buffers. ``device_as``: as in ``task.Task``."""

    fn: Any
    pickled: tuple[bytes, list] | None
    is_class: bool
    device_as: str | None

    def build(self, device: Any) -> Callable:
        """What is to be called on ``device``. Raises what importing or building it raises."""
        fn = self.fn if self.pickled is None else pickle.loads(self.pickled[0], buffers=self.pickled[1])
        if not self.is_class:
            return fn
        if self.device_as is None:
            return fn()
        return fn(**{self.device_as: device}) if self.device_as else fn(device)


class Implementations:
    """What a worker gets: called with its device, it builds the implementation for it."""

    def __init__(self, name: str, cpu: Implementation | None, gpu: Implementation | None):
        self._name = name
        self._parts = {"cpu": cpu, "gpu": gpu}

    def __call__(self, device: Any) -> Callable:
        kind = "cpu" if device.family == "cpu" else "gpu"
        part = self._parts[kind]
        if part is None:
            raise ConfigError(f"{self._name} has no implementation for {device.id}", hint=f"give {kind}=")
        return part.build(device)


def _name(fn: Any) -> str:
    inner = fn.func if isinstance(fn, functools.partial) else fn
    return getattr(inner, "__qualname__", None) or repr(fn)
