"""The devices of an executor as its callers see them: which take part, and which did before."""

import threading
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from evenload.devices import Device, DevicePool
from evenload.devices.selection import entries_of
from evenload.errors import ConfigError, EvenloadError, quoted
from evenload.executor.backends import Backend, Machines
from evenload.executor.decide.record import Record
from evenload.executor.loop.engine import RunEngine


class Roster:
    """A list of the devices that take part, for any thread: what changes it tells ``engine``.

    One change is made at a time. It may have to wait for machines to answer; nobody else waits meanwhile.

    pool     those that take part; another value after each change, so that a run's snapshot stays as it is
    follows  what is taken in of machines that join; None: nothing
    """

    def __init__(self, pool: DevicePool, engine: RunEngine, record: Record, follows: Any):
        self.pool = pool
        self._engine, self._backend, self._record = engine, engine.backend, record
        self._follows = follows
        self._drained: dict[str, Device] = {}
        self._lock = threading.RLock()

    def drain(self, ids: Sequence[str], at_once: bool) -> None:
        """Take these off the list; see ``Executor.drain``."""
        with self._lock:
            leaving = {device: self.pool.device(device) for device in ids}
            kept = [device for device in self.pool if device.id not in leaving]
            if not kept:
                raise ConfigError(
                    f"nobody would work without {', '.join(leaving)}",
                    hint="add another device first, or close the executor",
                )
            self._drained |= leaving
            self.pool = self.pool.with_devices(kept)
            self._engine.call(partial(self._engine.drain, ids, at_once))

    def add(self, spec: Any) -> tuple[str, ...]:
        """Put what ``spec`` means on the list; see ``Executor.add``."""
        with self._lock:
            self._drop_lost()
            came = self._newcomers(spec)
            self._enter(came)
        return tuple(device.id for device in came)

    def watch(self) -> None:
        """Have the list follow the machines of the backend, if these come and go."""
        if isinstance(self._backend, Machines):
            self._backend.watch(self._update)

    def _update(self) -> None:
        """Machines have come or gone: so do their devices."""
        with self._lock:
            try:
                self._drop_lost()
                if self._follows is not None and isinstance(self._backend, Machines):
                    came = self._backend.arrivals(self._follows)
                    self._enter([device for device in came if device.id not in self.pool])
            except EvenloadError as error:
                self._record.note("warning", f"machines that came or went: {error.message}")

    def _enter(self, devices: Sequence[Device]) -> None:
        if devices:
            self.pool = self.pool.with_devices([*self.pool, *devices])
            self._engine.call(partial(self._engine.add, devices))

    def _drop_lost(self) -> None:
        """Forget devices, drained ones too, whose machine has left. The list may get empty."""
        if not isinstance(self._backend, Machines):
            return
        lost = self._backend.lost([*self.pool, *self._drained.values()])
        if lost:
            self._drained = {name: one for name, one in self._drained.items() if name not in lost}
            self.pool = self.pool.with_devices([device for device in self.pool if device.id not in lost])
            self._engine.call(partial(self._engine.lose, lost))

    def _newcomers(self, spec: Any) -> tuple[Device, ...]:
        """Return the devices that ``spec`` means, of the backend; none may be on the list."""
        if isinstance(spec, DevicePool):
            return self._unlisted(spec)
        names = _names(spec)
        self._refuse_present(name.id if isinstance(name, Device) else name for name in names)
        back = [self._drained[name] for name in names if isinstance(name, str) and name in self._drained]
        new = [name for name in names if isinstance(name, Device) or name not in self._drained]
        if not back:
            new = spec  # as it was given, for the message if it is refused
        found = self._backend.devices(new) if new is spec or new else ()
        given = {name.id for name in names if isinstance(name, Device)}
        taken, came = {*self.pool.ids, *self._drained}, []
        counts_slots = any(isinstance(name, str) and ("*" in name or name.isdigit()) for name in names)
        for device in found:
            if device.family == "cpu" and device.id in taken and counts_slots:
                device = replace(device, id=_free_id(device, taken))
            elif device.id not in given:
                device = self._drained.get(device.id, device)
            taken.add(device.id)
            came.append(device)
        return (*back, *self._unlisted(came))

    def _unlisted(self, devices: Iterable[Device]) -> tuple[Device, ...]:
        came = tuple(devices)
        self._refuse_present(device.id for device in came)
        return came

    def _refuse_present(self, names: Iterable[str]) -> None:
        present = [name for name in names if name in self.pool]
        if present:
            verb = "take" if len(present) > 1 else "takes"
            raise ConfigError(
                f"{', '.join(present)} {verb} part already",
                hint="`executor.devices` says who does; cpu*1 is one more CPU slot",
            )


def pool_of(spec: Any, backend: Backend, follow: bool) -> DevicePool:
    """The devices that ``spec`` means. Raises as ``Executor`` does, and closes ``backend``."""
    try:
        if follow:
            check_follow(spec, backend)
        return spec if isinstance(spec, DevicePool) else backend.devices(spec)
    except BaseException:
        backend.close(0.0)
        raise


def check_follow(spec: Any, backend: Backend) -> None:
    """Raises ConfigError if no machine can join ``backend`` that ``spec`` means."""
    if not isinstance(backend, Machines):
        raise ConfigError("follow=True, but no machine ever joins this one", hint="use backend='ray'")
    if isinstance(spec, int | DevicePool) or (isinstance(spec, str) and spec.strip().isdigit()):
        raise ConfigError(f"follow=True, but devices={quoted(spec)} is complete", hint="use 'all'")


def _names(spec: Any) -> list[str | Device]:
    """Return the terms of a spec, each with its family: "cuda:0,1" has "cuda:0" and "cuda:1"."""
    names: list[str | Device] = []
    for term in [str(spec)] if isinstance(spec, int) else entries_of(spec):
        if isinstance(term, Device):
            names.append(term)
            continue
        node, slash, own = term.rpartition("/")
        before = names[-1] if names else ""
        if own.isdigit() and not slash and isinstance(before, str) and ":" in before:
            names.append(f"{before.rpartition(':')[0]}:{own}")
        else:
            names.append(f"{node}{slash}{own.lower()}")
    return names


def _free_id(device: Device, taken: Container[str]) -> str:
    """Return the first id of this family and machine that is not ``taken``."""
    prefix = device.id.rpartition(":")[0]
    return next(name for n in range(10**6) if (name := f"{prefix}:{n}") not in taken)
