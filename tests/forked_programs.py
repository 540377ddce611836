"""Programs that are forked from a process which has imported what takes long: torch alone takes a second.

A program finds what a new interpreter would give it: its folder, its name, standard streams, a ``__main__``
of its own, an end with exit code, traceback and all that runs at exit. It differs in two things: modules that
it imports may be loaded already, and so they are in the fork servers of its executors, which are forked from
the same process. So what is claimed of the start of programs and workers is tested elsewhere.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import marshal
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from asked_program import MOST_BYTES, AskedProgram

MOST_FILES = 8
LIMIT_S = 1100.0
BOOT = """
import os, sys
sys.path[0] = os.path.dirname(sys.argv[1])
with open(sys.argv[1]) as file:
    code = compile(file.read(), "<string>", "exec")
exec(code)
"""
"""Lines of code that programs find below their own have no file, as if none of them were somebody's."""

COMMANDS = {
    "evenload": 'exec {asks} {folder}/evenload "$@"',
    "python": 'case "$1" in\n*.py) exec {asks} "$@" ;;\n*) exec {python} "$@" ;;\nesac',
}
"""What stands for commands of these names: shell scripts that ask for them to be forked."""


class Programs:
    """Starts programs, which are forked from one process; a context.

    environment  of the programs, and of shells in which ``evenload`` and ``python FILE.py`` are programs, too
    """

    def __init__(self, environment: Mapping[str, str]):
        self.environment = dict(environment)
        self._life = contextlib.ExitStack()
        self._to_load: tuple[str, ...] = ()

    def __enter__(self) -> "Programs":
        folder = Path(self._life.enter_context(tempfile.TemporaryDirectory(prefix="el", dir="/tmp")))
        self.address = str(folder / "asked")
        for name, script in COMMANDS.items():
            self._write_command(folder / name, script)
        self.environment["PATH"] = os.pathsep.join((str(folder), self.environment["PATH"]))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(self.address)
            listening.listen()
            server = subprocess.Popen(
                [sys.executable, "-c", BOOT, __file__, str(listening.fileno()), self.address],
                env=self.environment,
                pass_fds=[listening.fileno()],
                stdin=subprocess.PIPE,  # it ends when this does
            )
        self._life.callback(server.wait, timeout=LIMIT_S)
        assert server.stdin is not None
        self._life.callback(server.stdin.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._life.close()

    def _write_command(self, path: Path, script: str) -> None:
        python = shlex.quote(sys.executable)
        client = shlex.quote(str(Path(__file__).with_name("asked_program.py")))
        asks = f"{python} -I -S {client} {self.address}"
        folder = shlex.quote(str(Path(sys.executable).parent))
        path.write_text(f"#!/bin/sh\n{script.format(asks=asks, python=python, folder=folder)}\n")
        path.chmod(0o755)

    def load(self, *names: str) -> None:
        """Have these modules loaded before the next program is started, for all that come after."""
        self._to_load = names

    def start(self, path: Path, stdin: int, stdout: int, stderr: int) -> AskedProgram:
        """Run the file ``path`` in its folder, with these streams."""
        request = {
            "arguments": [path.name],
            "folder": str(path.parent),
            "environment": self.environment,
            "imports": self._to_load,
        }
        return AskedProgram(self.address, request, {0: stdin, 1: stdout, 2: stderr})


class Server:
    """Forks programs as long as somebody may ask. One whose asker goes before it has ended is killed."""

    def __init__(self, listening: socket.socket, address: str, life: int):
        self._starter = Starter(address)
        self._life = life
        self._ends: dict[socket.socket, int] = {}
        self._events = selectors.DefaultSelector()
        self._events.register(life, selectors.EVENT_READ)
        self._events.register(listening, selectors.EVENT_READ, partial(self._meet, listening))

    def serve(self) -> dict[str, Any] | None:
        """Return what is asked for in a program that is to be that, None when nobody will ask any more."""
        while True:
            key, _ = self._events.select()[0]  # what comes of one may concern the others
            if key.fd == self._life:
                return None
            request = key.data()
            if request is not None:
                return request

    def _meet(self, listening: socket.socket) -> None:
        asker, _ = listening.accept()
        self._events.register(asker, selectors.EVENT_READ, partial(self._fork, asker))

    def _fork(self, asker: socket.socket) -> dict[str, Any] | None:
        told, fds, _, _ = socket.recv_fds(asker, MOST_BYTES, MOST_FILES)
        if not told:
            self._events.unregister(asker)
            asker.close()
            return None
        request = marshal.loads(told)
        load(request.get("imports", ()), self._starter)
        gc.freeze()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries' threads, which have nothing to do
            pid = os.fork()
        if not pid:
            self._close()
            take_files(fds, request["numbers"])
            return request
        for fd in fds:
            os.close(fd)
        self._ends[asker] = os.pidfd_open(pid)
        self._events.register(self._ends[asker], selectors.EVENT_READ, partial(self._tell, asker, pid))
        self._events.modify(asker, selectors.EVENT_READ, partial(self._leave, asker, pid))
        self._send(asker, pid)
        return None

    def _tell(self, asker: socket.socket, pid: int) -> None:
        """Say how a program has ended. It stays a zombie while its asker may kill it."""
        self._forget_end(asker)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        self._send(asker, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)

    def _leave(self, asker: socket.socket, pid: int) -> None:
        self._events.unregister(asker)
        asker.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._forget_end(asker)

    def _forget_end(self, asker: socket.socket) -> None:
        end = self._ends.pop(asker, None)
        if end is not None:
            self._events.unregister(end)
            os.close(end)

    @staticmethod
    def _send(asker: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):  # it has gone
            asker.send(marshal.dumps(number))

    def _close(self) -> None:
        """Leave the server's files, in a program."""
        for key in list(self._events.get_map().values()):
            key.fileobj.close() if isinstance(key.fileobj, socket.socket) else os.close(key.fd)
        self._events.close()


class Starter:
    """What evenload's ``fork_server`` knows of ``subprocess``, in a forked program.

    imports  modules that the process at ``address`` loads before the first fork server
    """

    DEVNULL = subprocess.DEVNULL

    def __init__(self, address: str, imports: Sequence[str] = ()):
        self._address = address
        self._imports = tuple(imports)

    def Popen(self, command: list[str], **options: Any) -> Any:
        """Start a new interpreter, or a fork server, which is forked as programs are."""
        if command[-1] != "evenload-fork":
            return subprocess.Popen(command, **options)
        request = {
            "arguments": command[1:],
            "folder": "/",
            "environment": options["env"],
            "has_group": True,
            "imports": self._imports,
        }
        null = os.open(os.devnull, os.O_RDWR)
        try:
            fds = {**dict.fromkeys(range(3), null), **{fd: fd for fd in options["pass_fds"]}}
            return AskedProgram(self._address, request, fds)
        finally:
            os.close(null)


def load(names: Iterable[str], starter: Starter) -> None:
    """Import modules, if they can be: else the program will say what is wrong."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    fork_server = sys.modules.get("evenload.executor.worker.fork_server")
    if fork_server is not None:
        vars(fork_server)["subprocess"] = starter


def take_files(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Give open files their numbers, and Python's standard streams theirs."""
    apart = [fcntl.fcntl(fd, fcntl.F_DUPFD, max(numbers) + 1) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(apart, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115  for the life of the program
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def be(request: Mapping[str, Any]) -> None:
    """Become the program: ``FILE ARGUMENT ...`` or ``FLAG ... -c CODE ARGUMENT ...``, as Python is told."""
    if request.get("has_group"):
        os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
    main = sys.modules["__main__"] = ModuleType("__main__")
    first, *more = request["arguments"]
    if first.startswith("-"):  # the flags are those of the server, which was started with none
        at = request["arguments"].index("-c")
        code, name = request["arguments"][at + 1], "<string>"
        sys.argv = ["-c", *request["arguments"][at + 2 :]]
    else:
        path = Path(first).absolute()
        code, name = path.read_text(), str(path)
        main.__file__ = name
        sys.argv, sys.path[0] = [first, *more], str(path.parent)
    exec(compile(code, name, "exec"), vars(main))


def ends(request: Mapping[str, Any]) -> int:
    """Be the program to its end. Returns the exit code."""
    try:
        be(request)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)  # noqa: T201
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def leave(exit_code: int) -> None:
    """End as an interpreter does, except that modules are not taken apart: of torch that takes 0.3 s."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(exit_code & 0xFF)


if __name__ == "__main__":
    asked = Server(socket.socket(fileno=int(sys.argv[2])), sys.argv[3], life=0).serve()
    leave(ends(asked) if asked is not None else 0)
