"""What a device does at most in a second: by its data sheet, or as measured on it.

    roofline.measure() in a worker ──► keep_rates ──► device_rates.json ──► rates_of(device)

These are the two roofs of the roofline model (Williams, Waterman and Patterson, 2009).
"""

import datetime
import functools
import json
import math
from collections.abc import Mapping
from typing import Any

from evenload._private_files import read_own, write_own
from evenload._user_folders import user_cache
from evenload.devices.device import Device
from evenload.devices.rates.hardware import peak_rates

RATES = ("flop_per_s", "bytes_per_s")
MOST_BYTES = 1 << 20
MOST_DEVICES = 200


def rates_of(device: Device) -> dict[str, Any]:
    """Return ``flop_per_s`` and ``bytes_per_s`` of ``device``, and ``rates_from`` where they are known from.

    As measured and kept; else, of accelerators, by the data sheet; nothing if neither is known.
    """
    kept = _kept().get(_key(device))
    if kept is not None:
        return dict(kept)
    sheet = peak_rates(device.name) if device.is_accelerator else {}
    return {**sheet, "rates_from": "data sheet"} if sheet else {}


def keep_rates(device: Device, rates: Mapping[str, float]) -> None:
    """Keep what was measured of ``device`` for runs to come on this machine. Raises OSError."""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    row = {**{name: rates[name] for name in RATES}, "rates_from": f"measured {day}"}
    known = {**_kept(), _key(device): row}
    path = user_cache() / "device_rates.json"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_own(path, json.dumps(dict(list(known.items())[-MOST_DEVICES:])).encode())
    _kept.cache_clear()


def _key(device: Device) -> str:
    """Devices of a machine with the same key have the same rates."""
    return f"{device.node} {device.name} {device.kind} {device.backend} {device.threads or ''}".strip()[:200]


@functools.cache
def _kept() -> Mapping[str, Mapping[str, Any]]:
    """What was measured before; nothing of it is believed that makes no sense."""
    try:
        rows = json.loads(read_own(user_cache() / "device_rates.json", "rates of devices", MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    found = {}
    for key, row in rows.items() if isinstance(rows, dict) else ():
        rates = {name: row.get(name) for name in RATES} if isinstance(row, dict) else {}
        if rates and all(type(one) is float and 0 < one < math.inf for one in rates.values()):
            found[key] = {**rates, "rates_from": str(row.get("rates_from", "measured"))[:40]}
    return found
