"""Parse a fleet that is written down, to plan for machines that are not at hand: ``6x24GB:h100,2x40GB:a100``.

fleet ::= group ("," group)* [",host=" size]          group ::= count "x" size [":" name] ["@" speed]

``size`` is the memory that is free on each, and on their host; ``name`` one of ``hardware``; ``speed``
relative to usual.
"""

import math
import re
from dataclasses import dataclass

from evenload._memory_sizes import parse_size
from evenload.devices.rates.hardware import HARDWARE, Hardware, hardware_named
from evenload.errors import ConfigError, quoted

MOST_DEVICES = 64
_GROUP = re.compile(r"(\d{1,400})x([0-9.]+\s*[A-Za-z]+)(?::([A-Za-z][A-Za-z0-9]*))?(?:@([0-9.]+))?")
_HOST = re.compile(r"\s*host=(.*)")
_HINT = "write 6x24GB:h100 (six of 24 GB free), 4x24GB:rtx4090,2x80GB:a100 or 2x24GB:h100@0.5 (at half speed)"


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """A device to plan for.

    free_bytes  memory that is free on it; None if not known
    speed       relative to what ``hardware`` says; without that, to the other devices
    """

    id: str
    name: str
    free_bytes: int | None
    hardware: Hardware | None = None
    speed: float = 1.0


def is_modelled(text: object) -> bool:
    """Return whether ``text`` describes devices by number and memory, which need not be on this machine."""
    return isinstance(text, str) and bool(re.match(r"\s*\d+x\d", text))


def parse_host_bytes(text: str) -> int | None:
    """Return the host memory of a fleet, written ``host=256GB``; None if it is not given."""
    given = [match[1] for part in text.split(",") if (match := _HOST.fullmatch(part))]
    try:
        return parse_size(given[-1]) if given else None
    except ValueError as error:
        raise ConfigError(f"host={given[-1]}: {error}", hint=_HINT) from error


def parse_modelled(text: str, *, is_speed_needed: bool = True) -> list[FleetDevice]:
    """Parse the devices of a fleet.

    is_speed_needed  else names may be any, for a caller who knows the speeds
    Raises ConfigError on text that does not follow the grammar, UnknownName on an unknown accelerator.
    """
    devices: list[FleetDevice] = []
    parse_host_bytes(text)
    for part in text.split(","):
        if _HOST.fullmatch(part):
            continue
        match = _GROUP.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{quoted(part.strip())} is no group of devices", hint=_HINT)
        try:
            free_bytes, speed = parse_size(match[2]), float(match[4] or 1)
        except ValueError as error:
            raise ConfigError(f"{quoted(part.strip())}: {error}", hint=_HINT) from error
        is_known = match[3] and (is_speed_needed or match[3].lower() in HARDWARE)
        hardware = hardware_named(match[3]) if is_known else None
        if not 0 < speed < math.inf or not free_bytes:
            said = "a device has memory, and a speed above 0"
            raise ConfigError(f"{quoted(part.strip())} can hold or do nothing: {said}", hint=_HINT)
        if len(devices) + int(match[1]) > MOST_DEVICES:
            raise ConfigError(f"{quoted(text)} is more than {MOST_DEVICES} devices", hint=_HINT)
        for _ in range(int(match[1])):
            name = match[3].lower() if match[3] else "gpu"
            devices.append(FleetDevice(f"cuda:{len(devices)}", name, free_bytes, hardware, speed))
    if not devices:
        raise ConfigError(f"{quoted(text)} is no device", hint=_HINT)
    return devices
