"""The table of probes and their reports. ``probes/`` has one file per vendor's API.

A probe module has ``probe() -> ProbeReport``; where its driver tells the load, ``open_sampler() -> Sampler``.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from evenload.devices.device import Device

# Strings, so that listing them costs nothing. A better way to the same hardware comes first.
PROBES = {
    "cuda": "evenload.devices.probes.cuda",
    "mps": "evenload.devices.probes.mps",
    "wgpu": "evenload.devices.probes.wgpu",
    "cpu": "evenload.devices.probes.cpu",
}


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The report of one probe: its devices, or why it found none.

    status      ok: it could look, and may have found nothing | absent: no such hardware or driver
                | missing: a package is needed to look | failed: it should have worked
    reason      why there are no devices; ``hint`` says what to do about it
    notes       sentences for the user about devices that were found or left out
    hidden_ids  ``pci_id`` of devices that an inherited mask hides
    traceback   of the exception that made the probe fail
    """

    name: str
    devices: tuple[Device, ...] = ()
    status: Literal["ok", "absent", "missing", "failed"] = "ok"
    reason: str = ""
    hint: str = ""
    notes: tuple[str, ...] = ()
    hidden_ids: tuple[str, ...] = ()
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a device's load, by its driver; None: it does not tell. ``utilization``: a share, 0..1."""

    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    foreign_processes: int | None = None


class Sampler(Protocol):
    """An open driver that reads the load of its devices."""

    def read(self, device: Device) -> Reading: ...

    def close(self) -> None: ...


def run_probe(name: str, probe: str | Callable[[], ProbeReport]) -> ProbeReport:
    """Run one probe, given by module name or as a function. An exception becomes its report."""
    try:
        return importlib.import_module(probe).probe() if isinstance(probe, str) else probe()
    except Exception as error:
        from traceback import format_exc

        return ProbeReport(
            name,
            status="failed",
            reason=f"{type(error).__name__}: {error}",
            hint="`evenload doctor -v` prints where",
            traceback=format_exc(),
        )


def run_probes(probes: Mapping[str, str | Callable[[], ProbeReport]] = PROBES) -> tuple[ProbeReport, ...]:
    return tuple(run_probe(name, probe) for name, probe in probes.items())
