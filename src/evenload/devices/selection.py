"""Selecting devices by "cuda:0,1", "all", "cpu*4", 2 or a list of these. Pure.

spec  = count | term ("," term)*
term  = "all" | "gpu" | family [":" index] ["*" slots] | index      a bare index continues the one before
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from evenload.balance import partition
from evenload.devices.device import Device
from evenload.errors import ConfigError, NoUsableDevice, UnknownName, quoted

# CPU slots of "all" on a machine without accelerators; each is a process that may hold a model.
MAX_DEFAULT_SLOTS = 8
# The most slots: more is most likely a typing error, and would start as many processes.
MAX_SLOTS = 1024

# Known families: if one has no device, the name is right and the machine lacks it.
FAMILIES = ("cuda", "mps", "wgpu")
# Families that a task written for a framework can use; a wgpu device runs only kernels written for it.
NATIVE = frozenset({"cuda", "mps"})

_ASK = "ask for at least 1, or for 'all'"

Spec = str | int | Sequence[str | int | Device] | Device

_TERM = re.compile(
    r"(?P<family>[a-z]+)(?::(?P<index>\d{1,9}))?(?:\*(?P<slots>\d{1,9}))?|(?P<bare>\d{1,9})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a spec; ``text`` is as the user wrote it."""

    text: str
    family: str
    index: int | None = None
    slots: int | None = None


def choose(devices: Sequence[Device], spec: Spec, best_first: Sequence[Device]) -> tuple[Device, ...]:
    """Select the devices that ``spec`` means, in its order; makes the CPU slots.

    devices     all devices of the machine
    best_first  the same, by falling score; a number takes from its start

    "all" is every accelerator that a framework reaches (CUDA, ROCm, MPS) or, where there is none, the CPU
    in a slot per core, at most 8, unless the CPU is named beside it. "gpu" is every accelerator, those that
    only WGSL kernels reach (wgpu) too, and an error where there is none. A number n is the n best of "all"
    or, where there is none, n CPU slots. CPU slots share out the cores, less one for each accelerator beside
    them.
    Raises UnknownName, ConfigError (an empty, malformed or contradictory spec) or NoUsableDevice.
    """
    n_wanted = as_number(spec)
    if n_wanted is not None:
        return _best(devices, best_first, n_wanted)
    chosen: list[Device] = []
    slots, slots_at = None, 0
    parts = _parts(spec)
    names_cpu = any(part.family == "cpu" for part in parts)
    for part in parts:
        found, n_slots = ([part], None) if isinstance(part, Device) else _resolve(devices, part, names_cpu)
        if n_slots is not None:
            if slots is not None:
                raise ConfigError("the CPU is named twice", hint="name it once, as cpu*4 for four slots")
            slots, slots_at = n_slots, len(chosen)
        chosen += found
    if slots is not None:
        n_reserved = sum(device.is_accelerator for device in chosen)
        chosen[slots_at:slots_at] = split_cpu(_cpu(devices), slots, n_reserved=n_reserved)
    twice = [name for name, n in Counter(device.id for device in chosen).items() if n > 1]
    if twice:
        raise ConfigError(f"{', '.join(sorted(twice))} is named twice", hint="name each device once")
    return tuple(chosen)


def check_spec(spec: Spec) -> None:
    """Raise ConfigError for a spec that means nothing on any machine."""
    n_wanted = as_number(spec)
    if n_wanted is None:
        _parts(spec)
    elif n_wanted < 1:
        raise ConfigError(f"{n_wanted} devices cannot do anything", hint=_ASK)


def split_cpu(cpu: Device, n_slots: int, *, n_reserved: int = 0) -> tuple[Device, ...]:
    """Split ``cpu`` into slots "cpu:0" .. that share its threads and memory, less ``n_reserved`` cores.

    Every slot has at least one thread: more slots than cores overload the CPU. Raises ConfigError for none,
    and for more than ``MAX_SLOTS`` (1024).
    """
    if n_slots < 1:
        raise ConfigError(f"{n_slots} CPU slots cannot work", hint="use cpu*1 or more")
    if n_slots > MAX_SLOTS:
        raise ConfigError(
            f"{n_slots} CPU slots would start as many processes",
            hint=f"use cpu*{cpu.threads or 1} for a slot per core; {MAX_SLOTS} is the most",
        )
    cores = max(1, (cpu.threads or cpu.compute_units or 1) - n_reserved)
    shares = [max(1, share) for share in partition.equal(cores, n_slots)]
    memory = None if cpu.memory_bytes is None else cpu.memory_bytes // n_slots
    return tuple(
        replace(cpu, id=f"cpu:{slot}", threads=threads, compute_units=threads, memory_bytes=memory)
        for slot, threads in enumerate(shares)
    )


def families(spec: Spec) -> frozenset[str] | None:
    """Return the families to probe for ``spec``; None: all. Raises ConfigError."""
    if as_number(spec) is not None:
        return NATIVE | {"cpu"}
    named = {part.family for part in _parts(spec)}
    if not named <= {"all", "cpu", *NATIVE}:
        return None  # "gpu" and wgpu compare all devices, and the error for an unknown name lists all
    return NATIVE | {"cpu"} if "all" in named else frozenset(named | {"cpu"})


def accelerators(devices: Iterable[Device]) -> list[Device]:
    """Return each accelerator once, by its best backend."""
    return [device for device in devices if device.is_accelerator and device.same_as is None]


def _native(devices: Iterable[Device]) -> list[Device]:
    return [device for device in accelerators(devices) if device.family in NATIVE]


def _best(devices: Sequence[Device], best_first: Sequence[Device], n: int) -> tuple[Device, ...]:
    if n < 1:
        raise ConfigError(f"{n} devices cannot do anything", hint=_ASK)
    slots = [device for device in best_first if device.family == "cpu"]
    best = _native(best_first) or (slots if len(slots) >= n > 1 else [])
    if not best:
        return split_cpu(_cpu(devices), n)
    if n > len(best):
        raise ConfigError(
            f"{n} devices asked for, {len(best)} here: {', '.join(d.id for d in best)}",
            hint="use 'all', or add CPU slots: 'all,cpu*2'",
        )
    return tuple(best[:n])


def as_number(spec: Spec) -> int | None:
    """Return ``spec`` as a number if it is one, also as text such as "2"; else None."""
    if isinstance(spec, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", spec):
        return int(spec)
    return spec if isinstance(spec, int) and not isinstance(spec, bool) else None


def entries_of(spec: Spec, example: str = "cuda:0") -> list[str | Device]:
    """Return the names and devices in ``spec``. Raises ConfigError if it has none, or is a number.

    example  of a name, for the error
    """
    if isinstance(spec, Device):
        return [spec]
    if isinstance(spec, int) or not isinstance(spec, Sequence):
        hint = f"use 'all', 'cpu', '{example},1', 'cpu*4' or a number"
        raise ConfigError(f"{quoted(spec)} names no devices", hint=hint)
    entries: list[str | Device] = []
    for entry in [spec] if isinstance(spec, str) else spec:
        if isinstance(entry, Device):
            entries.append(entry)
        elif isinstance(entry, str):
            entries += map(str.strip, entry.split(","))
        else:
            raise ConfigError(
                f"{quoted(entry)} in a list of devices is no name", hint=f"write names, such as '{example}'"
            )
    if not any(entries):
        raise ConfigError("the list of devices is empty", hint="use 'all', or name at least one device")
    return entries


def _parts(spec: Spec) -> list[Term | Device]:
    parts: list[Term | Device] = []
    for entry in entries_of(spec):
        parts.append(entry if isinstance(entry, Device) else _term(entry.lower(), parts))
    return parts


def _term(text: str, before: Sequence[Term | Device]) -> Term:
    match = _TERM.fullmatch(text)
    if match is None:
        raise ConfigError(f"{quoted(text)} is no device", hint="write all, gpu, cpu, cpu*4, cuda or cuda:0,1")
    if match["bare"] is None:
        index, slots = match["index"], match["slots"]
        return Term(
            text,
            match["family"],
            None if index is None else int(index),
            None if slots is None else int(slots),
        )
    previous = before[-1] if before else None
    if not isinstance(previous, Term) or previous.index is None:
        raise ConfigError(
            f"{quoted(text)} follows no device with a number",
            hint=f"write the family too, such as cuda:{text}",
        )
    return Term(f"{previous.family}:{text}", previous.family, int(text))


def _resolve(devices: Sequence[Device], term: Term, names_cpu: bool) -> tuple[list[Device], int | None]:
    """Return the devices of a term, and the number of CPU slots to make (None: none)."""
    if term.slots is not None and (term.family != "cpu" or term.index is not None):
        raise ConfigError(f"{quoted(term.text)}: only the CPU is split into slots", hint="write cpu*4")
    if term.index is not None:
        return [_named(devices, term)], None
    if term.family == "gpu":
        return accelerators(devices) or _none_usable("no accelerator on this machine"), None
    if term.family == "all":
        found = _native(devices)
        return found, None if found or names_cpu else min(_cpu(devices).threads or 1, MAX_DEFAULT_SLOTS)
    if term.family == "cpu":
        slots = [device for device in devices if device.family == "cpu"]
        is_split = len(slots) > 1 and term.slots is None
        return (slots, None) if is_split else ([], 1 if term.slots is None else term.slots)
    found = [device for device in devices if device.family == term.family]
    if not found and term.family not in FAMILIES:
        raise UnknownName("device", term.text, _known(devices))
    return found or _none_usable(f"no {term.family} device on this machine", term.family), None


def _named(devices: Sequence[Device], term: Term) -> Device:
    for device in devices:
        if device.id == f"{term.family}:{term.index}":
            return device
    if term.family in FAMILIES and not any(device.family == term.family for device in devices):
        _none_usable(f"{term.text}: no {term.family} device on this machine", term.family)
    error = UnknownName("device", term.text, _known(devices))
    if term.family == "cpu":
        error.hint = f"cpu*{(term.index or 0) + 1} makes that many CPU slots, cpu:0 to {term.text}"
    raise error


def _known(devices: Sequence[Device]) -> list[str]:
    return ["all", "gpu", "cpu", *FAMILIES, *(device.id for device in devices)]


def _none_usable(message: str, *families: str) -> NoReturn:
    """Raise NoUsableDevice; ``causes`` names the probes that should explain it, none for all."""
    raise NoUsableDevice(
        message,
        causes=dict.fromkeys(families, ""),
        hint="`evenload doctor` says why; 'all' falls back to the CPU",
    )


def _cpu(devices: Sequence[Device]) -> Device:
    """Return the CPU as one device, also if it is split into slots. Raises NoUsableDevice without one."""
    slots = [device for device in devices if device.family == "cpu"]
    if not slots:
        raise NoUsableDevice("the CPU is not among these devices", hint="select from DevicePool.discover()")
    threads = sum(slot.threads or 1 for slot in slots)
    memory = sum(slot.memory_bytes or 0 for slot in slots) or None
    return replace(slots[0], id="cpu:0", threads=threads, compute_units=threads, memory_bytes=memory)
