"""A task with one implementation for CPUs and one for GPUs, which run side by side."""

import functools
import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from evenload.errors import ConfigError, quoted


class Task:
    """A task with an implementation per kind of device: ``Task(cpu=on_cpu, gpu=OnGpu)``.

    cpu, gpu   functions, or classes that are built once per worker, as ``map`` takes them. ``gpu`` is for
               every accelerator. A device without an implementation gets no items.

    Each worker imports and builds only its own implementation. Both should give the same results: the device
    of an item is chosen during the run. Raises ConfigError if there is no implementation.
    """

    def __init__(self, *, cpu: Callable | type | None = None, gpu: Callable | type | None = None):
        if cpu is None and gpu is None:
            raise ConfigError("a Task needs an implementation", hint="give cpu=, gpu= or both")
        for name, one in (("cpu", cpu), ("gpu", gpu)):
            if one is not None and not callable(one):
                raise ConfigError(f"{name}={quoted(one)} cannot be called", hint="give a function or a class")
        self.cpu = cpu
        self.gpu = gpu

    def bind(self, arguments: Mapping[str, Any]) -> "Task":
        """Return a task with these keyword arguments bound in both implementations."""
        cpu, gpu = (
            None if one is None else functools.partial(one, **arguments) for one in (self.cpu, self.gpu)
        )
        return Task(cpu=cpu, gpu=gpu)

    def __repr__(self) -> str:
        return f"Task(cpu={_name(self.cpu)}, gpu={_name(self.gpu)})"


class Implementation(NamedTuple):
    """One implementation: itself, or pickled with buffers. ``device_as``: see ``PreparedTask``."""

    fn: Any
    pickled: tuple[bytes, list] | None
    is_class: bool
    device_as: str | None

    def build(self, device: Any) -> Callable:
        """Build the callable for ``device``. Raises what importing or building it raises."""
        fn = self.fn if self.pickled is None else pickle.loads(self.pickled[0], buffers=self.pickled[1])
        if not self.is_class:
            return fn
        if self.device_as is None:
            return fn()
        return fn(**{self.device_as: device}) if self.device_as else fn(device)


class Implementations:
    """The implementations of a hybrid task as sent to workers; called with a device, builds the right one."""

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
