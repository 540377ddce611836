"""The chunks of a map, kept in arrays for its certificate."""

import math
from array import array
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from evenload.balance.run_claim import StageChunks, Stretch, claim_run, runs_of, settle
from evenload.errors import ConfigError

MOST_CHUNKS = 200_000
MOST_NUMBERS = 2_000_000  # of items that do not follow one another
NS = 10**9
NO_LIKES: Mapping[str, str] = MappingProxyType({})


class KeptChunks:
    """The chunks of one map whose results counted, in 72 bytes each; more than the most are all given up."""

    def __init__(self, stage: str):
        self._stage = stage
        self._devices: dict[str, int] = {}
        # Of each chunk: start, stop, seconds of work and told waiting, cost (nan without).
        self._times = array("d")
        self._counts = array("q")  # of each chunk: 2 x device + whether it says something of speed, first, n
        self._scattered = array("q")  # items of chunks that have ``first`` -1
        self._is_full = False

    def add(
        self, device: str, items: "range | tuple[int, ...]", start_s: float, stop_s: float, work_s: float,
        waited_s: float, cost: float | None, *, is_good: bool,
    ) -> None:  # fmt: skip
        """Keep a chunk that had first results; ``is_good``: none of its items failed.

        work_s  seconds in the task, without those that it told it waited
        """
        if self._is_full:
            return
        first = items.start if isinstance(items, range) and items.step == 1 else -1
        number = self._devices.setdefault(device, len(self._devices))
        self._times.extend((start_s, stop_s, work_s, waited_s, math.nan if cost is None else cost))
        self._counts.extend((2 * number + is_good, first, len(items)))
        if first < 0:
            self._scattered.extend(items)
        if len(self._times) > 5 * MOST_CHUNKS or len(self._scattered) > MOST_NUMBERS:
            self._is_full = True
            del self._times[:], self._counts[:], self._scattered[:]

    def certificate(
        self, likes: Mapping[str, str] = NO_LIKES, shared: Iterable[tuple[str, str, float, float]] = ()
    ) -> dict[str, Any]:
        """Return the certificate of these chunks, for ``json.dumps``.

        likes   device -> what it shares with those that are as fast by their sheets
        shared  devices that had the same items, as ``StageWork.shared`` has them

        Raises ConfigError if there were too many, or nothing was measured.
        """
        if self._is_full:
            raise ConfigError(
                f"this run cannot be certified: it had more than {MOST_CHUNKS:,} chunks",
                hint="give more items in a chunk (batch=), or certify a part of them",
            )
        stage, seen, at = StageChunks(self._stage), bytearray(), 0
        begin_s = min(self._times[::5], default=0.0)
        for k in range(0, len(self._times), 5):
            start_s, stop_s, *spent_s, cost = self._times[k : k + 5]
            start, stop, work, waited = (
                round(t * NS) for t in (start_s - begin_s, stop_s - begin_s, *spent_s)
            )
            what, first, n = self._counts[k // 5 * 3 : k // 5 * 3 + 3]
            items = range(first, first + n) if first >= 0 else self._scattered[at : at + n]
            at += n if first < 0 else 0
            is_good = bool(what % 2) and not cost <= 0
            new = _take(seen, items)
            told = None if math.isnan(cost) else cost
            stage.add(what // 2, start, stop, work, new, n, told, is_good, waited)
        by_device = [[row for row in stage.rows if row[0] == number] for number in self._devices.values()]
        lanes = dict(zip(self._devices, map(settle, by_device), strict=True))
        stage.share(shared, list(lanes))
        stages = [stage] if stage.rows else []
        stretches = [Stretch(0, 0, stages, [1.0])] if stages else []
        return claim_run(self._stage, stages, lanes, stretches, likes)


def _take(seen: bytearray, items: "range | array[int]") -> list[int]:
    """Return those of the items that were not seen before, ``[first, how many, ...]``; they are, now."""
    stop = items.stop if isinstance(items, range) else max(items) + 1
    seen.extend(bytes(max(0, stop - len(seen))))
    if isinstance(items, range) and seen.count(1, items.start, items.stop) == 0:
        seen[items.start : items.stop] = b"\1" * len(items)
        return [items.start, len(items)]
    new = [item for item in items if not seen[item]]
    for item in new:
        seen[item] = 1
    return runs_of(new)
