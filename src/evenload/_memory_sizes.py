"""Read and write amounts of memory with their unit: GiB are 2**30 bytes, GB are 10**9."""

import os
import re

from evenload.errors import ConfigError, quoted

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
MOST_LETTERS = 40  # of a limit in words
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]+)\s*")


def parse_size(text: object) -> int:
    """Return the bytes of "22GiB", "24 GB" or "512MiB". Raises ValueError, also for a number without unit."""
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    unit = next((u for u in _UNITS if match and u.lower() == match[2].lower()), None)
    if match is None or unit is None:
        raise ValueError(f"{quoted(text)} is no size; write a number and its unit, such as 22GiB or 24GB")
    return int(float(match[1]) * _UNITS[unit])


def gib_text(n_bytes: float) -> str:
    """Return ``n_bytes`` as "41.4 GiB"; below 1 GiB in MiB or KiB, as people write such sizes."""
    if n_bytes >= 2**30:
        return f"{n_bytes / 2**30:.1f} GiB"
    if n_bytes >= 100 * 2**20:
        return f"{n_bytes / 2**20:.0f} MiB"
    return f"{n_bytes / 2**20:.1f} MiB" if n_bytes >= 2**20 else f"{n_bytes / 2**10:.0f} KiB"


def size_text(n_bytes: int) -> str:
    """Return ``n_bytes`` exactly, in the largest unit that divides it, as ``parse_size`` reads it."""
    unit = next(u for u in ("TiB", "GiB", "MiB", "KiB", "B") if n_bytes % _UNITS[u] == 0 or u == "B")
    return f"{n_bytes // _UNITS[unit]}{unit}" if n_bytes else "0B"


def limit_from(limit: int | str, name: str = "shared_memory_limit") -> int:
    """Read the setting ``name`` as bytes: a number of them, or text such as "2 GiB", "500MB" or "25%" of
    the memory.

    Raises ConfigError.
    """
    if isinstance(limit, int) and limit >= 0:
        return limit
    text = limit if isinstance(limit, str) and len(limit) <= MOST_LETTERS else ""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|)\s*", text)
    if match and match[2] and float(match[1]) <= 100:
        return int(usable_memory() * float(match[1]) / 100)
    try:
        return int(float(match[1])) if match and not match[2] else parse_size(text)
    except ValueError as error:
        hint = 'write bytes, "2 GiB", "25%" or 0'
        raise ConfigError(f"{name}={quoted(limit)} is no amount of memory", hint=hint) from error


def usable_memory() -> int:
    """Return the memory that this process may use, in bytes."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                most = min(most, int(file.read()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return most
