"""Machines that leave or join the cluster while a run is under way, as its loop is told of them."""

from typing import Any

from evenload.errors import EvenloadError
from evenload.events import EventLog, Note
from evenload.executor.backends import Machines
from evenload.pipeline.run.device_changes import DeviceChanges

__all__ = ["MachineWatch"]

LEFT = "was lost with its machine, which has left the cluster"


class MachineWatch:
    """A watch over the machines of a run, from ``begin`` until its backend is closed.

    machines  the backend; None where all devices are on this machine
    follows   what is taken in of machines that join; None: nothing
    """

    def __init__(self, machines: Machines | None, follows: Any, changes: DeviceChanges, log: EventLog):
        self._machines, self._follows = machines, follows
        self._changes, self._log = changes, log
        self._lost: set[str] = set()

    def begin(self) -> None:
        """Look from now on, in a thread of the backend."""
        if self._machines is not None:
            self._machines.watch(self._look)

    def _look(self) -> None:
        assert self._machines is not None
        try:
            lost = set(self._machines.lost(self._changes.all_devices))
            if lost - self._lost:
                self._changes.lose(sorted(lost - self._lost), LEFT)
                self._note(
                    "warning", f"{', '.join(sorted(lost - self._lost))}: the machine has left the cluster"
                )
            self._lost = lost
            came = self._machines.arrivals(self._follows) if self._follows is not None else ()
            if came:
                self._changes.enter(came)
                self._lost -= {device.id for device in came}
                self._note("info", f"{', '.join(device.id for device in came)} joined with a machine")
        except EvenloadError as error:
            self._note("warning", f"machines that came or went: {error.message}")

    def _note(self, level: str, text: str) -> None:
        self._log.emit(Note(self._log.now(), level, "cluster", text))
