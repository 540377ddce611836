"""When a request may go to a server: pure, by a clock that is given.

    wait_s(now) ──► begin(now, tokens) ──► answered | refused ──► end

Requests keep the distance that the limits ask for. A server that is too busy is left alone by all for as long
as it says. If it says nothing, or is too busy again and again, the pauses grow, and it gets half as many at
once afterwards, and one more for each round that it answers. Workers on a machine share the state of a pace
in a file, which each locks for as long as it takes to read and write it.
"""

import contextlib
import fcntl
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

LOCK_S = 1.0  # until a worker that has the file is taken to be stopped
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
MINUTE_S = 60.0
_STATE = Struct("<6dq")
MOST_BELIEVED = 3  # times in a row that a server says when to come back
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(slots=True)
class ServerPace:
    """The requests to one server; each worker has its own object, and what they share is in ``file``.

    file         None: there is no other worker
    requests_per_minute, tokens_per_minute  limits; None: none is known
    n_open       requests of this worker that are under way
    most_open    of each worker so many may be, as the server was too busy for more
    hold_s       nothing is sent before
    n_refused    times in a row that the server was too busy
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    n_open: int = 0
    most_open: float = math.inf
    hold_s: float = 0.0
    n_refused: int = 0
    _next_s: float = 0.0
    _tokens_s: float = 0.0
    _mean_tokens: float | None = None
    file: Path | None = None

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Go on from the state that the last worker has left, and leave it to the next.

        Where no file can be written, or a worker that was stopped holds it, each keeps the limits by itself.
        """
        with contextlib.ExitStack() as undone:
            with contextlib.suppress(OSError):
                if self.file is not None:
                    fd = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                    undone.callback(os.close, fd)
                    _lock(fd)
                    self._take(os.pread(fd, _STATE.size, 0))
                    undone.callback(self._leave, fd)
            yield

    def _leave(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(fd, self._state(), 0)

    def _state(self) -> bytes:
        mean = math.nan if self._mean_tokens is None else self._mean_tokens
        return _STATE.pack(
            time.monotonic(), self.hold_s, self._next_s, self._tokens_s, mean, self.most_open, self.n_refused
        )

    def _take(self, state: bytes) -> None:
        if len(state) == _STATE.size and (known := _STATE.unpack(state))[0] <= time.monotonic():
            _, self.hold_s, self._next_s, self._tokens_s, mean, self.most_open, self.n_refused = known
            self._mean_tokens = None if math.isnan(mean) else mean

    def wait_s(self, now: float) -> float:
        """Seconds until the next request may go; infinite if one must be answered before."""
        if self.n_open and self.n_open + 1 > self.most_open:
            return math.inf
        return max(0.0, max(self.hold_s, self._next_s, self._tokens_s) - now)

    def begin(self, now: float, tokens: float) -> float:
        """Send a request now. ``tokens``: what it may take, if nothing has told; returns what is reckoned."""
        self.n_open += 1
        if self.requests_per_minute is not None:
            self._next_s = max(now, self._next_s) + MINUTE_S / self.requests_per_minute
        reckoned = tokens if self._mean_tokens is None else self._mean_tokens
        if self.tokens_per_minute is not None:
            self._tokens_s = max(now, self._tokens_s) + reckoned * MINUTE_S / self.tokens_per_minute
        return reckoned

    def end(self) -> None:
        """A request is no longer under way."""
        self.n_open -= 1

    def answered(self, now: float, headers: Mapping[str, str], tokens: int | None, reckoned: float) -> None:
        """The server answered. ``tokens`` that it counted, where ``reckoned`` were expected."""
        self.n_refused = 0
        self.most_open += 1 / self.most_open
        if tokens is not None:
            before = tokens if self._mean_tokens is None else self._mean_tokens
            self._mean_tokens = 0.9 * before + 0.1 * tokens
            if self.tokens_per_minute is not None:
                self._tokens_s += (tokens - reckoned) * MINUTE_S / self.tokens_per_minute
        self._hear(now, headers)

    def refused(self, now: float, began_s: float, headers: Mapping[str, str], chance: float) -> None:
        """The server is too busy for a request that went at ``began_s``: hold all."""
        self._hear(now, headers)
        if began_s < self.hold_s:
            return  # it went before the others were held, and says nothing new
        said_s = seconds_of(headers.get("retry-after"))
        if said_s is not None and self.n_refused < MOST_BELIEVED:
            self.hold_s = max(self.hold_s, now + min(said_s, LONGEST_PAUSE_S))
        else:
            self.hold_s = max(self.hold_s, now + pause_s(self.n_refused, said_s, chance))
            self.most_open = max(1.0, min(self.most_open, self.n_open) / 2)
        self.n_refused += 1

    def _hear(self, now: float, headers: Mapping[str, str]) -> None:
        """Take in what is left of the server's own limits, and when they begin anew."""
        for what in ("requests", "tokens"):
            left = seconds_of(headers.get(f"x-ratelimit-remaining-{what}"))
            reset_s = seconds_of(headers.get(f"x-ratelimit-reset-{what}"))
            least = 1.0 if what == "requests" else max(1.0, self._mean_tokens or 0.0)
            if left is not None and reset_s is not None and left < least:
                self.hold_s = max(self.hold_s, now + min(reset_s, LONGEST_PAUSE_S))


def _lock(fd: int) -> None:
    """Lock a file, which others have for microseconds. Raises BlockingIOError after ``LOCK_S``."""
    end_s = time.monotonic() + LOCK_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.001)


def pause_s(attempt: int, wanted_s: float | None, chance: float) -> float:
    """Seconds before the next attempt: doubling, and spread so that workers do not come back together.

    attempt   0 for the first one that failed
    wanted_s  what the server asked for
    chance    0 to 1
    """
    grown_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 30))
    return max(grown_s * (0.5 + chance / 2), min(wanted_s or 0.0, LONGEST_PAUSE_S))


def seconds_of(text: str | None) -> float | None:
    """Read a number, or a span such as ``6m0.5s``; None for anything else, a date among others."""
    if text is None or len(text) > 40:
        return None
    text = text.strip()
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", text)
    if parts and "".join(map("".join, parts)) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    return float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else None
