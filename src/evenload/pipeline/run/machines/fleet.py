"""The devices of a run, on this machine or on those of a cluster, and the memory that is free there."""

import contextlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from evenload.devices import DevicePool
from evenload.errors import EvenloadError, NoUsableDevice, quoted
from evenload.executor.backends import Backend, BackendSettings, Machines, WorkerOptions, make_backend
from evenload.executor.loop.roster import check_follow
from evenload.executor.worker.fork_server import PRELOADABLE
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES
from evenload.pipeline.planning.job_plan import free_host_bytes
from evenload.pipeline.reuse.stage_identity import read_code
from evenload.pipeline.run.workers.worker_cache import KeptWorkers
from evenload.pipeline.target import locate_target

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import BackendSection, StageSpec

STAGE_HOST = "evenload.pipeline.worker.stage_host"  # what every worker of a pipeline runs


class RunFleet:
    """The devices of a run and the backend that reaches them; a context, which closes what it opened.

    use      which devices, as ``--devices`` says it
    backend  its name or its settings; ``name`` is how it is called
    policy   by which tasks are dealt to the devices
    follows  take in what ``use`` means of machines that join while the run is under way
    imports  what its stages will import that takes long; done once for all workers, where they are forked
    pool     the devices, from ``__enter__`` on
    machines  the backend, if its workers may be on other machines than this program
    """

    pool: DevicePool

    def __init__(
        self,
        use: Any,
        backend: str | BackendSettings,
        *,
        policy: str = "measured",
        follows: bool = False,
        imports: tuple[str, ...] = (),
    ):
        self.use, self.name, self.policy, self.follows = use, str(backend), policy, follows
        self._settings = backend
        self._options = WorkerOptions(imports=(STAGE_HOST, *imports))
        self._backend: Backend | None = None
        self.machines: Machines | None = None
        self._reached: Backend | None = None  # while it is another's to close

    def __enter__(self) -> Self:
        """Ask for the devices. Raises what making the backend and selecting devices raise."""
        self._backend = make_backend(self._settings, self._options)
        try:
            if self.follows:
                check_follow(self.use, self._backend)
            if isinstance(self._backend, Machines):
                self.machines = self._reached = self._backend
            self.pool = self._backend.devices(self.use)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self.pool.close()

    @property
    def may_use_cpu(self) -> bool:
        """Whether somebody named the CPU, or gave the devices one by one."""
        return not isinstance(self.use, str | int) or "cpu" in str(self.use)

    def refuse_cpu(self, stages: "Iterable[StageSpec]") -> None:
        """Raise NoUsableDevice if stages that ship with a model would run on the CPU, for hours."""
        kinds = ((stage.name, BUILTIN_STAGES.get(stage.kind or "")) for stage in stages)
        slow = [name for name, known in kinds if known is not None and known.needs_model]
        if slow and not self.may_use_cpu and all(device.kind == "cpu" for device in self.pool):
            said = f"{', '.join(slow)} landed on the CPU (devices {quoted(self.use)})"
            raise NoUsableDevice(
                f"{said}, where their models take hours",
                hint="say so if it is meant: --devices cpu; `evenload doctor` says why no GPU was found",
            )

    def expect_workers(self) -> None:
        """Begin what takes long before the first worker can start: it goes on beside what is done here."""
        assert self._backend is not None, "it is taken"
        self._backend.expect()

    @property
    def is_threaded(self) -> bool:
        """Whether stages run elsewhere than in the thread that asks for them."""
        assert self._backend is not None, "it is taken"
        return self._backend.is_threaded

    @property
    def kept(self) -> KeptWorkers | None:
        """The workers that outlive the run, if the backend is theirs: to be given back, not closed."""
        return self._settings if isinstance(self._settings, KeptWorkers) else None

    def take_backend(self) -> Backend:
        """Return the backend, once; whoever takes it closes it, or gives ``kept`` back."""
        backend, self._backend = self._backend, None
        assert backend is not None
        return backend

    def find(self, spec: str) -> DevicePool:
        """Select devices that may take part, too, also while the run is under way; from any thread."""
        return DevicePool.find(spec) if self._reached is None else self._reached.devices(spec)

    def free_bytes(self, pool: DevicePool | None = None) -> dict[str, int]:
        """Return the free memory of devices by id, as their own machines say it; {} if all are here.

        CPU slots have equal parts of their machine's memory.
        """
        if self.machines is None:
            return {}
        devices = tuple(self.pool if pool is None else pool)
        free = self.machines.free_memory()
        n_slots = Counter(device.node for device in devices if device.family == "cpu")
        found = {}
        for device in devices:
            if device.family != "cpu":
                found |= {device.id: free.devices[device.id]} if device.id in free.devices else {}
            elif device.node in free.machines:
                found[device.id] = free.machines[device.node] // n_slots[device.node]
        return found

    def host_bytes(self) -> int | None:
        """Return the host memory that is free for all devices together.

        Of several machines as much as leaves each device the share that those of the scarcest one have.
        """
        if self.machines is None:
            return free_host_bytes()
        n_devices, free = Counter(device.node for device in self.pool), self.machines.free_memory().machines
        shares = [free[machine] / n for machine, n in n_devices.items() if machine in free]
        return int(min(shares) * sum(n_devices.values())) if shares else None

    def _close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None and self.kept is not None:
            self.kept.give_back()
        elif backend is not None:
            backend.close(0.0)


def backend_of(
    section: "BackendSection", given: str | BackendSettings | None
) -> tuple[str | BackendSettings, bool]:
    """Return the backend of a job and whether it follows machines; ``given`` wins over the job file.

    The job file's settings of Ray hold whenever it is Ray that is asked for by name.
    """
    if given is not None and not isinstance(given, str):
        return given, section.follow
    name = section.name if given is None else given
    if name != "ray":
        return name, False
    from evenload.executor.backends.ray.backend import Ray

    is_own = section.name == "ray"
    settings = Ray(section.address, section.runtime_env, section.reserve) if is_own else Ray()
    return settings, is_own and section.follow


def imports_of(stages: "Iterable[StageSpec]", folder: Path) -> tuple[str, ...]:
    """Return what workers of a job will import that takes long, as a table or the stages' sources say.

    Nothing if a stage may prepare what it imports, by environment variables or other folders: who imports
    before it would find none of that. Stages with an interpreter of their own are left out. ``folder`` is
    that of the job file.
    """
    found: dict[str, None] = {}
    for stage in stages:
        if stage.python is None:
            known = BUILTIN_STAGES.get(stage.kind or "")
            code = None
            with contextlib.suppress(EvenloadError, OSError, RecursionError):  # whoever runs it will say so
                code = read_code([locate_target(target, folder) for _, target in stage.code], folder)
            if code is not None and code.prepares_imports:
                return ()
            found |= dict.fromkeys(known.imports if known is not None else ())
            found |= {name: None for name in PRELOADABLE if code is not None and name in code.packages}
    return tuple(found)
