"""Devices that come and go while the executor works."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenload.devices import Device, DevicePool, worker_environment
from evenload.errors import ConfigError
from evenload.executor.backends import Backend
from evenload.executor.decide.instruction import Came
from evenload.executor.loop.device_slot import Seat
from evenload.executor.loop.run import Run

__all__ = ["Roster", "helpers", "newcomers"]

LEAVE_S = 5.0  # for a drained device's worker to free what its tasks hold


class Roster:
    """The executor's seats: who has one, who is to leave. ``pool`` has every device that ever had one.

    Belongs to the executor's thread.
    """

    def __init__(self, pool: DevicePool, backend: Backend):
        self.pool = pool
        self._backend = backend
        self.seats = {device.id: Seat(device, worker_environment(device, pool), device.id) for device in pool}

    def add(self, devices: Sequence[Device], runs: Sequence[Run]) -> None:
        """These take part from now on, in ``runs`` too."""
        now = time.monotonic()
        known = {device.id: device for device in self.pool}
        self.pool = self.pool.with_devices([*(known | {device.id: device for device in devices}).values()])
        for device in devices:
            seat = self.seats.get(device.id)
            if seat is None:
                seat = self.seats[device.id] = Seat(device, worker_environment(device, self.pool), device.id)
            seat.is_draining, seat.lost, seat.n_early_deaths = False, None, 0
            seat.refusals.clear()
            for run in runs:
                if not run.is_over and device.id not in run.devices:
                    run.devices.add(device.id)
                    is_helper = device.id in helpers(self.pool)
                    run.scheduler.handle(Came(device.id, now, self.pool.score(device.id), is_helper))

    def drain(self, ids: Sequence[str], runs: Sequence[Run], at_once: bool) -> None:
        """These get nothing more. Their workers end what they have, or (``at_once``) are killed with it."""
        now = time.monotonic()
        for device in ids:
            seat = self.seats[device]
            seat.is_draining = True
            for run in runs:
                run.leave(device, "it was drained", now)
            if at_once and seat.worker is not None:
                seat.worker.is_removed = True
                self._backend.kill(seat.worker.number)

    def dismiss_drained(self, now: float) -> float | None:
        """Send workers home that have nothing left to do. Returns when to look again."""
        due_s = None
        for seat in self.seats.values():
            if not seat.is_draining or seat.worker is None or not seat.worker.is_idle:
                continue
            if seat.stop_by_s is None:
                self._backend.stop(seat.worker.number)
                seat.stop_by_s = now + LEAVE_S
            elif now >= seat.stop_by_s:
                self._backend.kill(seat.worker.number)
                seat.stop_by_s = now + LEAVE_S
            due_s = seat.stop_by_s if due_s is None else min(due_s, seat.stop_by_s)
        return due_s


def helpers(devices: Iterable[Device]) -> set[str]:
    """CPU slots beside accelerators: they get only what they surely end in time."""
    devices = tuple(devices)
    if not any(device.is_accelerator for device in devices):
        return set()
    return {device.id for device in devices if not device.is_accelerator}


def newcomers(
    spec: Any, present: DevicePool, drained: Mapping[str, Device], backend: Backend
) -> tuple[Device, ...]:
    """The devices that ``spec`` means, beside those ``present``; see ``Executor.add``."""
    names = [name.strip() for name in spec.split(",")] if isinstance(spec, str) else []
    if names and all(name in drained and name not in present for name in names):
        return tuple(drained[name] for name in names)
    chosen = tuple(spec) if isinstance(spec, DevicePool) else tuple(backend.devices(spec))
    taken, came = {*present.ids, *drained}, []
    for device in chosen:
        if device.id in present and device.family != "cpu":
            raise ConfigError(f"{device.id} takes part already", hint="`executor.devices` says who does")
        if device.family == "cpu" and device.id in taken:
            prefix = device.id.rpartition(":")[0]
            device = replace(
                device, id=next(f"{prefix}:{n}" for n in range(10**6) if f"{prefix}:{n}" not in taken)
            )
        taken.add(device.id)
        came.append(device)
    return tuple(came)
