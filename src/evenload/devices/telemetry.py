"""Telemetry: samples of the devices' load as events, taken in the background.

Drivers count all programs' kernels and call a device busy if any kernel ran, so these figures are for people
and for admission. Dealing uses measured speeds.
"""

import threading

from evenload.devices.device import Device
from evenload.devices.pool import DevicePool, Readings, read_all
from evenload.devices.probe import Reading
from evenload.events import DeviceSample, EventLog, Note

N_WAITS = 50  # so that a moment in which the whole process is stopped is only one of them
STOP_WAIT_S = 5.0


class Telemetry:
    """A background thread that emits one ``DeviceSample`` per device every ``interval_s``; a context manager.

    CPU slots share one CPU: each of their samples is of the whole CPU.
    """

    def __init__(
        self, pool: DevicePool, log: EventLog, *, interval_s: float = 1.0, readings: Readings | None = None
    ) -> None:
        self._devices = tuple(pool)
        self._log = log
        self._interval_s = interval_s
        self._readings = readings or Readings()
        self._told: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start sampling; does nothing if it runs already."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="evenload-telemetry", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop and wait for the thread; no sample comes after this returns.

        A driver that hangs is waited for at most ``STOP_WAIT_S`` seconds; its thread ends with the process.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            for _ in range(N_WAITS):
                thread.join(STOP_WAIT_S / N_WAITS)
            if not thread.is_alive():
                self._readings.close()

    def sample(self) -> list[DeviceSample]:
        """Read every device once and emit it."""
        samples = []
        for device, reading in read_all(self._readings, self._devices):
            samples.append(_sample(self._log.now(), device, reading))
            self._log.emit(samples[-1])
        for family, error in list(self._readings.errors.items()):
            if family not in self._told:
                self._told.add(family)
                text = f"no telemetry from {family}: {type(error).__name__}: {error}"
                self._log.emit(Note(self._log.now(), "warning", "telemetry", text))
        return samples

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sample()
            self._stop.wait(self._interval_s)

    def __enter__(self) -> "Telemetry":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _sample(t: float, device: Device, reading: Reading) -> DeviceSample:
    return DeviceSample(
        t=t,
        device=device.id,
        utilization=reading.utilization,
        memory_used_bytes=reading.memory_used_bytes,
        memory_total_bytes=reading.memory_total_bytes,
        temperature_c=reading.temperature_c,
        foreign_processes=reading.foreign_processes,
    )
