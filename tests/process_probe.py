"""What a process is, row by row, as a task could notice it; and a program that asks its workers, too.

Asks Python, the C library and the kernel, and nothing of evenload's.
"""

import contextlib
import decimal
import faulthandler
import gc
import importlib
import json
import locale
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]
STATUS = ("Umask", "NoNewPrivs", "Seccomp", "CapEff", "Groups", "Uid", "Gid", "SigBlk")
HOOKS = ("excepthook", "displayhook", "unraisablehook", "breakpointhook")


def rows(_: Any = None) -> dict[str, Any]:
    """All rows, as JSON has them."""
    found: dict[str, Any] = dict(_of_interpreter())
    found |= dict(_of_process())
    found |= dict(_of_libraries())
    return json.loads(json.dumps(found, sort_keys=True, default=repr))


def _of_interpreter() -> Iterator[tuple[str, Any]]:
    for name in dir(sys.flags):
        if not name.startswith("_") and isinstance(getattr(sys.flags, name), int):
            yield f"sys.flags.{name}", int(getattr(sys.flags, name))
    yield "sys.warnoptions", sys.warnoptions
    yield "sys.argv", sys.argv
    yield "sys.orig_argv", sys.orig_argv
    yield "sys.path", [entry or os.getcwd() for entry in sys.path]
    yield "sys.executable, sys.prefix", (sys.executable, sys.prefix, sys.base_prefix)
    yield "sys.meta_path", [getattr(one, "__name__", type(one).__name__) for one in sys.meta_path]
    yield "recursion limit", sys.getrecursionlimit()
    yield "digits of a number", sys.get_int_max_str_digits()
    yield "switch interval", sys.getswitchinterval()
    yield "bytecode", (sys.dont_write_bytecode, sys.pycache_prefix)
    yield "garbage collection", (gc.isenabled(), gc.get_threshold())
    yield "hooks", [getattr(getattr(sys, name), "__name__", "") for name in HOOKS]
    yield "hash of a text", hash("a text")
    yield "encodings", (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), _read_encoding())
    yield "encoding of sys.stdout", (sys.stdout.encoding, sys.stdout.errors)
    yield "__main__", getattr(sys.modules["__main__"], "__file__", None)
    yield "files of modules", {name: _file(module) for name, module in sorted(sys.modules.items())}
    yield "loaded modules", sorted(sys.modules)


def _read_encoding() -> tuple[str, str]:
    with open(os.devnull) as file:
        return file.encoding, locale.getpreferredencoding(False)


def _file(module: Any) -> str | None:
    return getattr(module, "__file__", None)


def _of_process() -> Iterator[tuple[str, Any]]:
    yield "process", os.getpid()
    yield "process group", os.getpgrp()
    yield "session", os.getsid(0)
    yield "threads", sorted(thread.name for thread in threading.enumerate())
    yield "working folder", os.getcwd()
    yield "environment", dict(os.environ)
    for name, value in _status().items():
        yield f"status: {name}", value
    for name in LIMITS:
        yield f"limit: {name}", resource.getrlimit(getattr(resource, name))
    yield "niceness", os.getpriority(os.PRIO_PROCESS, 0)
    yield "processors", sorted(os.sched_getaffinity(0))
    handlers = {one.name: signal.getsignal(one) for one in signal.Signals}
    yield "ignored signals", sorted(name for name, one in handlers.items() if one == signal.SIG_IGN)
    yield (
        "handlers of signals",
        {
            name: repr(getattr(one, "__name__", one))
            for name, one in handlers.items()
            if one not in (signal.SIG_IGN, signal.SIG_DFL)
        },
    )
    yield "standard input", _identity(0)
    yield "standard output", _identity(1)
    yield "faulthandler", faulthandler.is_enabled()


def _status() -> dict[str, str]:
    lines = (line.split(":", 1) for line in Path("/proc/thread-self/status").read_text().splitlines())
    return {name: value.strip() for name, value in lines if name in STATUS}


def _identity(fd: int) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        return os.fstat(fd).st_dev, os.fstat(fd).st_ino
    return None


def _of_libraries() -> Iterator[tuple[str, Any]]:
    yield "warnings", [_fate(*sample) for sample in WARNINGS]
    yield "locale", {name: locale.setlocale(getattr(locale, name)) for name in _categories()}
    yield "time zone", (time.tzname, time.timezone, time.strftime("%H", time.localtime(0)))
    yield "errors of numpy", _numpy_errors()
    yield "decimal", str(decimal.getcontext().prec) + decimal.getcontext().rounding
    yield "rounding of floats", [(1 + 3 * 2**-54).hex(), (0.1 + 0.2).hex(), round(2.5)]
    yield "random numbers", random.getstate()[1][:3]
    yield "multiprocessing", multiprocessing.get_start_method()
    yield "stack of threads", threading.stack_size()
    yield "time limit of sockets", socket.getdefaulttimeout()


def _numpy_errors() -> dict[str, str]:
    import numpy

    return numpy.geterr()


def _categories() -> list[str]:
    return [name for name in dir(locale) if name.startswith("LC_") and name != "LC_ALL"]


def _fate(category: type[Warning], text: str, module: str, line: int) -> str:
    with warnings.catch_warnings(record=True) as shown:
        try:
            warnings.warn_explicit(text, category, f"{module}.py", line, module, {})
        except category:
            return "raised"
    return "shown" if shown else "ignored"


OWN: ContextVar[str] = ContextVar("own")


class OwnWarning(UserWarning):
    """A class of warnings of the program's own module."""


WARNINGS = [
    (category, text, module, line)
    for category in (
        OwnWarning,
        UserWarning,
        DeprecationWarning,
        ResourceWarning,
        BytesWarning,
    )
    for text, module, line in (("mine", "mymodule", 3), ("other", "mymodule", 4), ("other", "__main__", 3))
]


def _change_everything(folder: Path) -> None:
    """Set what a program may set, before it makes an executor."""
    sys.setrecursionlimit(1234)
    sys.set_int_max_str_digits(5000)
    sys.setswitchinterval(0.25)
    sys.pycache_prefix = str(folder / "cache")
    gc.set_threshold(500, 7, 9)
    gc.disable()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
    threading.stack_size(1 << 20)
    socket.setdefaulttimeout(77.0)
    os.environ["TZ"] = "JST-9"
    time.tzset()
    locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")
    warnings.filterwarnings("error", "mine", OwnWarning, "my.*", 3)
    warnings.simplefilter("ignore", ResourceWarning)
    multiprocessing.set_start_method("spawn")
    random.seed(3)
    importlib.import_module("numpy").seterr(over="raise", under="warn")
    sys.argv.append("--an-argument-of-its-own")


def _change_late(folder: Path) -> None:
    """Set what a new process inherits, when the workers' server has been running for long."""
    os.umask(0o027)
    os.environ["SET_LATE"] = "yes"
    os.chdir(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 7, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def main(kinds: list[str], changes: str, folder: Path) -> None:
    """Print, as JSON, the rows of this program and of a worker of each kind: "inline", "process:spawn"..."""
    import evenload

    seen = {}
    if changes != "none":
        _change_everything(folder)
    for kind in kinds:
        backend, start = kind.split(":") if ":" in kind else (kind, None)
        if changes != "none":
            decimal.getcontext().prec = 11
        with evenload.Executor("cpu*1", backend=backend, start=start) as executor:
            list(executor.map(rows, [0]))
            if changes != "none" and backend == "process":
                _change_late(folder)
            (there,) = executor.map(rows, [0], fresh=backend != "inline")
        seen[kind] = {"program": rows(), "worker": there}
    sys.stdout.write(json.dumps(seen) + "\n")
