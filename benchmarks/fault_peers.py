"""The peers once more, asked for every result that can be had when items go wrong, and what goes wrong."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import cluster_peers
import peers

N_ITEMS, BAD, ITEM_S = 12, 4, 0.1
LIMIT_S = 2.0  # where the peer has a time limit

Outcome = tuple[str, Any]  # ("value", it) | ("error", text) | ("missing", why)


class CannotBeRebuilt(Exception):
    """Is pickled, and cannot be unpickled."""

    def __init__(self, first: str, second: str):
        super().__init__(first)


def misbehave(what: str, marker: str) -> Any:
    if what == "exception":
        raise ValueError("an ordinary one")
    if what == "killed once":
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return "second time"
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "crash":
        ctypes.string_at(0)
    if what in ("hang", "hang, limit"):
        time.sleep(100_000)
    if what == "hang holding the GIL, limit":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ctypes.PyDLL(None).sleep(100_000)
    if what == "exception not picklable":
        error = ValueError("with a generator inside")
        error.generator = (i for i in "ab")  # type: ignore[attr-defined]
        raise error
    if what == "exception not unpicklable":
        raise CannotBeRebuilt("first", "second")
    if what == "result not picklable":
        return (i for i in "ab")
    if what == "sys.exit":
        raise SystemExit(3)
    if what == "3 GB result":
        import numpy as np

        return np.ones(3 * 2**30, "u1")
    raise AssertionError(what)


def item(number_what_marker: tuple[int, str, str]) -> Any:
    """The task: one of the items misbehaves."""
    number, what, marker = number_what_marker
    if number == BAD:
        return misbehave(what, marker)
    time.sleep(ITEM_S)
    return number


def long_item(number: int) -> int:
    time.sleep(3.0)
    return number


def echo(number: int) -> int:
    return number


def text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:120]


def collect(getters: Iterable[Callable[[float], Any]], patience_s: float) -> dict[int, Outcome]:
    """What each getter gives within the time that all of them have together."""
    until, found = time.monotonic() + patience_s, {}
    for number, get in enumerate(getters):
        try:
            found[number] = "value", get(max(0.05, until - time.monotonic()))
        except BaseException as error:
            is_ours = "Timeout" in type(error).__name__ and time.monotonic() > until - 0.1
            found[number] = ("missing" if is_ours else "error"), text_of(error)
    return found


class Faulty:
    """What this benchmark asks of a peer besides ``start``, ``imap`` and ``close``."""

    has_limit = False

    def outcomes(
        self, fn: Callable, items: Sequence[Any], patience_s: float, limit_s: float | None
    ) -> Mapping[int, Outcome]:
        raise NotImplementedError


class Evenload(peers.Evenload, Faulty):
    has_limit = True
    backend = "process"

    def start(self, n_workers: int) -> None:
        from evenload.executor import Executor

        self.executor = Executor(f"cpu*{n_workers}", backend=self.backend, echo=False)
        self.executor.start()

    def outcomes(self, fn, items, patience_s, limit_s):
        found: dict[int, Outcome] = {}
        results = self.executor.map(fn, items, ordered=False, on_error="return", timeout_s=limit_s)
        for number, value in results.indexed():
            found[number] = ("error", text_of(value)) if isinstance(value, Exception) else ("value", value)
            if items[BAD][1] == "hang" and len(found) == len(items) - 1:
                break  # nothing else will come
        results.close()
        return found


class EvenloadRay(Evenload):
    name, package, backend = "evenload on Ray", "ray", "ray"


class MultiprocessingPool(peers.MultiprocessingPool, Faulty):
    def outcomes(self, fn, items, patience_s, limit_s):
        jobs = [self.pool.apply_async(fn, (one,)) for one in items]
        return collect([job.get for job in jobs], patience_s)


class ProcessPool(peers.ProcessPool, Faulty):
    def outcomes(self, fn, items, patience_s, limit_s):
        return collect([self.pool.submit(fn, one).result for one in items], patience_s)


class Loky(peers.Loky, Faulty):
    outcomes = ProcessPool.outcomes


class Joblib(peers.Joblib, Faulty):
    has_limit = True

    def outcomes(self, fn, items, patience_s, limit_s):
        from joblib import Parallel, delayed

        parallel = Parallel(
            self.n_workers, return_as="generator", batch_size=1, timeout=limit_s or patience_s
        )
        stream = iter(parallel(delayed(fn)(one) for one in items))
        return collect([lambda _: next(stream)] * len(items), patience_s)


class Mpire(peers.Mpire, Faulty):
    has_limit = True

    def outcomes(self, fn, items, patience_s, limit_s):
        jobs = [self.pool.apply_async(fn, (one,), task_timeout=limit_s) for one in items]
        return collect([job.get for job in jobs], patience_s)


class Pebble(peers.Pebble, Faulty):
    has_limit = True

    def outcomes(self, fn, items, patience_s, limit_s):
        futures = [self.pool.schedule(fn, args=(one,), timeout=limit_s) for one in items]
        return collect([future.result for future in futures], patience_s)


class RayTasks(cluster_peers.RayTasks, Faulty):
    def outcomes(self, fn, items, patience_s, limit_s):
        remote = self.ray.remote(fn)
        references = [remote.remote(one) for one in items]
        return collect([lambda s, one=one: self.ray.get(one, timeout=s) for one in references], patience_s)


PEERS = {
    peer.name: peer
    for peer in (
        Evenload,
        MultiprocessingPool,
        ProcessPool,
        Loky,
        Joblib,
        Mpire,
        Pebble,
        EvenloadRay,
        RayTasks,
    )
}
