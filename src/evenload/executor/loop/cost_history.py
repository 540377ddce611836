"""What an executor has learned of its tasks, in this program and (in the user's cache) in earlier ones."""

import contextlib
import json
import math
import platform
import sys
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload._private_files import read_own, write_own
from evenload._user_folders import user_cache
from evenload.balance.policy.estimate import Cost
from evenload.balance.sizes.size_learner import SizeLearner
from evenload.balance.sizes.size_model import MOST_FEATURES, SizeModel
from evenload.devices import Device, DevicePool
from evenload.errors import printable, reason_of
from evenload.executor.decide.record import Record
from evenload.executor.decide.source import Source, array_bytes
from evenload.executor.decide.summary import Summary
from evenload.executor.run.run import Run
from evenload.executor.task.task import PreparedTask
from evenload.settings import resolve

WORTH_TELLING_S = 0.1  # a device that was busy for less has not shown what it can do
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
    """The costs that earlier programs have learned, by function, device and size of items, in one file.

    damage  what is wrong with the file

    A hint and no more: it counts until the run has measured for itself. A file that is missing or damaged is
    an empty one, and the oldest entries make room for new ones.
    """

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


class CostHistory:
    """The costs that an executor has learned, by task and device.

    ceilings   (task, device) -> items per call that fit; shared with the engine
    is_kept    for other programs, too
    """

    def __init__(self, ceilings: MutableMapping[tuple[int, str], int], record: Record, *, is_kept: bool):
        self._ceilings = ceilings
        self._record = record
        self._costs: dict[int, dict[str, Cost]] = {}
        self._laws: dict[int, SizeModel] = {}
        self._prints: dict[int, str] = {}
        settings = resolve()
        self._learns_sizes = bool(settings.learn_sizes)
        is_kept = is_kept and bool(settings.warm_start)
        self._cache = CostCache(user_cache() / "learned.json") if is_kept else None

    def of(
        self, task: PreparedTask, source: Source, devices: DevicePool
    ) -> tuple[str | None, Mapping[str, Cost], bool]:
        """The size of the items (None: not to be remembered), costs by device, whether they are hearsay."""
        size = None
        if self._cache is not None and source.total is not None and source.n_ready:
            costs = source.costs(0, min(100, source.n_ready))
            size = size_bucket(source.take(range(1))[0], costs, task.batch)
        if task.id in self._costs:
            return size, self._costs[task.id], False
        return size, {} if size is None else self._from_earlier_programs(task, size, devices), True

    def _from_earlier_programs(self, task: PreparedTask, size: str, devices: DevicePool) -> dict[str, Cost]:
        """What earlier programs have measured."""
        cache = self._cache
        if cache is None or not cache.path.exists():
            return {}
        known = cache.known(self._print_of(task), size, devices)
        if cache.damage is not None:
            self._record.note("warning", f"{cache.path} is damaged, and left out: {cache.damage}")
            cache.damage = None
        for device, learned in known.items():
            if learned.ceiling is not None and task.batch is not None and learned.ceiling < task.batch:
                self._ceilings.setdefault((task.id, device), learned.ceiling)
        return {device: one.cost for device, one in known.items() if one.cost is not None}

    def learner_of(self, task: PreparedTask) -> SizeLearner | None:
        """A learner that knows what is known of the sizes of the items; None if none are to be learned."""
        if not self._learns_sizes:
            return None
        law = self._laws.get(task.id)
        if law is None and self._cache is not None and self._cache.path.exists():
            law = self._cache.known_law(self._print_of(task), task.batch)
        return SizeLearner(law)

    def learn(self, run: Run, summary: Summary, devices: DevicePool) -> None:
        """Keep what a finished run has measured."""
        self._costs[run.task.id] = run.costs()
        if run.law is not None:
            self._laws[run.task.id] = run.law
            if self._cache is not None and run.error is None:
                self._cache.learn_law(self._print_of(run.task), run.task.batch, run.law)
        if self._cache is None or run.size is None or run.error is not None:
            return
        for device, cost in run.costs(least_measured=2).items():
            share = summary.devices.get(device)
            is_sure = share is not None and share.busy_s >= WORTH_TELLING_S
            if is_sure and device in devices:
                learned = Learned(cost, self._ceilings.get((run.task.id, device)))
                self._cache.learn(self._print_of(run.task), run.size, devices.device(device), learned)

    def save(self) -> None:
        """Let other programs know."""
        if self._cache is not None:
            self._cache.save()

    def _print_of(self, task: PreparedTask) -> str:
        if task.id not in self._prints:
            from evenload.same_code import fingerprint_code

            self._prints[task.id] = fingerprint_code(task.fn, reads_maps=False)
        return self._prints[task.id]
