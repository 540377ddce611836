"""Programs of the pages are forked, for all tests of a worker from the same two processes."""

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_programs import Programs


@pytest.fixture(scope="session")
def all_programs() -> Iterator[tuple[Programs, Programs]]:
    """Quick ones and slow ones, apart: to fork a process which has loaded much takes longer."""
    with Programs(environment()) as quick, Programs(environment()) as slow:
        yield quick, slow


@functools.cache
def ray_folder() -> tempfile.TemporaryDirectory:
    """Where Ray notes its cluster: pages side by side must not join each other's. Sockets want it short."""
    return tempfile.TemporaryDirectory(prefix="el", dir="/tmp", ignore_cleanup_errors=True)


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "RAY_TMPDIR": ray_folder().name,
        "NO_COLOR": "1",
        "COLUMNS": "110",
        "PYTHONWARNINGS": "error",
    }
