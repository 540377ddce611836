"""The place of one device in the executor: may it have a worker, and which tasks fail to build there?"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenload.devices import Device, DevicePool, worker_environment
from evenload.executor.supervisor.back_off import BackOff, saying
from evenload.executor.supervisor.worker import Worker
from evenload.executor.task.messages import Gone

__all__ = ["DeviceSlot"]


@dataclass(slots=True, eq=False)
class DeviceSlot:
    """A device with the environment of its workers, which come and go while the slot stays.

    refusals      why a task cannot be built here, by the task's number
    rest          why and since when the device was last left without work
    why_draining  why it gets nothing more; "" if it does
    """

    id: str
    device: Device
    environment: Mapping[str, str]
    back_off: BackOff = field(default_factory=BackOff)
    refusals: dict[int, str] = field(default_factory=dict)
    rest: tuple[str, float] | None = None
    why_draining: str = ""

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

    def worker_gone(self, worker: Worker, message: Gone, now: float) -> None:
        """Note how its worker ended: what was wrong decides whether and when there is another."""
        if worker.has_worked:
            return self.back_off.forgive()
        task, said = worker.loading, saying(message.last_words)
        building = None if task is None else task.id
        if self.back_off.died(message.reason, now, said=said, building=building) and task is not None:
            self.refusals[task.id] = f"its worker {message.reason} while it was building {task.name}{said}"
        return None
