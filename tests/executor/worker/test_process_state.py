"""What an item changes of its worker's process is not what the next item finds."""

import gc
import io
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evenload.executor import Executor


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise SystemExit("not comparable")

    @property
    def closed(self) -> bool:
        raise SystemExit("not to be asked")


LEAKS: dict[str, Callable[[], Any]] = {
    "a variable": lambda: os.environ.update(LEAKED="1"),
    "no variables": lambda: os.environ.clear(),
    "another path": lambda: os.environ.update(PATH="/nowhere"),
    "a folder": lambda: os.chdir("/usr"),
    "a folder by descriptor": lambda: os.fchdir(os.open("/", os.O_RDONLY)),
    "stdout closed": lambda: sys.stdout.close(),
    "stdout replaced": lambda: setattr(sys, "stdout", io.StringIO()),
    "stdout wrapped": lambda: setattr(sys, "stdout", io.TextIOWrapper(sys.stdout.buffer)),
    "stderr none": lambda: setattr(sys, "stderr", None),
    "descriptors closed": lambda: (os.close(1), os.close(0)),
    "descriptor to a file": lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 2),
    "a handler": lambda: signal.signal(signal.SIGUSR1, lambda *_: None),
    "deaf": lambda: [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGHUP)],
    "a blocked signal": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]),
    "an alarm": lambda: signal.alarm(1000),
    "a timer": lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 1000, 1000),
    "a umask": lambda: os.umask(0o777),
    "no collection": lambda: gc.disable(),
    "a path": lambda: sys.path.insert(0, "/nowhere"),
    "no path": lambda: sys.path.clear(),
    "deep recursion": lambda: sys.setrecursionlimit(12_345),
    "a path of nothing": lambda: setattr(sys, "path", None),
    "a path that cannot be compared": lambda: sys.path.__setitem__(0, Incomparable()),
    "no list of paths": lambda: delattr(sys, "path"),
    "an environment replaced": lambda: setattr(os, "environ", {}),
    "stdout deleted": lambda: delattr(sys, "stdout"),
    "stdout that cannot be asked": lambda: setattr(sys, "stdout", Incomparable()),
    "hardly any recursion": lambda: sys.setrecursionlimit(60),
    "nothing": lambda: None,
    "an error": lambda: 1 / 0,
}


def state() -> dict[str, Any]:
    umask = os.umask(0)
    os.umask(umask)
    for stream in (sys.stdout, sys.stderr):
        stream.write("")
        stream.flush()
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "descriptors": [os.fstat(fd).st_ino for fd in (0, 1, 2)],
        "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "timers": [any(signal.getitimer(timer)) for timer in (0, 1, 2)],
        "umask": umask,
        "collects": gc.isenabled(),
        "path": list(sys.path),
        "limit": sys.getrecursionlimit(),
    }


def found_by(leaks: list[str]) -> tuple[int, dict[str, Any]]:
    """The worker, and what the item finds; then it leaks."""
    found = os.getpid(), state()
    for leak in leaks:
        LEAKS[leak]()
    return found


def found_by_batch(batch: list[list[str]]) -> list[Any]:
    return [found_by(batch[0])] * len(batch)


@pytest.fixture(scope="module")
def executor(threaded: str) -> Iterator[Executor]:
    with Executor("cpu*2", backend=threaded, echo=False) as executor:
        yield executor


@pytest.mark.parametrize(
    ("threaded", "options"),
    [("process", {}), ("process", {"policy": "pull"}), ("process", {"batch": 3}), ("ray", {})],
    indirect=["threaded"],
)
def test_every_item_finds_what_the_first_one_found(options: dict[str, Any], executor: Executor) -> None:
    dice, is_batch = random.Random(str(options)), "batch" in options
    leaks = [leak for leak in LEAKS if leak != "an error" or not is_batch]
    items = [dice.choices(leaks, k=dice.choice([0, 1, 1, 2, 5])) for _ in range(60)]
    fn = found_by_batch if is_batch else found_by
    first: dict[int, dict[str, Any]] = {}
    for result in executor.map(fn, items, on_error="return", **options):
        if isinstance(result, tuple):
            worker, found = result
            assert found == first.setdefault(worker, found)
    assert first


def test_what_the_constructor_sets_stays() -> None:
    class Set:
        def __init__(self) -> None:
            os.environ["KEPT"] = "by the constructor"
            os.chdir("/")
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)

        def __call__(self, leak: str) -> tuple[str, str, bool]:
            found = os.environ["KEPT"], os.getcwd(), signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
            LEAKS[leak]()
            os.environ["KEPT"] = "by an item"
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            return found

    with Executor("cpu*1", echo=False) as executor:
        found = set(executor.map(Set, [leak for leak in LEAKS if leak != "an error"]))
        assert found == {("by the constructor", "/", True)}


def test_numbers_of_threads_are_put_back() -> None:
    class WithLibrary:
        """A library with a default number of threads; importing a real one takes seconds."""

        def __init__(self) -> None:
            counts = [3]
            library = type(sys)("numba")
            library.get_num_threads = lambda: counts[0]  # type: ignore[attr-defined]
            library.set_num_threads = lambda n: counts.__setitem__(0, n)  # type: ignore[attr-defined]
            sys.modules["numba"] = self.library = library

        def __call__(self, n: int) -> int:
            found = self.library.get_num_threads()
            self.library.set_num_threads(n)
            return found

    with Executor("cpu*1", echo=False) as executor:
        assert set(executor.map(WithLibrary, range(2, 30), policy="pull")) == {3}
