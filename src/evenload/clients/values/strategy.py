"""Strategies for training clients: an outer way to spread them over workers, an inner way to step them."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evenload._plain_text import number_text
from evenload.errors import ConfigError, UnknownName, quoted

OUTER = {
    "inline": "in this thread",
    "threads": "in threads of this process",
    "streams": "in threads of this process, each with a CUDA stream of one GPU",
    "processes": "in one process per CPU slot",
    "devices": "in one process per device",
    "ray": "in one process per device of a Ray cluster, or per CPU slot of it",
}
INNER = {
    "eager": "one client at a time, as plain torch would",
    "compiled": "one client at a time, its step compiled: fused-compiled:1",
    "fused": "a chunk of clients in one step, by vmap",
    "fused-compiled": "a chunk of clients in one compiled step",
    "rules": "fused, with hand-written rules for recurrent layers and convolutions",
    "rules-compiled": "the same, compiled",
}
GRADES = {
    "bitwise": "the serial bits",
    "close": "the serial result but for rounding",
    "approximate": "another computation",
}
STREAMS = 4  # of a GPU, unless a number is asked for
_SHORT = {"serial": "inline/eager", "merged": "inline/merged"}
_PATTERN = re.compile(
    r"(?:(?P<outer>[a-z]+)(?:\*(?P<workers>\d{1,9}))?/)?(?P<inner>[a-z-]+)(?::(?P<chunk>\d{1,9}))?"
)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way of training: outer × inner, at most ``chunk`` clients in a fused step, ``workers`` at a time.

    As text: "serial", "fused", "fused:16", "threads*2/rules:10", "streams*4/fused:32", "processes/eager",
    "devices/fused-compiled", "ray*8/eager".
    """

    outer: str = "inline"
    inner: str = "eager"
    chunk: int = 16
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.outer not in OUTER:
            raise UnknownName("outer strategy", self.outer, OUTER)
        if self.inner not in INNER and self.inner != "merged":
            raise UnknownName("inner strategy", self.inner, [*INNER, "merged"])
        if self.inner == "compiled":
            object.__setattr__(self, "inner", "fused-compiled")
            object.__setattr__(self, "chunk", 1)
        if self.inner == "merged" and self.outer != "inline":
            raise ConfigError("'merged' trains one model, and cannot be spread", hint="use strategy='merged'")
        if self.chunk < 1 or (self.workers is not None and self.workers < 1):
            raise ConfigError(f"chunk={self.chunk}, workers={self.workers}: use 1 or more")

    @classmethod
    def parse(cls, text: "str | Strategy") -> "Strategy":
        """The strategy that ``text`` names. Raises UnknownName or ConfigError."""
        if isinstance(text, Strategy):
            return text
        match = _PATTERN.fullmatch(_SHORT.get(text, text)) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(
                f"strategy {quoted(text)} is not of the form outer*workers/inner:chunk", hint="see Strategy"
            )
        kwargs = {name: int(match[name]) for name in ("workers", "chunk") if match[name]}
        if match["outer"] is None and match["inner"] in OUTER:
            return cls(match["inner"], "eager", **kwargs)
        return cls(match["outer"] or "inline", match["inner"], **kwargs)

    def on_at_most(self, workers: int) -> "Strategy":
        """The strategy on so many workers, or on fewer if it names fewer. Raises ConfigError for devices."""
        if self.outer == "inline":
            return self
        if self.outer == "devices":
            raise ConfigError(
                f"at most {workers} workers for {self}: it has one worker on each device",
                hint="say with devices which these are",
            )
        return replace(self, workers=min(workers, self.workers or workers))

    @property
    def is_fused(self) -> bool:
        return self.inner in ("fused", "fused-compiled", "rules", "rules-compiled")

    @property
    def is_threaded(self) -> bool:
        """Do its workers share a process, and so its generators of random numbers?"""
        return self.outer in ("threads", "streams")

    @property
    def rows(self) -> int:
        """Most clients in one step."""
        return self.chunk if self.is_fused else 1

    def rows_for(self, n_clients: int, n_workers: int) -> int:
        """Most clients in one step if ``n_workers`` share ``n_clients``.

        Of a compiled step one of ``halves``: a number of clients of its own would need graphs of its own.
        """
        n = max(1, min(self.rows, -(-n_clients // n_workers)))
        return next(size for size in halves(self.rows) if size >= n) if self.is_compiled else n

    @property
    def is_compiled(self) -> bool:
        return self.inner in ("fused-compiled", "rules-compiled")

    @property
    def grade(self) -> str:
        """How equal the result is to serial: a name of GRADES."""
        if self.inner == "merged":
            return "approximate"
        return "bitwise" if self.inner == "eager" and self.outer != "streams" else "close"

    def __str__(self) -> str:
        workers = f"*{self.workers}" if self.workers else ""
        return f"{self.outer}{workers}/{self.inner}" + (f":{self.chunk}" if self.is_fused else "")


def halves(n: int) -> list[int]:
    """Numbers of rows worth a graph, ascending: ``n``, its half, the half of that, ..., 1."""
    return [*halves(-(-n // 2)), n] if n > 1 else [n]


def n_workers(strategy: Strategy) -> int:
    """Threads or CPU slots: as asked, else one per core that this process may use."""
    if strategy.outer == "inline":
        return 1
    return strategy.workers or (STREAMS if strategy.outer == "streams" else len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """The strategy that trains clients, and why it was taken.

    strategy  the one that is used
    why       one sentence
    reasons   strategy or inner name -> why it was not used
    probes    rows of the tuner's table, if it ran
    solo      client id -> why it was trained by itself beside a fused chunk
    check     largest difference of the checked clients from serial, None if nothing was checked
    failure   why no client could be trained, None if one could: the choice and its times then say nothing
    notes     what else a reader of the plan should know, a sentence each
    """

    strategy: Strategy
    why: str
    reasons: Mapping[str, str] = field(default_factory=dict)
    probes: tuple[Mapping[str, Any], ...] = ()
    solo: Mapping[int, str] = field(default_factory=dict)
    check: float | None = None
    failure: str | None = None
    notes: tuple[str, ...] = ()

    def explain(self) -> str:
        """The plan as text: a line for the choice, the table of probes, a line per refusal."""
        if self.failure is not None:
            return f"no client was trained, by {self.strategy}: {self.failure}"
        lines = [f"{self.strategy}: {self.why} (grade: {self.strategy.grade}, {GRADES[self.strategy.grade]})"]
        if self.check is not None:
            lines.append(f"checked against serial: largest difference {self.check:.1e}")
        if self.probes:
            head = list(self.probes[0])
            cells = [[_cell(row[name]) for name in head] for row in self.probes]
            widths = [max(len(line[i]) for line in [head, *cells]) for i in range(len(head))]
            lines += [
                "  " + "  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip()
                for line in [head, *cells]
            ]
        lines += [f"not {name}: {reason}" for name, reason in self.reasons.items()]
        lines += [f"client {client} by itself: {reason}" for client, reason in self.solo.items()]
        return "\n".join([*lines, *self.notes])


def _cell(value: Any) -> str:
    return "" if value is None else number_text(value) if isinstance(value, float) else str(value)
