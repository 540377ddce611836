"""What earlier programs have learned of a function on a device, kept in the user's cache folder.

    cache = CostCache(path)                              one per executor
    cache.known(function, size) -> {device id: Learned}
    cache.learn(function, size, device, learned)
    cache.save()

A hint and no more: what it says counts until the run has measured for itself, a file that is missing or
damaged is an empty one, and the oldest entries make room for new ones.
"""

import contextlib
import json
import math
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload._private_files import read_own, write_own
from evenload.balance.policy.estimate import Cost
from evenload.balance.sizes.size_model import MOST_FEATURES, SizeModel
from evenload.devices import Device
from evenload.errors import printable, reason_of
from evenload.executor.decide.source import array_bytes

FORMAT = 1
MOST_ENTRIES = 1000
MOST_BYTES = 4 * 1024 * 1024  # a longer file is not ours
MOST_POWER, MOST_NAME = 100.0, 200  # of a law of sizes that makes sense


@dataclass(frozen=True, slots=True)
class Learned:
    """The cost of a function on a device, and the most items per call (``ceiling``; None: no limit found)."""

    cost: Cost | None = None
    ceiling: int | None = None


class CostCache:
    """The costs learned, by function, device and size of items. ``damage``: what is wrong with the file."""

    def __init__(self, path: Path):
        self.path = path
        self.damage: str | None = None
        self._entries: dict[str, dict[str, Any]] | None = None
        self._new: dict[str, dict[str, Any]] = {}

    def known(self, function: str, size: str, devices: Iterable[Device]) -> dict[str, Learned]:
        """Device id -> what is known of ``function`` there."""
        if self._entries is None:
            self._entries = self._read()
        found = {device.id: self._entries.get(_key(function, size, device)) for device in devices}
        return {
            device: learned for device, entry in found.items() if (learned := _learned(entry)) is not None
        }

    def learn(self, function: str, size: str, device: Device, learned: Learned) -> None:
        entry: dict[str, Any] = {"at": round(time.time()), "ceiling": learned.ceiling}
        if learned.cost is not None:
            entry |= {"launch_s": learned.cost.launch_s, "per_item_s": learned.cost.per_item_s}
        self._new[_key(function, size, device)] = entry

    def known_law(self, function: str, batch: int | None) -> SizeModel | None:
        """What is known of the sizes of the items of ``function``."""
        if self._entries is None:
            self._entries = self._read()
        return _law(self._entries.get(f"{function} sizes {batch or 0}"))

    def learn_law(self, function: str, batch: int | None, law: SizeModel) -> None:
        self._new[f"{function} sizes {batch or 0}"] = {
            "at": round(time.time()),
            "powers": dict(law.powers),
            "constant": law.constant,
            "error": law.error,
            "n_items": law.n_items,
        }

    def save(self) -> None:
        """Add what was learned to the file, beside what others have written meanwhile. Raises no OSError."""
        if not self._new or sys.is_finalizing():  # then modules are being emptied, and nothing can be opened
            return
        entries = self._read() | self._new
        latest = sorted(entries, key=lambda key: entries[key].get("at", 0), reverse=True)[:MOST_ENTRIES]
        text = json.dumps({"format": FORMAT, "entries": {key: entries[key] for key in latest}})
        with contextlib.suppress(OSError):  # a read-only home, a full disk: the next run learns it again
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_own(self.path, text.encode())
        self._new = {}

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(read_own(self.path, "costs of earlier runs", MOST_BYTES, is_trusted=False))
            if not isinstance(content, dict) or not isinstance(content.get("entries"), dict):
                raise ValueError("it holds no entries")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            self.damage = printable(reason_of(error))
            return {}
        entries = content["entries"] if content.get("format") == FORMAT else {}
        return {key: entry for key, entry in entries.items() if isinstance(entry, dict)}


def size_bucket(first: Any, costs: Sequence[float] | None, batch: int | None) -> str:
    """Items of one kind differ in size: those within a factor of two count as one kind.

    first   one of the items, for its bytes or length
    costs   size hints of some of them, if there are any
    """
    size = len(first) if type(first) in (str, bytes, list, tuple, dict) else array_bytes(first)
    hint = sum(costs) / len(costs) if costs else 0.0
    return f"{batch or 0} {int(math.log2(size + 1))} {int(math.log2(hint)) if hint > 0 else '-'}"


def _key(function: str, size: str, device: Device) -> str:
    name = device.uuid or f"{platform.node()} {device.name} {device.threads}"
    return f"{function} {size} {device.id} {name}"


def _law(entry: Any) -> SizeModel | None:
    """None if there is none, or it makes no sense."""
    try:
        powers = {str(name): float(power) for name, power in entry["powers"].items()}
        law = SizeModel(powers, float(entry["constant"]), float(entry["error"]), int(entry["n_items"]))
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        return None
    numbers = (*powers.values(), law.constant)
    is_bounded = all(-MOST_POWER <= number <= MOST_POWER for number in numbers) and 0 <= law.error < 10
    names_are_short = 0 < len(powers) <= MOST_FEATURES and all(
        len(name) <= MOST_NAME and name.isprintable() for name in powers
    )
    return law if is_bounded and names_are_short else None


def _learned(entry: Any) -> Learned | None:
    """None if there is none, or it makes no sense."""
    try:
        cost, ceiling = None, entry["ceiling"]
        if "per_item_s" in entry:
            cost = Cost(float(entry["launch_s"]), float(entry["per_item_s"]))
            if not (0 <= cost.launch_s < 1e9 and 1e-12 <= cost.per_item_s < 1e9):
                return None
        is_count = ceiling is None or (isinstance(ceiling, int) and ceiling >= 1)
        return Learned(cost, ceiling) if is_count else None
    except (TypeError, KeyError, ValueError):
        return None
