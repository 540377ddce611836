"""What tasks do to the worker that runs them. Each deed is given a source of chance.

A deed returns what it gives instead of the item's value, None to go on, or MISSED to go on as it has hit
nothing.
"""

import contextlib
import ctypes
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

MISSED = object()
CHILD_S = 20.0


def fork(then: Callable[[], Any], with_libc: bool = False) -> None:
    """Let a forked child do ``then`` and go on as if it were the worker."""
    pid = ctypes.CDLL(None).fork() if with_libc else os.fork()
    if not pid:
        then()
        raise InTheChild
    wait_for(pid)


def wait_for(pid: int) -> None:
    """Wait for a child's end, and kill it if that takes too long.

    The C library's fork may be called while another thread has Python's lock, and then the child waits for it
    for ever: nobody can prevent that but whoever forks so.
    """
    end = time.monotonic() + CHILD_S
    with contextlib.suppress(ChildProcessError):  # another item has SIGCHLD ignored
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(0.001)


def fork_and_return(rng: random.Random) -> None:
    """Let a forked child return from the deed as its parent does."""
    pid = (ctypes.CDLL(None).fork if rng.random() < 0.5 else os.fork)()
    if pid:
        wait_for(pid)


class InTheChild(Exception):
    pass


class Bomb:
    """An object whose unpickling raises something that is no Exception."""

    def __init__(self, raises: type[BaseException]):
        self.raises = raises

    def __reduce__(self) -> tuple:
        return explode, (self.raises,)


def explode(raises: type[BaseException]) -> None:
    raise raises("boom")


class Own(BaseException):
    pass


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        sys.exit("no")

    def __str__(self) -> str:
        raise SystemExit


class NotSendable:
    """An item whose pickling raises."""

    def __init__(self, raises: type[BaseException], report: str):
        self.raises, self.report = raises, report

    def __reduce__(self) -> Any:
        exec(self.report)
        raise self.raises("not to be sent")


class Rebuilds:
    """An object whose unpickling runs ``code``."""

    def __init__(self, code: str):
        self.code = code

    def __reduce__(self) -> tuple:
        return exec, (self.code,)


def each(fds: Iterable[int], do: Callable[[int], Any]) -> Any:
    """Do it with each descriptor that can be used so. Returns MISSED if there is none."""
    result: Any = MISSED
    for fd in fds:
        with contextlib.suppress(OSError):
            do(fd)
            result = None
    return result


def scribble(rng: random.Random) -> Any:
    """Write garbage into every descriptor there is, or some."""
    share = rng.choice((0.2, 1.0))

    def write(fd: int) -> None:
        os.set_blocking(fd, False)
        os.write(fd, rng.randbytes(rng.choice((1, 8, 24, 100, 4096, 70_000))))

    return each([fd for fd in range(3, 64) if rng.random() < share], write)


def cut(rng: random.Random) -> Any:
    """Cut files short, or make them longer."""
    return each(range(3, 64), lambda fd: os.ftruncate(fd, rng.choice((0, 1, 4096))))


def close_some(rng: random.Random) -> Any:
    return each([fd for fd in range(64) if rng.random() < 0.4], os.close)


def reopen(rng: random.Random) -> None:
    os.closerange(3, 64)
    for _ in range(rng.randrange(12)):
        os.open(
            rng.choice(("/dev/null", "/dev/zero", "/proc/self/stat")), os.O_RDWR if rng.random() < 0.3 else 0
        )


def mix_up(rng: random.Random) -> Any:
    """Have one descriptor be another, of those that are open."""
    fds = [fd for fd in range(3, 24) if os.path.exists(f"/proc/self/fd/{fd}")]
    if len(fds) < 2:
        return MISSED
    return each([rng.choice(fds)], lambda fd: os.dup2(fd, rng.choice([one for one in fds if one != fd])))


def leave_a_thread(rng: random.Random) -> None:
    def forks() -> None:
        if not os.fork():
            sys.exit()

    thread = threading.Thread(target=forks)
    thread.start()
    thread.join(timeout=500)


def grandchild(rng: random.Random) -> None:
    """A child in a session of its own goes on and floods the output."""
    if not os.fork():
        os.setsid()
        with contextlib.suppress(OSError):
            for _ in range(2000):
                os.write(2, b"x" * 8000 + b"\n")
        os._exit(0)


def flood(rng: random.Random) -> None:
    """Print what is no text, and much of it."""
    for _ in range(rng.choice((1, 50, 400))):
        with contextlib.suppress(OSError):  # closed by another item
            os.write(rng.choice((1, 2)), rng.randbytes(4000) + b"\x1b]0;title\x07\x1b[2J\n" * 3)


def odd_state(rng: random.Random) -> None:
    """Leave the worker's state other than it was found."""
    changes: list[Callable[[], Any]] = [
        lambda: os.chdir("/"),
        lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        lambda: os.environ.update(LANG="nowhere", TZ="nowhere"),
        lambda: sys.stdout.close(),
        lambda: setattr(sys, "stderr", None),
        lambda: threading.Thread(target=threading.Event().wait, daemon=True).start(),
    ]
    for change in rng.sample(changes, rng.randrange(1, 4)):
        change()


def too_little_memory(rng: random.Random) -> None:
    """Ask for more memory than this process may have; the limit is real, and lifted again."""
    usual = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (32 << 20), usual[1]))
    try:
        bytearray(256 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, usual)


def throw(error: BaseException) -> None:
    raise error


ODD = (SystemExit, KeyboardInterrupt, GeneratorExit, Own)

BY_NAME: dict[str, Callable[[random.Random], Any]] = {
    "raise": lambda rng: throw(ValueError("an ordinary error")),
    "raise odd": lambda rng: throw(rng.choice(ODD)("odd")),
    "unpicklable error": lambda rng: throw(Unpicklable()),
    "bad result": lambda rng: (i for i in "ab"),
    "bomb result": lambda rng: Bomb(rng.choice((*ODD, MemoryError, LookupError))),
    "memory": too_little_memory,
    "kill": lambda rng: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda rng: os._exit(rng.randrange(256)),
    "crash": lambda rng: ctypes.string_at(0),
    "abort": lambda rng: os.abort(),
    "scribble": scribble,
    "cut": cut,
    "close some": close_some,
    "reopen": reopen,
    "mix up": mix_up,
    "fork return": fork_and_return,
    "fork raise": lambda rng: fork(lambda: throw(InTheChild()), with_libc=rng.random() < 0.5),
    "fork exit": lambda rng: fork(lambda: sys.exit(rng.randrange(3)), with_libc=rng.random() < 0.5),
    "fork in a thread": leave_a_thread,
    "flood": flood,
    "grandchild": grandchild,
    "odd state": odd_state,
    "hang": lambda rng: threading.Event().wait(10_000),
    "stop itself": lambda rng: os.kill(os.getpid(), signal.SIGSTOP),
}

BAD_ITEMS: dict[str, Callable[[random.Random, str], Any]] = {
    "unpicklable item": lambda rng, report: NotSendable(rng.choice((TypeError, *ODD)), report),
    "item breaks as it is read": lambda rng, report: Rebuilds(f"{report}; raise LookupError('not here')"),
    "item kills as it is read": lambda rng, report: Rebuilds(f"{report}; import os; os._exit(9)"),
}
"""Items that are damaged; each is given code that tells when its fault happens."""
