"""What a device does at most in a second: by its data sheet, or as measured on it.

    measure() in a worker ──► keep_rates ──► device_rates.json ──► rates_of(device)

These are the two roofs of the roofline model (Williams, Waterman and Patterson, 2009).
"""

import datetime
import functools
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from evenload._optional import require
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


LEAST_S = 0.2  # of products, and of copies, that are timed
SIDE = 1024  # of the matrices on a CPU, and four times that on an accelerator
COPIED = 1 << 26  # bytes, beyond the caches of a core


def measure(place: str) -> dict[str, float]:
    """Measure the device that torch calls ``place``: its best products and copies of several.

    Accelerators: 16-bit products, through torch. CPUs: float32 products, through numpy.
    """
    return _of_cpu() if place == "cpu" else _of_torch(place)


def _of_cpu() -> dict[str, float]:
    import numpy as np

    a = np.ones((SIDE, SIDE), np.float32)
    out, source = np.empty_like(a), np.ones(COPIED, np.uint8)
    target = np.empty_like(source)
    product_s = _best(lambda: np.matmul(a, a, out))
    copy_s = _best(lambda: np.copyto(target, source))
    return {"flop_per_s": 2 * SIDE**3 / product_s, "bytes_per_s": 2 * COPIED / copy_s}


def _of_torch(place: str) -> dict[str, float]:
    torch: Any = require("torch", extra="torch", why="measuring an accelerator")
    side, n_bytes = 4 * SIDE, 16 * COPIED
    a = torch.ones(side, side, dtype=torch.float16, device=place)
    source = torch.ones(n_bytes, dtype=torch.uint8, device=place)
    target, wait = torch.empty_like(source), getattr(torch, place.partition(":")[0]).synchronize

    def timed(work: Callable[[], Any]) -> Callable[[], None]:
        def both() -> None:
            work()
            wait()

        return both

    product_s, copy_s = _best(timed(lambda: a @ a)), _best(timed(lambda: target.copy_(source)))
    return {"flop_per_s": 2 * side**3 / product_s, "bytes_per_s": 2 * n_bytes / copy_s}


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest call, of as many as ``LEAST_S`` has room for."""
    work()
    best_s, until = math.inf, time.perf_counter() + LEAST_S
    while not math.isfinite(best_s) or time.perf_counter() < until:
        began = time.perf_counter()
        work()
        best_s = min(best_s, max(1e-9, time.perf_counter() - began))
    return best_s
