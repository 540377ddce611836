"""Commands as a person or a script types them: in this process, or in a terminal of their own."""

import os
import pty
import sys
from contextlib import suppress

import pytest

from evenload.cli import main


@pytest.fixture
def command(capsys):
    """``command("devices", "--json")`` gives the exit code, stdout and stderr of the command."""

    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words)])
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def in_a_terminal():
    """``in_a_terminal("-m", "evenload", "top")``: the exit code, and all that Python writes there.

    keys   what is typed as soon as ``after`` stands there
    """

    def run(*words, keys=b"", after=b"", **environ):
        pid, master = pty.fork()
        if not pid:
            os.execve(sys.executable, [sys.executable, *words], {**os.environ, **environ})
        said = b""
        with suppress(OSError):  # how Linux says that the program has closed its end
            while piece := os.read(master, 1 << 16):
                said += piece
                if keys and after in said:
                    os.write(master, keys)
                    keys = b""
        os.close(master)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode("utf-8", "replace")

    return run
