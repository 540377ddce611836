"""A program that another process is asked to fork; see ``forked_programs``.

    python -I -S asked_program.py ADDRESS /venv/bin/evenload plan job.yaml

As a command it stands for that program: it hands on its folder, environment and standard streams, and ends
with its exit code. It imports next to nothing, for it begins in the place of what takes long to import.
"""

import marshal
import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket

MOST_BYTES = 1 << 20
LIMIT_S = 4 * 3600.0  # a worker of the runner is such a program, too


class AskedProgram:
    """A program that was asked for. It is killed if this process ends before it.

    pid  its number; nobody else's before ``wait`` has returned
    """

    def __init__(self, address: str, request: dict, fds: dict[int, int]):
        """``fds`` are open files of this process, by the numbers that they have in the program."""
        self._asked = socket(AF_UNIX, SOCK_SEQPACKET)
        self._exit_code: int | None = None
        self._asked.connect(address)
        told = marshal.dumps({**request, "numbers": list(fds)})
        rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds.values())
        self._asked.sendmsg([told], [(SOL_SOCKET, SCM_RIGHTS, rights)])
        self.pid = self._told()

    def _told(self) -> int:
        told = self._asked.recv(MOST_BYTES)
        assert told, "the process that programs are forked from has ended"
        return marshal.loads(told)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal. Raises TimeoutError after so many seconds."""
        if self._exit_code is None:
            self._asked.settimeout(timeout)
            self._exit_code = self._told()
            self._asked.close()
        return self._exit_code

    def kill(self) -> None:
        if self._exit_code is None:
            os.kill(self.pid, 9)


def main(address: str, *arguments: str) -> int:
    request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    exit_code = AskedProgram(address, request, {0: 0, 1: 1, 2: 2}).wait(timeout=LIMIT_S)
    return exit_code if exit_code >= 0 else 128 - exit_code  # as a shell tells of a signal


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))
