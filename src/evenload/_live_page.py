"""The live page of events that are being written, served by a process of its own."""

import contextlib
import os
import select
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from evenload._optional import require
from evenload._terminal import print_line

START_S = 60.0  # for its address, on a machine that does other things besides
LAST_WORDS_S = 8.0
_commands: list[None] = []


class LivePage:
    """A process that serves the live page of ``events``, a file that need not exist yet.

    No viewer can hold up the run. Its address is printed on standard error once it can be opened. The process
    ends with ``close``, or with this one. Raises MissingExtra without starlette or uvicorn.
    """

    def __init__(self, events: Path):
        import subprocess

        command = _command(events)
        # In a session of its own: Ctrl-C stops the run, and the page still shows how it ended.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._is_told = threading.Event()
        self._reader = threading.Thread(target=self._print_address, daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Let viewers have the end, and end the process."""
        import subprocess

        if self._process.stdin is not None:
            self._process.stdin.close()
        self._is_told.wait(START_S)  # a run may be over before its page has begun
        try:
            self._process.wait(LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(1.0)

    def _print_address(self) -> None:
        try:
            if self._process.stdout is not None:
                with self._process.stdout as lines:
                    for line in lines:
                        print_line(f"live page: {line.strip()}")
                        self._is_told.set()
        finally:
            self._is_told.set()


def _command(events: Path) -> list[str]:
    """Return the command of the process that serves the page. Raises MissingExtra."""
    for package in ("starlette", "uvicorn"):
        require(package, extra="watch", why="serving the live page")
    own = sys.flags  # a program that is kept from PYTHONPATH keeps its page from it, too
    isolation = {"-E": own.ignore_environment, "-s": own.no_user_site, "-P": own.safe_path}
    flags = [word for word, is_set in isolation.items() if is_set]
    return [sys.executable, *flags, "-m", "evenload", "dash", str(events.absolute()), "--until-eof"]


def start_apart() -> tuple[str, int] | None:
    """Start the live page of a program that this process is about to become, and print its address.

    It is no child of this process: a program that waits for all its children does not wait for it. Returns
    the events file, which the page deletes with its folder, and a descriptor: the page ends when no process
    has it open any more. None: the page has said why it cannot begin. Raises MissingExtra.
    """
    import subprocess
    import tempfile

    events = Path(tempfile.mkdtemp(prefix="evenload-")) / "events.jsonl"
    events.touch(mode=0o600)
    command = [*_command(events), "--passing"]
    (page_in, alive), (told, page_out) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            subprocess.Popen(command, stdin=page_in, stdout=page_out, start_new_session=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    for fd in (page_in, page_out):
        os.close(fd)
    line = b""
    while not line.endswith(b"\n") and select.select([told], [], [], START_S)[0]:
        if not (read := os.read(told, 4096)):
            break
        line += read
    os.close(told)
    if not line:
        os.close(alive)  # one that is only slow ends then
        print_line("warning: there is no live page")
        return None
    print_line(f"live page: {line.decode().strip()}")
    os.set_inheritable(alive, True)
    return str(events), alive


@contextlib.contextmanager
def left_to_command() -> Iterator[None]:
    """Inside the block, a command of ours runs: it opens a page of its own, or none."""
    _commands.append(None)
    try:
        yield
    finally:
        _commands.pop()


def is_left_to_command() -> bool:
    """Whether a command of ours runs in this process."""
    return bool(_commands)
