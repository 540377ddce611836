"""Worlds whose truth is known: devices with true speeds, items with true costs, and the log of a run in one.

    World ──► play ──► Played: the log in an order that threads can deliver, and what each second went into

Nothing of evenload is used but the events' names: the truth is what was planted.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from evenload.events import (
    Event,
    Idle,
    Restored,
    RunFinished,
    RunStarted,
    Span,
    StageFinished,
    StageStarted,
    WorkerExited,
    WorkerStarted,
)

LOSSES = ("start-up", "balance", "waiting", "overhead", "repeats", "not known")


@dataclass(frozen=True)
class World:
    """What is true of a run.

    speeds     device -> cost a second
    costs      of each item, dealt in order
    names      device -> what its sheet says; devices of one name have one speed unless ``is_honest`` is False
    is_told    whether items' costs are told, as ``cost=``
    dealing    pull | copies (pull, and idle devices copy what still runs) | blocks (dealt up front)
    chunk      items in a chunk
    drift      by how much a device's speed comes and goes, as a share
    start_s    device -> seconds to start
    send_s     seconds outside of the task of each chunk
    pauses     (after so many chunks, seconds): the reader has no item
    crashes    device -> after so many chunks it dies in the middle of one, and starts again
    waits      seconds of each item in which it waits, and says so, as long on any device; () for none
    asleep     the share of an item's other seconds in which no processor does anything, of which nobody tells
    """

    speeds: dict[str, float]
    costs: list[float]
    names: dict[str, str] = field(default_factory=dict)
    is_told: bool = False
    dealing: str = "pull"
    chunk: int = 1
    drift: float = 0.0
    start_s: dict[str, float] = field(default_factory=dict)
    send_s: float = 0.0
    pauses: tuple[tuple[int, float], ...] = ()
    crashes: dict[str, int] = field(default_factory=dict)
    waits: tuple[float, ...] = ()
    asleep: float = 0.0

    def seen(self, events: list[Event]) -> list[str]:
        """The devices that did anything, or are of the name of one that did."""
        used = {one.device for one in events if isinstance(one, Span) and one.status == "ok"}
        names = {self.names.get(d, d) for d in used}
        return [d for d in self.speeds if d in used or self.names.get(d) in names]

    def bracket(self, events: list[Event]) -> tuple[float, float]:
        """The least time of plans that may interrupt items; of whole ones: exact, or a plan's.

        On the devices that did anything in ``events``, or are of the name of one that did, and if no item had
        to wait: that takes what it takes, and others run meanwhile.
        """
        speeds = [self.speeds[d] for d in self.seen(events)]
        plan = least_whole if len(speeds) ** len(self.costs) <= 20_000 else dealt_s
        return least_divided(self.costs, speeds), plan(self.costs, speeds)


@dataclass
class Played:
    """A run in a world: its log, and what was planted: seconds of each device by what they went into."""

    events: list[Event]
    lost_s: dict[str, dict[str, float]]
    useful_s: dict[str, float]
    wall_s: float

    def priced(self, world: World) -> dict[str, float]:
        """Seconds lost to each cause, each device's at its share of all speed; and useful ones."""
        total = sum(world.speeds.values())
        price = {name: speed / total for name, speed in world.speeds.items()}
        found = {what: sum(price[d] * self.lost_s[d][what] for d in price) for what in LOSSES}
        return found | {"useful": sum(price[d] * self.useful_s[d] for d in price)}


# --- the least time ----------------------------------------------------------------------------------------


def least_divided(costs: list[float], speeds: list[float]) -> float:
    """The least makespan if items may be interrupted: all over all, or the longest k over the fastest k."""
    long, fast = sorted(costs, reverse=True), sorted(speeds, reverse=True)
    tops = [a / b for a, b in zip(accumulate(long), accumulate(fast), strict=False)]
    return max([sum(costs) / sum(speeds), *tops])


def least_whole(costs: list[float], speeds: list[float]) -> float:
    """The least makespan of whole items, by trying every way that could be better than the best so far."""
    costs, best = sorted(costs, reverse=True), dealt_s(costs, speeds)

    def try_from(at: int, busy: list[float]) -> None:
        nonlocal best
        if max(busy) >= best:
            return
        if at == len(costs):
            best = max(busy)
            return
        seen = set()
        for d, speed in enumerate(speeds):
            if (busy[d], speed) not in seen:
                seen.add((busy[d], speed))
                try_from(at + 1, [*busy[:d], busy[d] + costs[at] / speed, *busy[d + 1 :]])

    try_from(0, [0.0] * len(speeds))
    return best


def dealt_s(costs: list[float], speeds: list[float]) -> float:
    """The makespan of a good plan: the longest first, where it ends first; then moves while they help."""
    busy, on = [0.0] * len(speeds), []
    for cost in sorted(costs, reverse=True):
        d = min(range(len(speeds)), key=lambda d: busy[d] + cost / speeds[d])
        busy[d] += cost / speeds[d]
        on.append((cost, d))
    for _ in range(200):
        worst = max(range(len(speeds)), key=busy.__getitem__)
        moves = (
            (max(busy[worst] - cost / speeds[worst], busy[to] + cost / speeds[to]), at, to)
            for at, (cost, d) in enumerate(on) if d == worst
            for to in range(len(speeds)) if to != worst
        )  # fmt: skip
        peak, at, to = min(moves, default=(busy[worst], 0, 0))
        if peak >= busy[worst]:
            break
        cost = on[at][0]
        busy[worst], busy[to] = busy[worst] - cost / speeds[worst], busy[to] + cost / speeds[to]
        on[at] = cost, to
    return max(busy)


# --- a run -------------------------------------------------------------------------------------------------


@dataclass
class _Device:
    name: str
    free_s: float = 0.0
    n_chunks: int = 0
    n_workers: int = 1

    @property
    def worker(self) -> str:
        return f"{self.name}/{self.n_workers}"


class _Run:
    """A run as it goes: devices take chunks in the order in which they are free."""

    def __init__(self, world: World, chance: random.Random):
        self.world, self.chance = world, chance
        self.events: list[Event] = []
        self.lost = {d: dict.fromkeys(LOSSES, 0.0) for d in world.speeds}
        self.useful = dict.fromkeys(world.speeds, 0.0)
        self.devices = [_Device(d) for d in world.speeds]
        indices = range(len(world.costs))
        self.chunks = [list(indices[at : at + world.chunk]) for at in range(0, len(indices), world.chunk)]
        self.n_dealt, self.closed_until_s = 0, 0.0
        self.last: tuple[float, _Device, list[int]] | None = None  # the chunk that ends last

    def start(self) -> None:
        for one in self.devices:
            seconds = self.world.start_s.get(one.name, 0.0)
            self.events.append(WorkerStarted(seconds, one.name, one.worker, None, seconds))
            self.lost[one.name]["start-up"] += seconds
            one.free_s = seconds

    def go(self) -> None:
        if self.world.dealing == "blocks":
            self._blocks()
        else:
            for chunk in self.chunks:
                self._pause()
                self._do(min(self.devices, key=lambda one: one.free_s), chunk)
                self.n_dealt += 1

    def _blocks(self) -> None:
        n = -(-len(self.chunks) // len(self.devices))
        for at, one in enumerate(self.devices):
            for chunk in self.chunks[at * n : (at + 1) * n]:
                self._do(one, chunk)

    def _pause(self) -> None:
        for after, seconds in self.world.pauses:
            if self.n_dealt == after:
                self.closed_until_s = max(one.free_s for one in self.devices) + seconds
                for one in self.devices:
                    self.events.append(Idle(one.name, one.free_s, self.closed_until_s, "no item is ready"))
                    self.lost[one.name]["waiting"] += self.closed_until_s - one.free_s
                    one.free_s = self.closed_until_s

    def waited(self, chunk: list[int]) -> float:
        return sum(self.world.waits[i] for i in chunk) if self.world.waits else 0.0

    def seconds(self, one: _Device, chunk: list[int]) -> float:
        drift = 1 + self.world.drift * self.chance.uniform(-1, 1)
        return sum(self.world.costs[i] for i in chunk) / self.world.speeds[one.name] * drift

    def _do(self, one: _Device, chunk: list[int]) -> None:
        busy = self.seconds(one, chunk)
        if self.world.crashes.get(one.name) == one.n_chunks:
            self._crash(one, chunk, busy / 2)
        waited, asleep = self.waited(chunk), busy * self.world.asleep
        start, stop = one.free_s, one.free_s + waited + busy + self.world.send_s
        self._span(one, chunk, start, stop, waited + busy, "ok", waited, busy - asleep)
        self.useful[one.name] += busy - asleep
        self.lost[one.name]["waiting"] += waited
        self.lost[one.name]["not known"] += asleep
        self.lost[one.name]["overhead"] += self.world.send_s
        one.free_s, one.n_chunks = stop, one.n_chunks + 1
        if self.last is None or stop > self.last[0]:
            self.last = stop, one, chunk

    def _crash(self, one: _Device, chunk: list[int], seconds: float) -> None:
        start, stop = one.free_s, one.free_s + seconds
        self._span(one, chunk, start, stop, 0.0, "lost")
        self.events.append(WorkerExited(stop, one.name, one.worker, "killed by signal 9"))
        again = self.world.start_s.get(one.name, 0.0) or 0.5
        one.n_workers, one.free_s = one.n_workers + 1, stop + again
        self.events.append(WorkerStarted(one.free_s, one.name, one.worker, None, again))
        self.lost[one.name]["repeats"] += seconds
        self.lost[one.name]["start-up"] += again
        one.n_chunks += 1

    def copy(self) -> None:
        """Devices that are done copy the chunk that ends last; its end ends the copies."""
        if self.world.dealing != "copies" or self.last is None:
            return
        stop, busiest, chunk = self.last
        for one in self.devices:
            took = self.waited(chunk) + self.seconds(one, chunk) if one is not busiest else 0.0
            if one is not busiest and one.free_s < stop < one.free_s + took:
                self._span(one, chunk, one.free_s, stop, 0.0, "superseded", copy=True)
                self.lost[one.name]["repeats"] += stop - one.free_s
                one.free_s = stop

    def _span(
        self, one: _Device, chunk: list[int], start: float, stop: float, busy: float, status: str,
        waited: float = 0.0, cpu: float | None = None, *, copy: bool = False,
    ) -> None:  # fmt: skip
        cost = sum(self.world.costs[i] for i in chunk) if self.world.is_told else None
        self.events.append(
            Span("map", one.name, one.worker, chunk[0], len(chunk), start, stop, busy, status,
                 duplicate=copy, cost=cost, waited_s=waited, cpu_s=cpu)
        )  # fmt: skip

    def end(self) -> float:
        """The run ends with its last result, even if a device has not started yet."""
        end_s = max(one.stop_s for one in self.events if isinstance(one, Span))
        for one in self.devices:
            late_s = max(0.0, one.free_s - end_s)
            self.lost[one.name]["start-up"] -= late_s
            self.lost[one.name]["balance"] += max(0.0, end_s - one.free_s)
        self.events = [one for one in self.events if time_of(one) <= end_s]
        return end_s


def play(world: World, seed: int) -> Played:
    """Run the world once, and deliver its events as threads could."""
    chance = random.Random(seed)
    run = _Run(world, chance)
    run.start()
    run.go()
    run.copy()
    end_s = run.end()
    sheets: dict[str, dict[str, Any]] = {
        d: {"name": world.names.get(d, ""), "kind": "cpu"} for d in world.speeds
    }
    began = [
        RunStarted(0.0, "world", 1000.0, len(world.costs), sheets),
        StageStarted(0.0, "map", len(world.costs)),
    ]
    ended = [StageFinished(end_s, "map"), RunFinished(end_s, "done")]
    return Played([*began, *delivered(run.events, chance), *ended], run.lost, run.useful, end_s)


def time_of(event: Event) -> float:
    return event.stop_s if isinstance(event, Span | Idle) else event.t  # type: ignore[union-attr]


def delivered(events: list[Event], chance: random.Random) -> list[Event]:
    """The order in which threads hand events on: a span once its results are saved."""
    lengths = [one.stop_s - one.start_s for one in events if isinstance(one, Span)]
    late_s = chance.choice([0.0, 1.5, 5.0]) * (sum(lengths) / len(lengths))
    spread = [(time_of(one) + (chance.uniform(0, late_s) if isinstance(one, Span) else 0.0), at)
              for at, one in enumerate(events)]  # fmt: skip
    return [events[at] for _, at in sorted(spread)]


def cut(played: Played, world: World, at_s: float, *, has_journal: bool) -> list[Event]:
    """The same run, killed at ``at_s`` and begun again: what had not come back is done then.

    has_journal  whether results of the first session are kept; else all items are done again
    """
    ends = StageFinished | RunFinished
    first = [one for one in played.events if time_of(one) <= at_s and not isinstance(one, ends)]
    spans = [one for one in first if isinstance(one, Span) and one.status == "ok"]
    done = {i for one in spans for i in range(one.index, one.index + one.n_items)} if has_journal else set()
    left = [i for i in range(len(world.costs)) if i not in done]
    costs, waits = [world.costs[i] for i in left], tuple(world.waits[i] for i in left if world.waits)
    again = play(replace(world, costs=costs, waits=waits, chunk=1, crashes={}, pauses=()), 1)
    started, stage, *rest = again.events
    began: list[Any] = [replace(started, unix_s=1001.0 + at_s, total=len(world.costs)), stage]
    if done:
        began.append(Restored(0.0, "map", min(done), len(done), tuple(sorted(done))))
    return [*first, *began, *(replace(x, index=left[x.index]) if isinstance(x, Span) else x for x in rest)]


# --- worlds by chance --------------------------------------------------------------------------------------


def sizes(kind: str, n: int, chance: random.Random) -> list[float]:
    """Costs of items: one size, a few that repeat, of a long tail, or equal but for one at the end."""
    if kind == "one size":
        return [1.0] * n
    if kind == "few sizes":
        return [chance.choice([1.0, 2.0, 5.0]) for _ in range(n)]
    if kind == "long tail":
        return [chance.lognormvariate(0.0, 1.0) for _ in range(n)]
    return [1.0] * (n - 1) + [n / 2]


KINDS = ("one size", "few sizes", "long tail", "one long")


def worlds(n: int, *, small: bool = False) -> Iterator[tuple[int, str, World]]:
    """Worlds by chance, each with its number and what its items are like."""
    for seed in range(n):
        chance = random.Random(seed)
        n_devices = chance.randint(1, 3) if small else chance.randint(2, 6)
        names = chance.choice(["alike", "unlike", "two kinds"])
        kinds = {"alike": 1, "unlike": n_devices, "two kinds": 2}[names]
        speed_of = [chance.choice([1.0, 2.0, 3.5]) for _ in range(kinds)]
        devices = [f"gpu:{d}" for d in range(n_devices)]
        kind = chance.choice(KINDS)
        most = {1: 9, 2: 9, 3: 8}[n_devices] if small else 0
        costs = sizes(kind, chance.randint(2, most) if small else chance.choice([40, 120, 400]), chance)
        is_plain = chance.random() < 0.4
        world = World(
            {d: speed_of[k % kinds] for k, d in enumerate(devices)},
            costs,
            {d: f"kind {k % kinds}" for k, d in enumerate(devices)},
            is_told=chance.random() < 0.4,
            dealing=chance.choice(["pull", "pull", "copies", "blocks"]),
            chunk=1 if small else chance.choice([1, 1, 1, 4]),
            drift=0.0 if is_plain else chance.choice([0.0, 0.02, 0.1]),
            start_s={} if is_plain else {d: chance.uniform(0, 4) for d in devices},
            send_s=0.0 if is_plain else chance.choice([0.0, 0.05]),
            pauses=() if is_plain or small else ((len(costs) // 8, 3.0),),
            crashes={} if is_plain or small else {devices[0]: 2},
            waits=tuple(chance.choice([(), [chance.choice([0.0, 0.5, 8.0]) for _ in costs]])),
            asleep=chance.choice([0.0, 0.0, 0.6, 0.99]),
        )
        yield seed, kind, world
