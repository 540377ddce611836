"""Programs that are forked from a process which has imported what takes long: torch alone takes a second.

A program finds what a new interpreter would give it: its folder, its name, standard streams, a ``__main__``
of its own, an end with exit code, traceback and all that runs at exit. It differs in one thing: modules that
it imports may be loaded already. So what is claimed of the start of a program is tested elsewhere.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

MOST_BYTES = 1 << 20
LIMIT_S = 1100.0


class Programs:
    """Starts programs, one at a time; a context. They are forked from one process."""

    def __init__(self, environment: Mapping[str, str]):
        self._environment = dict(environment)
        self._server: subprocess.Popen | None = None
        self._requests: socket.socket | None = None

    def start(
        self, path: Path, imports: Sequence[str], stdin: int, stdout: int, stderr: int
    ) -> "ForkedProgram":
        """Run the file ``path`` in its folder, with these modules loaded and these streams."""
        requests = self._connect()
        told = json.dumps({"path": str(path), "imports": list(imports)}).encode()
        socket.send_fds(requests, [told], [stdin, stdout, stderr])
        return ForkedProgram(requests)

    def _connect(self) -> socket.socket:
        if self._requests is None:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._requests.settimeout(LIMIT_S)
            with theirs:
                self._server = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())],
                    env=self._environment,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
        return self._requests

    def __enter__(self) -> "Programs":
        return self

    def __exit__(self, *_: object) -> None:
        if self._requests is not None and self._server is not None:
            self._requests.close()
            self._server.wait(timeout=LIMIT_S)


class ForkedProgram:
    """A program that was started, as seen through the socket of the process that forks."""

    def __init__(self, requests: socket.socket):
        self._requests = requests
        self._pid = json.loads(self._told())
        self._exit_code: int | None = None

    def _told(self) -> bytes:
        told = self._requests.recv(MOST_BYTES)
        assert told, "the process that programs are forked from has ended"
        return told

    def wait(self, timeout: float) -> int:
        """Return the exit code, negative for a signal. Raises TimeoutError after so many seconds."""
        if self._exit_code is None:
            self._requests.settimeout(timeout)
            self._exit_code = json.loads(self._told())
        return self._exit_code

    def kill(self) -> None:
        if self._exit_code is None:
            os.kill(self._pid, signal.SIGKILL)  # its number stays its own until the next one is asked for


def serve(requests: socket.socket) -> Path | None:
    """Fork a program for each request. Returns its path in the program, None when there are no more."""
    pid = 0
    while True:
        told, fds, _, _ = socket.recv_fds(requests, MOST_BYTES, 3)
        if pid:
            os.waitpid(pid, 0)  # not before: who asks may still kill it, and the number must be its own
        if not told:
            return None
        asked = json.loads(told)
        for name in asked["imports"]:
            with contextlib.suppress(Exception):  # the program will say what is wrong
                importlib.import_module(name)
        gc.freeze()
        pid = os.fork()
        if not pid:
            requests.close()
            _take_streams(fds)
            return Path(asked["path"])
        for fd in fds:
            os.close(fd)
        requests.send(json.dumps(pid).encode())
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        exit_code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        requests.send(json.dumps(exit_code).encode())


def _take_streams(fds: Sequence[int]) -> None:
    for fd, standard in zip(fds, range(3), strict=True):
        os.dup2(fd, standard)
        os.close(fd)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115  for the life of the program
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def run(path: Path) -> None:
    """Become the program."""
    os.chdir(path.parent)
    sys.argv, sys.path[0] = [path.name], str(path.parent)
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), vars(main))


if __name__ == "__main__":
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    if program is not None:
        run(program)
