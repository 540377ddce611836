"""Readings of devices' load, through one open driver for each family."""

import importlib
import threading
from collections.abc import Iterable, Iterator, Mapping

from evenload.devices.device import Device
from evenload.devices.probe import PROBES, Reading, Sampler


class Readings:
    """A reader of any device's load, for any thread; a family's driver is opened on first use.

    A driver that fails is not asked again; its error is in ``errors`` and its readings are empty. Readings of
    devices of other machines are empty, too.
    """

    def __init__(self, probes: Mapping[str, str] = PROBES) -> None:
        self._probes = probes
        self._lock = threading.Lock()
        self._samplers: dict[str, Sampler | None] = {}
        self.errors: dict[str, Exception] = {}

    def read(self, device: Device) -> Reading:
        if device.node:
            return Reading()  # only drivers of this machine are asked
        with self._lock:
            try:
                sampler = self._sampler(device.family)
                return Reading() if sampler is None else sampler.read(device)
            except Exception as error:
                self._samplers[device.family] = None
                self.errors[device.family] = error
                return Reading()

    def close(self) -> None:
        with self._lock:
            samplers, self._samplers = self._samplers, {}
        for sampler in samplers.values():
            if sampler is not None:
                sampler.close()

    def _sampler(self, family: str) -> Sampler | None:
        if family not in self._samplers:
            module = importlib.import_module(self._probes[family]) if family in self._probes else None
            opener = getattr(module, "open_sampler", None)
            self._samplers[family] = opener() if opener else None
        return self._samplers[family]


def read_all(readings: Readings, devices: Iterable[Device]) -> Iterator[tuple[Device, Reading]]:
    """Yield each device with its load; all slots of this machine's CPU share one reading.

    A second reading of the CPU would cover only the moment since the first.
    """
    by_hardware: dict[str, Reading] = {}
    for device in devices:
        key = "cpu" if device.family == "cpu" and not device.node else device.id
        if key not in by_hardware:
            by_hardware[key] = readings.read(device)
        yield device, by_hardware[key]
