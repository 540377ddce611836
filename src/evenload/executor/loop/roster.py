"""The devices of an executor as its callers see them: which take part, and which did before."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

from evenload.devices import Device, DevicePool
from evenload.errors import ConfigError
from evenload.executor.backends import Backend

__all__ = ["Roster"]


class Roster:
    """A list of the devices that take part. Whoever changes it holds the executor's lock for that.

    pool  those that take part; another value after each change, so that a run's snapshot stays as it is
    """

    def __init__(self, pool: DevicePool, backend: Backend):
        self.pool = pool
        self._backend = backend
        self._drained: dict[str, Device] = {}

    def drain(self, ids: Sequence[str]) -> None:
        """Take these off the list. Raises UnknownName, or ConfigError if none would be left."""
        leaving = {device: self.pool.device(device) for device in ids}
        kept = [device for device in self.pool if device.id not in leaving]
        if not kept:
            raise ConfigError(
                f"nobody would work without {', '.join(leaving)}",
                hint="add another device first, or close the executor",
            )
        self._drained |= leaving
        self.pool = self.pool.with_devices(kept)

    def enter(self, devices: Iterable[Device]) -> None:
        """Put these on the list. Raises ConfigError if one is on it."""
        came = tuple(devices)
        self._refuse_present(device.id for device in came)
        self.pool = self.pool.with_devices([*self.pool, *came])

    def newcomers(self, spec: Any) -> tuple[Device, ...]:
        """Return the devices that ``spec`` means, to be entered; see ``Executor.add``. Asks the backend."""
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


def _names(spec: Any) -> list[str | Device]:
    """Return the terms of a spec, each with its family: "cuda:0,1" has "cuda:0" and "cuda:1"."""
    names: list[str | Device] = []
    entries = [spec] if isinstance(spec, str | int | Device) or not isinstance(spec, Sequence) else spec
    for entry in entries:
        if isinstance(entry, Device):
            names.append(entry)
            continue
        for term in str(entry).split(","):
            node, slash, own = term.strip().rpartition("/")
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
