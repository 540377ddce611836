"""Which of a run's devices each stage may run on, where its ``devices`` say so."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evenload.devices.device import Device, family_of
from evenload.devices.selection import NATIVE, choose
from evenload.errors import EvenloadError, UnknownName, quoted

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec

_MOST_NAMED = 12


def barred_stages(spec: "JobSpec", devices: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return for each device the stages that may not run on it.

    devices  ids of all that take part in the run, the best first: a number takes from its start
    Raises SpecError, with the line, for a stage that names a device which takes no part.
    """
    barred: dict[str, set[str]] = {one: set() for one in devices}
    faults = []
    for number, stage in enumerate(spec.stages):
        if stage.devices is None or stage.devices == "all":
            continue
        try:
            wanted = _wanted(stage.devices, devices)
        except EvenloadError as error:
            faults.append((("stages", number, "devices"), _sentence(stage.devices, error, devices)))
            continue
        for one in set(devices) - wanted:
            barred[one].add(stage.name)
    if faults:
        raise spec.origins.error(faults)
    return {one: frozenset(stages) for one, stages in barred.items()}


def _wanted(given: str | int, devices: Sequence[str]) -> set[str]:
    """Return the ids that ``given`` means; a machine's are those of its name: "" for this one."""
    machines: dict[str, list[Device]] = {}
    for one in devices:
        machines.setdefault(one.rpartition("/")[0], []).append(_device(one.rpartition("/")[2]))
    is_cluster = machines.keys() != {""}
    if isinstance(given, int) or given.strip().isdigit():
        if is_cluster:
            return set(_best(int(given), devices))
        parts = {"": str(given)}
    else:
        parts = _by_machine(given, machines) if is_cluster or "/" in given else {"": given}
    wanted, refusal = set(), None
    for machine, terms in parts.items():
        pool = machines.get(machine, [])
        try:
            ids = {f"{machine}/{one.id}" if machine else one.id for one in choose(pool, terms, pool)}
        except EvenloadError as error:
            refusal = error
            continue
        absent = sorted(ids - set(devices))
        if absent:
            raise UnknownName("device", absent[0], devices)
        wanted |= ids
    if refusal is not None and not wanted:
        raise refusal
    return wanted


def _by_machine(given: str, machines: Iterable[str]) -> dict[str, str]:
    """Split terms by machine: one with a number is this machine's own, other ones are each machine's."""
    parts: dict[str, list[str]] = {}
    last = ""
    for term in (one.strip() for one in given.split(",")):
        machine, has_name, inner = term.rpartition("/")
        if has_name:
            last = machine
        elif not term.isdigit():
            last = ""
        each = [last] if has_name or ":" in term or term.isdigit() else list(machines)
        for one in each:
            parts.setdefault(one, []).append(inner)
    return {machine: ",".join(terms) for machine, terms in parts.items()}


def _best(n_wanted: int, devices: Sequence[str]) -> Sequence[str]:
    """Return the first accelerators of a cluster, or CPU slots where it has none."""
    accelerators = [one for one in devices if family_of(one) in NATIVE]
    found = accelerators or [one for one in devices if family_of(one) == "cpu"]
    if not 1 <= n_wanted <= len(found):
        raise UnknownName("device", str(n_wanted), devices)
    return found[:n_wanted]


def _device(device_id: str) -> Device:
    """Return a device of which only the name counts."""
    family = family_of(device_id)
    is_cpu = family == "cpu"
    found = Device(device_id, "cpu" if is_cpu else "discrete", family, device_id)
    return replace(found, threads=1) if is_cpu else found


def _sentence(given: str | int, error: EvenloadError, devices: Sequence[str]) -> str:
    more = ", ..." if len(devices) > _MOST_NAMED else ""
    there = ", ".join(devices[:_MOST_NAMED])
    if isinstance(error, UnknownName) or "on this machine" in error.message:
        said = f"{quoted(given)} is not among the devices of this run ({there}{more})"
        return f"{said}; give others here, or more in devices.use or --devices"
    from evenload.pipeline.job.section import one_line  # pydantic, which evenload.Pipeline is named without

    return f"{one_line(error)} (devices of this run: {there}{more})"
