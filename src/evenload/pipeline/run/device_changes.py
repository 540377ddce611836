"""What others change of a run that is under way, through its folder: devices, items, and whether it goes on.

``evenload devices drain cuda:3 --run RUN`` and ``evenload stop RUN --item r7`` reach ``Control``, which calls
this from a thread of its own, as the watch over a cluster's machines does; what they ask for is done by the
run's loop, between two rounds.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from evenload.devices import Device, DevicePool
from evenload.errors import ConfigError, EvenloadError, UnknownName
from evenload.events import EventLog
from evenload.executor.backends import Machines
from evenload.executor.supervisor.call_queue import CallQueue
from evenload.pipeline.dispatch.item_flow import ItemFlow
from evenload.pipeline.run.stage_driver import StageDriver

WAIT_S = 15.0
LEFT = "was lost with its machine, which has left the cluster"


class DeviceChanges:
    """The devices and items of a run, as ``Control`` may change them; the run's loop does so in ``attend``.

    is_stopped  it was asked to end
    barred_on   gives the stages that may not run on each of some devices
    find        selects devices that do not take part yet
    """

    def __init__(
        self,
        driver: StageDriver,
        flow: ItemFlow,
        barred_on: Callable[[Sequence[str]], Mapping[str, Collection[int]]] = lambda devices: {},
        find: Callable[[str], DevicePool] = DevicePool.find,
    ):
        self._driver, self._flow, self._barred_on, self._find = driver, flow, barred_on, find
        self._requests = CallQueue(driver.wake)
        self.is_paused = self.is_stopped = self._has_ended = False

    @property
    def devices(self) -> DevicePool:
        """Devices that take work."""
        pool, active = self._driver.pool, set(self._driver.active_devices())
        return DevicePool([device for device in pool if device.id in active], n_cores=pool.n_cores)

    def drain(self, *devices: str, at_once: bool = False) -> None:
        """Let ``devices`` end what they have (``at_once``: drop it) and take no more.

        Raises UnknownName, or ConfigError if none would be left.
        """
        self._in_loop(lambda: self._driver.drain(devices, at_once))

    def add(self, devices: Any) -> tuple[str, ...]:
        """Have these work as well, drained ones again. Raises as ``DevicePool.select``."""
        asked = str(devices).split(",")
        known = [device for device in self._driver.pool if device.id in asked]
        if len(known) < len(asked):
            known += self._find(",".join(one for one in asked if one not in self._driver.pool))
        barred = self._barred_with(known)
        self._in_loop(lambda: self._driver.join(known, barred))
        return tuple(device.id for device in known)

    def enter(self, devices: Sequence[Device]) -> None:
        """Have devices that came with a machine work as well, soon."""
        barred = self._barred_with(devices)
        self._soon(lambda: self._driver.join(devices, barred))

    def lose(self, devices: Collection[str], why: str) -> None:
        """Give up devices that are gone with their machine, ``why`` in words that fit after "the worker"."""
        self._soon(lambda: self._driver.leave(devices, why))

    def watch(self, machines: Machines, follows: Any, log: EventLog) -> None:
        """Look from now on at the machines of the run, in a thread of the backend, until that is closed.

        follows  what is taken in of machines that join; None: nothing
        """
        known: set[str] = set()  # devices that are lost

        def look() -> None:
            nonlocal known
            try:
                lost = set(machines.lost(self._driver.pool))
                if new := sorted(lost - known):
                    self.lose(new, LEFT)
                    log.note("warning", "cluster", f"{', '.join(new)}: the machine has left the cluster")
                known = lost
                came = machines.arrivals(follows) if follows is not None else ()
                if came:
                    self.enter(came)
                    known -= {device.id for device in came}
                    log.note(
                        "info", "cluster", f"{', '.join(device.id for device in came)} joined with a machine"
                    )
            except EvenloadError as error:
                log.note("warning", "cluster", f"machines that came or went: {error.message}")

        machines.watch(look)

    def _barred_with(self, devices: Sequence[Device]) -> Mapping[str, Collection[int]]:
        there = {device.id: device for device in (*self._driver.pool, *devices)}
        return self._barred_on(list(there))

    def pause(self) -> None:
        """Begin nothing new; what runs is finished."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def stop(self, *items: str) -> None:
        """Give up these items, wherever they are; without any, end the run as Ctrl-C does.

        Raises ConfigError for an item that the run does not have.
        """

        def act() -> None:
            for item in items:
                self._driver.give_up(self._flow.stop(item))
            self.is_stopped = self.is_stopped or not items

        self._in_loop(act)

    def attend(self) -> None:
        """Do what was asked for; called by the run's loop."""
        self._requests.run_waiting()

    def close(self) -> None:
        """Refuse what waits and what is asked from now on: the run's loop has ended."""
        self._has_ended = True
        self._requests.close()
        self._requests.run_last()

    def _soon(self, act: Callable[[], None]) -> None:
        """Have the run's loop call ``act``; it is dropped if the loop ends before."""
        self._requests.call(lambda: None if self._has_ended else act())

    def _in_loop(self, act: Callable[[], None]) -> None:
        is_done, errors = threading.Event(), []

        def once() -> None:
            try:
                if self._has_ended:
                    raise ConfigError("the run has ended", hint="give the folder of a run that is under way")
                act()
            except (ConfigError, UnknownName) as error:
                errors.append(error)
            finally:
                is_done.set()

        self._requests.call(once)
        if not is_done.wait(WAIT_S):
            raise ConfigError("the run is busy and has not looked yet", hint="look again in a while")
        if errors:
            raise errors[0]
