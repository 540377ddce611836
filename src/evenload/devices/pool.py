"""The devices of this machine, their scores and their load.

probes ──► discover ──► DevicePool ──► select("cuda:0,1" | "all" | "cpu*4" | 2) ──► DevicePool
"""

import importlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from evenload.devices.device import Device
from evenload.devices.fork_guard import ForkGuard
from evenload.devices.probe import PROBES, ProbeReport, Reading, Sampler, run_probes
from evenload.devices.rates.known import rates_of
from evenload.devices.score import ScoreWeights, score
from evenload.devices.selection import Spec, choose, families
from evenload.errors import ConfigError, NoUsableDevice, UnknownName


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """The load of a device: ``reading`` is the driver's and counts all programs; the rest is this pool's."""

    device: str
    reading: Reading
    running: int
    tasks_done: int
    busy_s: float
    mean_task_s: float | None


def free_share(load: DeviceLoad) -> float:
    """Return the share of a device, 0..1, that one more task would find; see ``DevicePool.best``."""
    by_driver = load.reading.utilization
    return min(1.0 - (0.0 if by_driver is None else min(max(by_driver, 0.0), 1.0)), 1.0 / (1 + load.running))


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


class DevicePool:
    """A fixed, ordered set of devices with their scores and loads. Methods may be called from any thread.

    In a child that was forked, what counts tasks or asks drivers (``load``, ``best``, ``task``,
    ``task_started``, ``task_finished``, ``close``) raises ConfigError; the rest works.

    devices  in order; ids are unique
    reports  of the probes, for messages and ``evenload doctor``
    weights  of the score's factors
    n_cores  cores that workers may share; by default those of the CPU devices
    """

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        reports: Sequence[ProbeReport] = (),
        weights: ScoreWeights | None = None,
        n_cores: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._devices = {device.id: device for device in devices}
        if len(self._devices) != len(devices):
            raise ConfigError("two devices have the same id", hint="give each device an id of its own")
        self._is_selection = False
        self.reports = tuple(reports)
        self.weights = weights or ScoreWeights()
        self.n_cores = n_cores or sum(d.threads or 0 for d in devices if d.family == "cpu") or 1
        self._clock = clock
        self._counter = TaskCounter()
        self._lock = threading.Lock()
        self._readings: Readings | None = None
        self._guard = ForkGuard("this pool's load", "make a pool of the child's own: DevicePool.find(...)")

    @classmethod
    def discover(
        cls,
        *,
        weights: ScoreWeights | None = None,
        probes: Mapping[str, str | Callable[[], ProbeReport]] = PROBES,
    ) -> "DevicePool":
        """Find all devices that this process can reach. A probe that fails is in ``reports``; others go on.

        Neither CUDA nor a framework is initialised or imported in this process.
        """
        reports = run_probes(probes)
        found = [device for report in reports for device in report.devices]
        hidden = [pci_id for report in reports for pci_id in report.hidden_ids]
        return cls(link_duplicates(found, hidden), reports=reports, weights=weights)

    @classmethod
    def find(cls, spec: Spec = "all", *, weights: ScoreWeights | None = None) -> "DevicePool":
        """Do ``discover().select(spec)``, but ask only the drivers that ``spec`` concerns.

        So work on the CPU neither waits for a GPU's driver nor fails with it. Raises as ``select`` does.
        """
        needed = families(spec)
        probes = {name: probe for name, probe in PROBES.items() if needed is None or name in needed}
        return cls.discover(weights=weights, probes=probes).select(spec)

    def select(self, spec: Spec = "all") -> "DevicePool":
        """Make a pool of the devices that ``spec`` means (see ``selection.choose``), with new counts.

        "all" of a selection is that selection. Raises UnknownName, ConfigError or NoUsableDevice, the
        latter with what the probes said.
        """
        try:
            is_whole = self._is_selection and spec == "all"
            best_first = sorted(self, key=lambda device: (device.same_as is not None, -self._score(device)))
            chosen = tuple(self) if is_whole else choose(tuple(self), spec, best_first)
        except NoUsableDevice as error:
            told = [r for r in self.reports if r.reason and r.name in (error.causes or PROBES)]
            causes, hints = {r.name: r.reason for r in told}, [r.hint for r in told if r.hint]
            raise NoUsableDevice(
                error.message.splitlines()[0], causes=causes, hint="; ".join(hints) or error.hint
            ) from None
        pool = DevicePool(
            chosen, reports=self.reports, weights=self.weights, n_cores=self.n_cores, clock=self._clock
        )
        pool._is_selection = True
        return pool

    def with_devices(self, devices: Sequence[Device]) -> "DevicePool":
        """Make a pool of other devices that shares this one's counts, for devices that come and go."""
        pool = DevicePool(
            devices, reports=self.reports, weights=self.weights, n_cores=self.n_cores, clock=self._clock
        )
        pool._is_selection = True
        pool._counter = self._counter
        return pool

    def best(self) -> Device:
        """Return the device with the most to give now: the highest score x (1 - load), the first of equals.

        The load is what the device's driver says of all programs or, if that is more, what this pool's own
        tasks leave to one more: 1/2 with one that runs, 2/3 with two. A driver that does not tell counts as
        idle. If all are full, the highest score is best. Raises NoUsableDevice if the pool is empty.
        """
        self._guard.check()
        if not self._devices:
            raise NoUsableDevice("the pool has no device", hint="`evenload doctor` says what is wrong")
        free = {device.id: free_share(self.load(device.id)) for device in self}

        def rank(device: Device) -> tuple[bool, float, float]:
            score = self._score(device)
            return device.same_as is None, score * free[device.id], score

        return max(self, key=rank)

    def device(self, device_id: str) -> Device:
        """Return the device with this id. Raises UnknownName with the nearest id."""
        try:
            return self._devices[device_id]
        except (KeyError, TypeError):
            raise UnknownName("device", device_id, self._devices) from None

    def score(self, device_id: str) -> float:
        """Return the score of a device, above 0 and at most 100."""
        return self._score(self.device(device_id))

    def load(self, device_id: str) -> DeviceLoad:
        """Return the device's load now, by its driver and by this pool's counts."""
        self._guard.check()
        device, counts = self.device(device_id), self._counter.counts(device_id)
        return DeviceLoad(
            device=device_id,
            reading=self._open_readings().read(device),
            running=counts.running,
            tasks_done=counts.done,
            busy_s=counts.busy_s,
            mean_task_s=counts.mean_task_s,
        )

    def readings(self) -> dict[str, Reading]:
        """Return what the drivers say of every device's load now, by its id."""
        self._guard.check()
        return {device.id: reading for device, reading in read_all(self._open_readings(), self)}

    def task_started(self, device_id: str) -> None:
        """Count the start of a task."""
        self._guard.check()
        self._counter.started(self.device(device_id).id)

    def task_finished(self, device_id: str, busy_s: float) -> None:
        """Count the end of a task. Raises ConfigError if none runs there."""
        self._guard.check()
        self._counter.finished(self.device(device_id).id, busy_s)

    @contextmanager
    def task(self, device_id: str) -> Iterator[Device]:
        """Count and time the block as one task on the device, whether it raises or not."""
        self.task_started(device_id)
        began = self._clock()
        try:
            yield self.device(device_id)
        finally:
            if not self._guard.is_child:  # a child that leaves the block has counted nothing
                self.task_finished(device_id, self._clock() - began)

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return all that is known of each device, with its score, as plain values for events and JSON.

        Where it is known, also what it does at most: ``flop_per_s``, ``bytes_per_s`` and ``rates_from``.
        """
        return {
            device.id: {**asdict(device), "score": self.score(device.id), **rates_of(device)}
            for device in self
        }

    def close(self) -> None:
        """Close the drivers that ``load`` opened; the next ``load`` opens them again."""
        self._guard.check()
        with self._lock:
            readings, self._readings = self._readings, None
        if readings is not None:
            readings.close()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._devices)

    def __iter__(self) -> Iterator[Device]:
        return iter(self._devices.values())

    def __len__(self) -> int:
        return len(self._devices)

    def __contains__(self, device_id: object) -> bool:
        return device_id in self._devices

    def __enter__(self) -> "DevicePool":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._guard.is_child:  # a child that leaves the block has opened nothing
            self.close()

    def _repr_html_(self) -> str:
        from evenload.notebook import page, table

        rows = [
            [
                d.id,
                d.name,
                d.kind,
                d.memory_bytes and d.memory_bytes / 2**30,
                d.compute_units,
                self.score(d.id),
            ]
            for d in self
        ]
        head = ["id", "name", "kind", "memory GiB", "units", "score"]
        return page(f"{len(self)} device{'s' * (len(self) != 1)}", table(head, rows))

    def __repr__(self) -> str:
        return f"DevicePool({', '.join(self._devices)})"

    def _score(self, device: Device) -> float:
        return score(device, self.weights)

    def _open_readings(self) -> Readings:
        with self._lock:
            if self._readings is None:
                self._readings = Readings()
            return self._readings


def link_duplicates(devices: Sequence[Device], hidden_ids: Sequence[str] = ()) -> tuple[Device, ...]:
    """Set ``same_as`` of every wgpu device that a native backend reaches too.

    They are matched one to one, by PCI id if both have one, else by name. A wgpu device that matches none but
    has the PCI id of a GPU that a mask hides (``hidden_ids``) is left out: wgpu knows no CUDA masks.
    """
    native = [device for device in devices if device.family in ("cuda", "mps")]
    hidden = list(hidden_ids)
    linked = []
    for device in devices:
        if device.family != "wgpu":
            linked.append(device)
            continue
        twin = next((other for other in native if _is_same(device, other)), None)
        if twin is not None:
            native.remove(twin)
            linked.append(replace(device, same_as=twin.id))
        elif device.pci_id in hidden:
            hidden.remove(device.pci_id)
        else:
            linked.append(device)
    return tuple(linked)


def _is_same(device: Device, other: Device) -> bool:
    if not device.is_accelerator:
        return False
    if device.pci_id and other.pci_id:
        return device.pci_id == other.pci_id
    ours, theirs = _plain(device.name), _plain(other.name)
    return ours in theirs or theirs in ours


def _plain(name: str) -> str:
    """Reduce a name to letters and digits, without additions of drivers such as "(TM)", "/PCIe/SSE2"."""
    return re.sub(r"\(.*?\)|[^a-z0-9]", "", name.split("/")[0].lower())


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """The tasks of one device: running and done, and the busy seconds of the latter."""

    running: int = 0
    done: int = 0
    busy_s: float = 0.0

    @property
    def mean_task_s(self) -> float | None:
        """Mean seconds per finished task; None before the first."""
        return self.busy_s / self.done if self.done else None


@dataclass(slots=True)
class _MutableCounts:
    running: int = 0
    done: int = 0
    busy_s: float = 0.0


class TaskCounter:
    """A counter of tasks per device id, for any thread. A call takes a microsecond: tasks may be small."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, _MutableCounts] = {}

    def started(self, device: str) -> None:
        with self._lock:
            counts = self._counts.get(device)
            if counts is None:
                counts = self._counts[device] = _MutableCounts()
            counts.running += 1

    def finished(self, device: str, busy_s: float) -> None:
        """Count the end of a task. Raises ConfigError if none runs there, or the time is negative."""
        with self._lock:
            counts = self._counts.get(device)
            if counts is None or not counts.running or not busy_s >= 0:
                running = counts.running if counts is not None else 0
                raise ConfigError(
                    f"a task finished on {device} after {busy_s} s while {running} were running there",
                    hint="report each task's start once, then its end once, with seconds of at least 0",
                )
            counts.running -= 1
            counts.done += 1
            counts.busy_s += busy_s

    def counts(self, device: str) -> TaskCounts:
        with self._lock:
            counts = self._counts.get(device, _MutableCounts())
            return TaskCounts(counts.running, counts.done, counts.busy_s)
