"""Which devices take part, and which of them have a worker: devices come and go while the executor works."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from evenload.devices import Device, DevicePool, worker_environment
from evenload.executor.decide.record import Record
from evenload.executor.run.run import Run
from evenload.executor.supervisor.back_off import BackOff, saying
from evenload.executor.supervisor.supervisor import Supervisor
from evenload.executor.supervisor.worker import Worker
from evenload.executor.task.messages import Gone


@dataclass(slots=True, eq=False)
class DeviceSlot:
    """A device with the environment of its workers, which come and go while the slot stays.

    refusals      why a task cannot be built here, by the task's number
    rest          why and since when the device was last left without work
    why_draining  why it gets nothing more; "" if it does
    n_seen        chunks that all devices had answered when the last was answered here
    """

    id: str
    device: Device
    environment: Mapping[str, str]
    back_off: BackOff = field(default_factory=BackOff)
    refusals: dict[int, str] = field(default_factory=dict)
    rest: tuple[str, float] | None = None
    why_draining: str = ""
    n_seen: int = 0

    @classmethod
    def of(cls, device: Device, pool: DevicePool) -> "DeviceSlot":
        return cls(device.id, device, worker_environment(device, pool))

    @property
    def is_draining(self) -> bool:
        return bool(self.why_draining)

    def may_start(self, now: float) -> bool:
        """Unless it has a worker."""
        return not (self.is_draining or self.back_off.why_given_up) and now >= self.back_off.not_before_s

    def reopen(self) -> None:
        """The device takes part again, whatever was wrong before."""
        self.why_draining = ""
        self.back_off.forgive()
        self.refusals.clear()

    def worker_gone(self, worker: Worker, message: Gone, now: float, *, others_work: bool) -> float:
        """Note how its worker ended: what was wrong decides whether and when there is another.

        Returns the seconds that the device rests, as others work where its workers end.
        """
        if worker.has_worked:
            if not worker.chunks or worker.is_removed or worker.why_killed:
                self.back_off.forgive()
                return 0.0
            return self.back_off.ended_at_work(now, others_work=others_work)
        task, said = worker.loading, saying(message.last_words)
        building = None if task is None else task.id
        if self.back_off.died(message.reason, now, said=said, building=building) and task is not None:
            self.refusals[task.id] = f"its worker {message.reason} while it was building {task.name}{said}"
        return 0.0


class Membership:
    """The executor's device slots, by device. ``pool`` has every device that ever had one.

    Belongs to the executor's thread.
    """

    def __init__(self, pool: DevicePool, supervisor: Supervisor, record: Record):
        self.pool = pool
        self.slots = {device.id: DeviceSlot.of(device, pool) for device in pool}
        self._supervisor, self._record, self._n_results = supervisor, record, 0

    def add(self, devices: Sequence[Device], runs: Sequence[Run]) -> None:
        """Let devices take part from now on, in ``runs`` too."""
        now = time.monotonic()
        known = {device.id: device for device in self.pool}
        self.pool = self.pool.with_devices([*(known | {device.id: device for device in devices}).values()])
        for device in devices:
            if device.id not in self.slots or self.slots[device.id].device != device:
                self.slots[device.id] = DeviceSlot.of(device, self.pool)
            self.slots[device.id].reopen()
            for run in runs:
                self._join(run, device.id, now)

    def drain(self, ids: Sequence[str], runs: Sequence[Run], at_once: bool, why: str) -> None:
        """Give devices no more. Their workers end what they have, or (``at_once``) are killed with it."""
        now = time.monotonic()
        for device in ids:
            self.slots[device].why_draining = why
            for run in runs:
                run.leave(device, why, now)
            worker = self._supervisor.workers.get(device)
            if at_once and worker is not None:
                self._supervisor.remove(worker)

    def enter(self, run: Run) -> None:
        """``run`` begins: all devices take part but those that were drained."""
        now = time.monotonic()
        for slot in self.slots.values():
            slot.refusals.pop(run.task.id, None)  # what it refused in an earlier run, it may build now
            slot.back_off.n_in_vain = 0  # nor is it known yet whether its workers end at this run's work
            slot.back_off.end_rest()
            if not slot.is_draining:
                self._join(run, slot.id, now)
        for slot in self.slots.values():  # last, as a run ends when its last device leaves
            if slot.is_draining:
                run.leave(slot.id, slot.why_draining, now)

    def worked(self, slot: DeviceSlot) -> None:
        """A worker of ``slot`` had a result."""
        slot.back_off.n_in_vain = 0
        self._n_results += 1
        slot.n_seen = self._n_results

    def worker_gone(self, worker: Worker, message: Gone, now: float) -> None:
        """A worker has ended: what was wrong decides whether and when its device gets another."""
        slot = self.slots[worker.slot]
        rest_s = slot.worker_gone(worker, message, now, others_work=self._n_results > slot.n_seen)
        if rest_s:
            self._record.note(
                "info",
                f"{slot.id} rests {rest_s:.1f} s: {slot.back_off.n_in_vain} workers ended there without a"
                " result, and others work",
            )

    def start_workers(self) -> None:
        """One on every device that has none."""
        now = time.monotonic()
        for slot in self.slots.values():
            if slot.id not in self._supervisor.workers and slot.may_start(now):
                self._start(slot)

    def staff(self, runs: Sequence[Run], now: float) -> None:
        """Replace workers that are gone, as far as ``runs`` have work for them."""
        workers = self._supervisor.workers
        if len(workers) == len(self.slots):
            return
        for run in runs:
            self._end_rests(run, now)
        missing = [slot for slot in self.slots.values() if slot.id not in workers and slot.may_start(now)]
        for slot in sorted(missing, key=lambda slot: -self.pool.score(slot.id)):
            if any(slot.id in run.devices and self._lacks_workers(run) for run in runs):
                self._start(slot)

    def exclude_useless(self, runs: Sequence[Run], now: float) -> None:
        """Tell ``runs`` of devices that will have no worker any more, or cannot build their task."""
        for slot in self.slots.values():
            if not (slot.back_off.why_given_up or slot.refusals):
                continue
            for run in tuple(runs):
                why = slot.back_off.why_given_up or slot.refusals.get(run.task.id)
                if why and slot.id in run.devices:
                    self._record.note("warning", f"{slot.id} takes no part in {run.options.stage}: {why}")
                    run.leave(slot.id, why, now)

    def dismiss_leaving(self, now: float) -> float | None:
        """Send workers home that have nothing left to do on a device that leaves. Returns when to look again.

        Once told to leave, a worker goes even if its device has come back: it gets another then.
        """
        leaving = [
            worker
            for slot, worker in self.with_workers()
            if slot.is_draining or worker.leave_by_s is not None or worker.device != slot.device
        ]
        idle = [worker for worker in leaving if worker.is_idle]
        return min((self._supervisor.retire(worker, now) for worker in idle), default=None)

    def next_start_s(self, now: float) -> float | None:
        """When the next back-off ends."""
        workers = self._supervisor.workers
        if len(workers) == len(self.slots):
            return None
        due = (slot.back_off.not_before_s for slot in self.slots.values() if slot.id not in workers)
        return min((at for at in due if at > now), default=None)

    def with_workers(self) -> list[tuple[DeviceSlot, Worker]]:
        return [(self.slots[device], worker) for device, worker in self._supervisor.workers.items()]

    def _join(self, run: Run, device: str, now: float) -> None:
        """Have ``device`` take part in ``run``, unless it does."""
        run.join(device, self.pool.score(device), device in helpers(self.pool), now)

    def _lacks_workers(self, run: Run) -> bool:
        """Has it fewer than items, or only such as will not take what is left?"""
        n_items = run.n_most_items
        if n_items is None:
            return True
        there = [one for one in self.with_workers() if one[0].id in run.devices]
        if len(there) * run.sizing.n_per_call < n_items:
            return True
        return run.has_work() and all(worker.may_work and slot.rest is not None for slot, worker in there)

    def _end_rests(self, run: Run, now: float) -> None:
        """Let the device that lost fewest workers in vain rest no longer, where none works for ``run``."""
        workers = self._supervisor.workers
        slots = [slot for slot in self.slots.values() if slot.id in run.devices]
        at_work = (slot.rest is None if slot.id in workers else slot.may_start(now) for slot in slots)
        if run.has_work() and not any(at_work):
            waiting = [slot for slot in slots if slot.id not in workers and not slot.back_off.n_deaths]
            for slot in sorted(waiting, key=lambda slot: slot.back_off.n_in_vain)[:1]:
                slot.back_off.end_rest()

    def _start(self, slot: DeviceSlot) -> None:
        self._supervisor.start(slot.id, slot.device, self.pool, slot.environment)


def helpers(devices: Iterable[Device]) -> set[str]:
    """CPU slots beside accelerators: they get only what they surely end in time."""
    devices = tuple(devices)
    if not any(device.is_accelerator for device in devices):
        return set()
    return {device.id for device in devices if not device.is_accelerator}
