"""What a worker takes over from the program beside its files: settings of the interpreter and of the process.

Docs: "The worker is your program".
"""

import contextlib
import gc
import importlib
import locale
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evenload.devices.interpreter_flags import interpreter_flags

CATEGORIES = ("LC_COLLATE", "LC_CTYPE", "LC_MONETARY", "LC_NUMERIC", "LC_TIME", "LC_MESSAGES")
OWN_SIGNALS = {signal.SIGKILL, signal.SIGSTOP, signal.SIGINT}  # Ctrl-C reaches all; the executor decides
Filter = tuple[str, str | None, str, str | None, int]  # of warnings; the category as "module:name"


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """The settings of a program, as they were when its executor was made; they can be pickled.

    flags    words for the command line of an interpreter that must behave the same
    values   by their name in ``SETTINGS``
    filters  of warnings, in their order
    """

    flags: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    filters: tuple[Filter, ...] = ()

    @classmethod
    def of_this_process(cls) -> "ProgramSettings":
        values = {}
        for name, (read, _) in SETTINGS.items():
            with contextlib.suppress(Exception):  # a locale that was unset meanwhile
                values[name] = read()
        return cls(tuple(interpreter_flags()), values, tuple(_filters()))

    def pack(self) -> bytes:
        """Pickle them for ``take_over``, with what a new process should inherit from this one now."""
        return pickle.dumps((self, _process_limits()))


def take_over(packed: bytes) -> tuple[Filter, ...]:
    """Give this process the settings of the program, as far as it can have them: it may be another machine's.

    Returns the filters for ``filter_warnings`` whose class is of a module that is not loaded yet.
    """
    settings, limits = pickle.loads(packed)
    for values, how in ((settings.values, SETTINGS), (limits, LIMITS)):
        for name, value in values.items():
            with contextlib.suppress(Exception):
                how[name][1](value)
    time.tzset()  # a fork of an older process has that one's
    warnings.resetwarnings()
    return filter_warnings(settings.filters, last=True)


def filter_warnings(filters: Iterable[Filter], *, last: bool = False) -> tuple[Filter, ...]:
    """Add filters of warnings before all others, or after them; returns those whose class is not loaded."""
    late = []
    for one in filters if last else reversed(tuple(filters)):
        action, message, category, module, line = one
        cls = _category(category)
        if cls is None:
            late.append(one)
        else:
            warnings.filterwarnings(action, message or "", cls, module or "", line, append=last)  # pyrefly: ignore
    return tuple(late if last else reversed(late))


def _filters() -> Iterable[Filter]:
    for action, message, category, module, line in warnings.filters:
        if isinstance(category, type):  # not several, which nobody could set by ``warnings.filterwarnings``
            name = f"{category.__module__}:{category.__qualname__}"
            yield action, _pattern(message), name, _pattern(module), line


def _pattern(text: Any) -> str | None:
    return text.pattern if isinstance(text, re.Pattern) else text


def _category(name: str) -> type[Warning] | None:
    module, _, path = name.partition(":")
    value: Any = sys.modules.get(module)
    for part in path.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, type) and issubclass(value, Warning) else None


def _signals() -> dict[int, bool]:
    """Whether each signal is ignored; without those that have a handler, which is the program's own."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals() - OWN_SIGNALS}
    plain = (signal.SIG_IGN, signal.SIG_DFL)
    return {int(number): one == signal.SIG_IGN for number, one in handlers.items() if one in plain}


def _set_signals(are_ignored: dict[int, bool]) -> None:
    now = _signals()
    for number, is_ignored in are_ignored.items():
        if now.get(number, is_ignored) != is_ignored:
            signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)


def _locales() -> dict[str, str]:
    return {name: locale.setlocale(getattr(locale, name)) for name in CATEGORIES if hasattr(locale, name)}


def _set_locales(names: dict[str, str]) -> None:
    for category, name in names.items():
        if locale.setlocale(getattr(locale, category)) != name:
            with contextlib.suppress(locale.Error):  # another machine may lack it
                locale.setlocale(getattr(locale, category), name)


def _start_method() -> str | None:
    """Return multiprocessing's start method if one was chosen."""
    multiprocessing = sys.modules.get("multiprocessing")
    return None if multiprocessing is None else multiprocessing.get_start_method(allow_none=True)


def _set_start_method(method: str | None) -> None:
    if method is not None:
        importlib.import_module("multiprocessing").set_start_method(method, force=True)


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "arguments": (lambda: list(sys.argv), lambda words: setattr(sys, "argv", words)),
    "recursion limit": (sys.getrecursionlimit, lambda n: sys.setrecursionlimit(n)),
    "digits of a number": (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    "bytecode": (
        lambda: (sys.dont_write_bytecode, sys.pycache_prefix),
        lambda two: (setattr(sys, "dont_write_bytecode", two[0]), setattr(sys, "pycache_prefix", two[1])),
    ),
    "garbage collection": (
        lambda: (gc.isenabled(), gc.get_threshold()),
        lambda two: (gc.set_threshold(*two[1]), (gc.enable if two[0] else gc.disable)()),
    ),
    "stack of threads": (threading.stack_size, threading.stack_size),
    "time limit of sockets": (socket.getdefaulttimeout, socket.setdefaulttimeout),
    "locale": (_locales, _set_locales),
    "ignored signals": (_signals, _set_signals),
    "blocked signals": (
        lambda: sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        lambda numbers: signal.pthread_sigmask(signal.SIG_SETMASK, numbers),
    ),
    "start of multiprocessing": (_start_method, _set_start_method),
}
"""How each setting is read and set."""


def _process_limits() -> dict[str, Any]:
    """Limits of the main thread: on Linux, threads have some of these for themselves."""
    return {name: read() for name, (read, _) in LIMITS.items()} if sys.platform == "linux" else {}


def _umask() -> int:
    with open("/proc/self/status") as status:  # asking by os.umask would change it for all threads
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))


def _resource_limits() -> dict[str, tuple[int, int]]:
    import resource

    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _set_resource_limits(limits: dict[str, tuple[int, int]]) -> None:
    import resource

    for name, pair in limits.items():
        with contextlib.suppress(OSError, ValueError):  # only root may raise the upper one
            if resource.getrlimit(getattr(resource, name)) != pair:
                resource.setrlimit(getattr(resource, name), pair)


LIMITS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "umask": (_umask, os.umask),
    "resource limits": (_resource_limits, _set_resource_limits),
    "niceness": (
        lambda: os.getpriority(os.PRIO_PROCESS, os.getpid()),
        lambda value: os.setpriority(os.PRIO_PROCESS, 0, value),
    ),
    "processors": (
        lambda: os.sched_getaffinity(os.getpid()),
        lambda numbers: os.sched_setaffinity(0, numbers),
    ),
}
"""What a new process inherits: not from the program where an older process forks it (Linux)."""
