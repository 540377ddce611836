"""Random programs as values: what a program does to evenload, and what is done to it. Pure.

    seed ──► program_of ──► Program(phases(options, deeds, acts), strikes)

A program is a few phases one after another on one executor: maps, submitted calls, gangs, or a pipeline's
job. *Deeds* are what tasks do to their own worker. *Acts* are what the driver does (drain, add, pause, ...).
*Strikes* come from outside: signals to workers, to the fork server and to the driver.
"""

import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ERRORS = ("raise", "raise odd", "unpicklable error", "bad result", "bomb result", "memory")
DEADLY = ("kill", "exit", "crash", "abort")
STRAY = ("scribble", "cut", "close some", "reopen", "mix up")
HARMLESS = (
    "fork return", "fork raise", "fork exit", "fork in a thread", "flood", "grandchild", "odd state",
)  # fmt: skip
BAD_ITEMS = ("unpicklable item", "item breaks as it is read", "item kills as it is read")
WAITS = ("hang", "stop itself")
DEEDS = (*ERRORS, *DEADLY, *STRAY, *HARMLESS, *BAD_ITEMS, *WAITS)

ACTS = ("drain", "drain at once", "add", "return", "pause", "policy", "refused add")
STRIKES = ("kill worker", "stop worker", "kill fork server", "stop driver", "kill driver", "interrupt driver")
POLICIES = ("measured", "pull", "pull:4", "static", "measured", "guided")


@dataclass(frozen=True, slots=True)
class Deed:
    """What a task does with one item, ``times`` times; after that it behaves."""

    name: str
    seed: int
    times: int


@dataclass(frozen=True, slots=True)
class Act:
    """What the driver does when it has so many results of the phase."""

    name: str
    at: int
    choice: int


@dataclass(frozen=True, slots=True)
class Strike:
    """A signal from outside: when so many tasks have begun in this life and phase, and a little later."""

    name: str
    life: int
    phase: int
    at: int
    delay_s: float
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Phase:
    """One piece of work.

    kind        map | calls | gang | pipeline
    sizes       bytes of results (and of items), by item in turn; 0 for small ones
    form        how the task is given: function | class | shared (a class with a large constant)
    raises_at   the items' iterator raises there
    leaves_at   the receiver stops to fetch there
    ends        how it does so: close | stop
    disk        a journal's disk is full at first: "" | full | limit
    beside      a map of other items runs in another thread meanwhile
    """

    number: int
    kind: str
    n: int
    deeds: Mapping[int, Deed] = field(default_factory=dict)
    acts: tuple[Act, ...] = ()
    sizes: tuple[int, ...] = (0,)
    form: str = "function"
    ordered: bool = True
    batch: int | None = None
    policy: str = "measured"
    repeatable: bool = True
    timeout_s: float | None = None
    retries: int = 0
    on_error: str = "return"
    is_iterator: bool = False
    look_ahead: int | None = None
    journal: bool = False
    raises_at: int | None = None
    leaves_at: int | None = None
    ends: str = "close"
    disk: str = ""
    beside: bool = False

    def size(self, item: int) -> int:
        return self.sizes[item % len(self.sizes)]


@dataclass(frozen=True, slots=True)
class Program:
    """A whole program; ``max_worker_deaths`` and the like are its executor's."""

    seed: int
    n_devices: int
    start: str
    shared_memory_limit: int | None
    max_worker_deaths: int
    phases: tuple[Phase, ...]
    strikes: tuple[Strike, ...]

    @property
    def n_lives(self) -> int:
        """One more than those whose driver may be ended from outside."""
        return 2 + max((s.life for s in self.strikes if s.name in ENDS_A_LIFE), default=-1)


ENDS_A_LIFE = ("kill driver", "interrupt driver")


def value_of(seed: int, phase: int, item: int, size: int) -> Any:
    """The one right result of an item: bytes of numpy's for large ones."""
    number = zlib.crc32(f"{seed} {phase} {item}".encode())
    if not size:
        return (item, number)
    import numpy as np

    return np.resize(np.arange(number % 251, number % 251 + 251, dtype=np.uint8), size)


def digest(value: Any) -> str:
    """What a result is known by."""
    if isinstance(value, tuple | str | int):
        return f"{value!r:.60}"
    return f"{type(value).__name__} {getattr(value, 'shape', '')} {zlib.crc32(bytes(value)):08x}"


def program_of(seed: int) -> Program:
    """Draw a program; the same for the same seed, on any machine."""
    rng = random.Random(seed)
    kinds = _kinds(rng)
    n_devices = rng.choice((2, 2, 3, 4))
    is_safe_from_outside = rng.random() < 0.3
    phases = tuple(_phase(rng, number, kind) for number, kind in enumerate(kinds))
    return Program(
        seed,
        n_devices,
        start=rng.choice(("forkserver", "forkserver", "forkserver", "spawn")),
        shared_memory_limit=rng.choice((None, None, None, 0, 4 << 20)),
        max_worker_deaths=rng.choice((2, 2, 3)) if is_safe_from_outside else 6,
        phases=phases,
        strikes=() if is_safe_from_outside else _strikes(rng, phases),
    )


def _kinds(rng: random.Random) -> list[str]:
    drawn = rng.random()
    if drawn < 0.04:
        return ["map", "gang", "map"]
    if drawn < 0.12:
        return ["pipeline"]
    return [rng.choice(("map",) * 6 + ("calls",)) for _ in range(rng.choice((2, 3, 3, 4)))]


def _phase(rng: random.Random, number: int, kind: str) -> Phase:
    if kind == "gang":
        name = rng.choice(("none", "raise", "kill", "bad result", "exit"))
        return Phase(number, kind, 2, {rng.randrange(2): Deed(name, 0, 99)} if name != "none" else {})
    n = rng.choice((12, 24, 40, 60))
    sizes = rng.choice(((0,), (0,), (0,), (0, 5_000, 300_000), (70_000,), (0, 1_500_000)))
    if kind == "pipeline":
        return Phase(number, kind, n // 2, _deeds(rng, n // 2, 0.15, ("raise", *DEADLY, *HARMLESS)))
    if kind == "calls":
        return Phase(number, kind, n, _deeds(rng, n, 0.3, DEEDS_OF_CALLS), _acts(rng, n), sizes)
    timeout_s = 30.0 if rng.random() < 0.04 else None  # far beyond a healthy item, on any machine
    names = [name for name in DEEDS if name not in WAITS or timeout_s is not None]
    if timeout_s is not None:
        names += WAITS * 2
    phase = Phase(
        number, kind, n, {}, _acts(rng, n), sizes,
        form=rng.choice(("function", "function", "class", "shared")),
        ordered=rng.random() < 0.6,
        batch=rng.choice((None, None, None, 3, 8)),
        policy=rng.choice(POLICIES),
        repeatable=rng.random() < 0.7,
        timeout_s=timeout_s,
        retries=rng.choice((0, 0, 0, 2)),
        on_error="raise" if rng.random() < 0.1 else "return",
        is_iterator=rng.random() < 0.4,
        look_ahead=rng.choice((None, None, 10)),
        journal=rng.random() < 0.35,
        beside=rng.random() < 0.15,
    )  # fmt: skip
    return _troubled(rng, phase, names)


DEEDS_OF_CALLS = tuple(name for name in DEEDS if name not in WAITS and name not in BAD_ITEMS)


def _troubled(rng: random.Random, phase: Phase, names: list[str]) -> Phase:
    """Add deeds, and what may go wrong with the input, the receiver and the disk."""
    import dataclasses

    changes: dict[str, Any] = {"deeds": _deeds(rng, phase.n, rng.choice((0.1, 0.3, 0.5)), names)}
    if phase.journal:  # what cannot be pickled has no fingerprint that a journal could hold
        changes["deeds"] = {at: deed for at, deed in changes["deeds"].items() if deed.name not in BAD_ITEMS}
    if not phase.repeatable:
        changes["retries"] = 0
    drawn = rng.random()
    if drawn < 0.12:
        changes |= {"is_iterator": True, "raises_at": rng.randrange(phase.n)}
    elif drawn < 0.22:
        changes |= {"leaves_at": rng.randrange(phase.n), "ends": rng.choice(("close", "stop"))}
    if phase.journal and rng.random() < 0.4:
        changes |= {"disk": rng.choice(("full", "limit")), "sizes": (70_000,), "beside": False}
    return dataclasses.replace(phase, **changes)


def _deeds(rng: random.Random, n: int, share: float, names: Any) -> dict[int, Deed]:
    chosen = [item for item in range(n) if rng.random() < share]
    return {
        item: Deed(rng.choice(tuple(names)), rng.randrange(2**30), rng.choice((1, 1, 99))) for item in chosen
    }


def _acts(rng: random.Random, n: int) -> tuple[Act, ...]:
    if rng.random() < 0.4:
        return ()
    names = [rng.choice(ACTS) for _ in range(rng.randrange(1, 5))]
    acts = [Act(name, rng.randrange(n), rng.randrange(2**30)) for name in names]
    return tuple(sorted(acts, key=lambda act: act.at))


def _strikes(rng: random.Random, phases: tuple[Phase, ...]) -> tuple[Strike, ...]:
    """Signals from outside, and in a third of the programs up to two ends of the driver."""
    n_ends = rng.choice((0, 0, 1, 2)) if any(p.journal or p.kind == "pipeline" for p in phases) else 0
    strikes = []
    for life in range(n_ends + 1):
        for phase in phases:
            for _ in range(rng.choice((1, 2, 4, 8))):
                name = rng.choice(
                    ("kill worker",) * 5 + ("stop worker",) * 3 + ("kill fork server", "stop driver")
                )
                strikes.append(_strike(rng, name, life, phase))
        if life < n_ends:
            phase = rng.choice([p for p in phases if p.journal or p.kind == "pipeline"])
            strikes.append(_strike(rng, rng.choice(ENDS_A_LIFE), life, phase))
    return tuple(strikes)


def _strike(rng: random.Random, name: str, life: int, phase: Phase) -> Strike:
    at, delay_s = rng.randrange(phase.n), rng.choice((0.0, 0.0, 0.005, 0.03))
    return Strike(name, life, phase.number, at, delay_s, rng.choice((0.02, 0.1, 0.4, 1.5)))
