"""``RankGroup``: the ranks of a training, and small exchanges between them beside those of gradients.

It has a channel of its own over the CPU (gloo): nothing waits for a GPU, and no exchange of the model's is in
its way. Whoever does not take part is named.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from evenload._optional import require
from evenload.errors import ConfigError, PeerLost, quoted

FACT_BYTES = 8192  # a fault of two sentences, each of its letters escaped
MOST_STALL_S = 1e6
ANSWER_S = 10.0  # to hear from all who are still there, once an exchange has failed


LOG = logging.getLogger("evenload.training")
REPLY_S = 5.0  # at most, for others that have waited as long to say so


class StallWatch:
    """A thread of its own that looks at how long this rank has waited for others, and names who is late.

    Who has waited for ``stall_s`` says so in the store of torch.distributed; who has not said so a while
    later is the one that the others wait for. Nothing is asked of a rank that stalls, and nothing is ended.

    store    of torch.distributed, for these ranks alone
    tell     is given what there is to say, once for each step; by default a warning of the logger
             ``evenload.training``
    """

    def __init__(
        self, store: Any, number: int, size: int, stall_s: float, tell: Callable[[str], None] = LOG.warning
    ):
        self._store, self._number, self._size = store, number, size
        self._stall_s, self._tell = stall_s, tell
        self._since: tuple[int, float] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="evenload-stalls", daemon=True)
        self._thread.start()

    def waiting(self, step: int) -> None:
        """Say that this rank has done its part of ``step``, and waits."""
        self._since = (step, time.monotonic())

    def done(self) -> None:
        """Say that all have come."""
        self._since = None

    def stop(self) -> None:
        """End the watch; does not wait for it."""
        self._stop.set()

    def _look(self) -> None:
        told = -1
        while not self._stop.wait(self._stall_s / 4):
            since = self._since
            if since is None or since[0] == told or time.monotonic() - since[1] < self._stall_s:
                continue
            with contextlib.suppress(RuntimeError):  # the store is gone: torch says so to who waits
                told = self._ask(*since, told)

    def _ask(self, step: int, began_s: float, told: int) -> int:
        """Name who has not said that it waits, if this rank still does; returns the step that was told."""
        keys = [f"waits/{step}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._number], "yes")
        self._stop.wait(min(REPLY_S, self._stall_s))
        missing = late(self._store.check([key]) for key in keys)
        if self._since != (step, began_s) or not missing:
            return told
        waited_s = time.monotonic() - began_s
        self._tell(f"{missing} not done with step {step}: the others have waited {waited_s:.0f} s")
        return step


def late(waits: Iterable[bool]) -> str:
    """Name the ranks that do not wait, by what each says; "" if all do."""
    missing = [rank for rank, does in enumerate(waits) if not does]
    if not missing:
        return ""
    names = ", ".join(map(str, missing[:20])) + (", ..." if len(missing) > 20 else "")
    return f"rank {names} is" if len(missing) == 1 else f"ranks {names} are"


class RankGroup:
    """A group of ranks: ``number`` of ``size``; one rank alone if torch.distributed is not in use.

    group      of torch.distributed, None for all ranks
    timeout_s  how long an exchange waits for the others

    Raises MissingExtra without torch, PeerLost if a rank does not come.
    """

    def __init__(self, group: Any = None, timeout_s: float = 600.0):
        require("torch", extra="torch", why="training")
        import torch.distributed as dist

        self.number, self.size, self.group = 0, 1, group
        self._limit = timedelta(seconds=timeout_s)
        self._channel: Any = None
        self._pending: tuple[Any, list[Any]] | None = None
        self._held: list[list[float]] | None = None  # of an exchange that another one came in between
        self._store: Any = None
        self._n_calls = 0
        if not (dist.is_available() and dist.is_initialized()):
            return
        self.number, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.number < 0:
            raise ConfigError("this rank is not in the group", hint="make EvenBatches on its ranks only")
        if self.size == 1:
            return
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        name = "evenload/training/" + "-".join(map(str, ranks[:64]))
        self._store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
        serial = self._store.add(f"made/{self.number}", 1)
        self._store = dist.PrefixStore(f"{name}/{serial}", dist.distributed_c10d._get_default_store())
        missing = self._missing(self._limit)
        if missing:
            raise PeerLost(f"{_names(missing)} did not make EvenBatches within {timeout_s:g} s", hint=HINT)
        self._channel = dist.new_group(
            ranks, timeout=self._limit, backend="gloo", use_local_synchronization=True
        )

    def watch(self, stall_s: float) -> StallWatch | None:
        """Return a watch of how long this rank waits for others; None for one rank alone."""
        if self._store is None:
            return None
        return StallWatch(self._store, self.number, self.size, min(stall_s, MOST_STALL_S))

    def add_up(self, tensor: Any, where: str) -> None:
        """Add up a tensor over all ranks, in place: on a GPU over the model's group."""
        import torch.distributed as dist

        if self._channel is None:
            return
        held = self.take(where)
        try:
            dist.all_reduce(tensor, group=self._channel if tensor.device.type == "cpu" else self.group)
        except RuntimeError as error:
            raise self._lost(where, error) from error
        self._held = held

    def facts(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what each rank says, by rank. Of small values that JSON has."""
        import torch

        text = json.dumps(mine).encode()
        if len(text) > FACT_BYTES:
            raise ConfigError(f"what rank {self.number} says is too long: {quoted(text)}")
        held = self.take("an exchange")
        sent = torch.zeros(FACT_BYTES, dtype=torch.uint8)
        sent[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._start(sent)
        said = [json.loads(bytes(one.tolist()).rstrip(b"\0")) for one in self._finish("its beginning")]
        self._held = held
        return said

    def gather(self, values: list[float], where: str) -> list[list[float]]:
        """Return the numbers of each rank; waits for all. ``where``: for the message if one does not come."""
        held = self.take(where)
        self.start(values)
        found = self.take(where)
        self._held = held
        return found or []

    def start(self, values: list[float]) -> None:
        """Begin to exchange numbers, as many on each rank; does not wait."""
        import torch

        self._start(torch.tensor(values, dtype=torch.float64))

    def take(self, where: str) -> list[list[float]] | None:
        """Return the numbers that each rank gave to ``start``; None if nothing was begun."""
        held, self._held = self._held, None
        if held is not None or self._pending is None:
            return held
        return [one.tolist() for one in self._finish(where)]

    def _start(self, sent: Any) -> None:
        import torch
        import torch.distributed as dist

        if self._channel is None:
            self._pending = (None, [sent])
            return
        received = [torch.empty_like(sent) for _ in range(self.size)]
        try:
            work = dist.all_gather(received, sent, group=self._channel, async_op=True)
        except RuntimeError as error:
            raise self._lost("an exchange", error) from error
        self._pending = (work, received)

    def _finish(self, where: str) -> list[Any]:
        work, received = self._pending or (None, [])
        self._pending = None
        if work is not None:
            try:
                work.wait(self._limit)
            except RuntimeError as error:
                raise self._lost(where, error) from error
        return received

    def _lost(self, where: str, error: RuntimeError) -> PeerLost:
        missing = self._missing(min(self._limit, timedelta(seconds=ANSWER_S)))
        who = f"no answer from {_names(missing)}" if missing else "an exchange between ranks failed"
        return PeerLost(f"{who} in {where}: {quoted(str(error))}", hint=HINT)

    def _missing(self, limit: timedelta) -> list[int]:
        """Ranks that do not come to the same point within ``limit``."""
        self._n_calls += 1
        keys = [f"call/{self._n_calls}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(keys[self.number], "here")
            try:
                self._store.wait(keys, limit)
                return []
            except RuntimeError:
                return [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        except RuntimeError:  # the store is gone, with the rank that has it
            return [0]


HINT = "see what happened to it: its output, its memory; the others cannot go on without it"


def _names(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks[:20]))


T = TypeVar("T")
SAID = 400


def agree(ranks: RankGroup, make: Callable[[], tuple[T, Mapping[str, Any]]]) -> tuple[T, list[Any]]:
    """Return what ``make`` makes, and what each rank has of its own, under "own" of its settings.

    make  returns something and settings, which have to be the same on all ranks but for "own"

    Raises ConfigError, the same on all ranks: the error of the lowest rank whose ``make`` raises one, or the
    first setting that differs.
    """
    made, settings, fault = None, {}, None
    try:
        made, settings = make()
    except ConfigError as error:
        fault = [error.message[:SAID], (error.hint or "")[:SAID]]
        if ranks.size == 1:
            raise
    said = ranks.facts({"fault": fault, "settings": dict(settings)})
    for rank, one in enumerate(said):
        if one["fault"] is not None:
            message, hint = map(str, one["fault"])
            raise ConfigError(f"on rank {rank}: {message}", hint=hint or None)
    for name in said[0]["settings"]:
        if name != "own":
            same(name, [one["settings"][name] for one in said])
    if made is None:
        raise AssertionError("no rank has a fault, and this one made nothing")
    return made, [one["settings"].get("own") for one in said]


def same(name: str, values: list[Any]) -> None:
    """Raise ConfigError unless all ranks have the same value."""
    for rank, value in enumerate(values):
        if value != values[0]:
            raise ConfigError(
                f"rank 0 has {name}={quoted(values[0])}, rank {rank} has {quoted(value)}",
                hint=f"give every rank the same {name}",
            )


def same_order(ranks: RankGroup, digest: float, n_found: int, n_said: int) -> None:
    """Raise ConfigError unless all ranks have samples of the same digest, as many as the sampler said."""
    found = ranks.gather([digest, float(n_found)], "the order of an epoch")
    wrong = [n for _, n in found if n != n_said]
    if wrong:
        raise ConfigError(
            f"the sampler said {n_said} samples, and yields {wrong[0]:.0f}",
            hint="give a sampler whose __len__ is what it yields",
        )
    if len({one for one, _ in found}) > 1:
        raise ConfigError(
            "the sampler yields the samples in another order on each rank",
            hint="seed it alike on every rank, or give the data set, which is shuffled by seed=",
        )
