"""What the programs of pages are forked from: two processes, which the runner shares among its workers.

What pages import (torch, transformers, sentence-transformers) is then loaded once in a run.
"""

import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from forked_programs import Programs

ADDRESSES = "EVENLOAD_PAGES_FORKED_FROM"
"""In the environment of the runner's workers: where the two processes are to be asked."""


SHARED: list[Programs] = []
"""What this process has started for the workers."""


def share(life: ExitStack) -> None:
    """Start the two processes, for the workers that begin from now on; ``life`` ends them."""
    SHARED[:] = [life.enter_context(Programs(environment())) for _ in range(2)]
    os.environ[ADDRESSES] = json.dumps([programs.address for programs in SHARED])


@pytest.fixture(scope="session")
def all_programs() -> Iterator[tuple[Programs, Programs]]:
    """Quick ones and slow ones, apart: to fork a process which has loaded much takes longer."""
    quick_at, slow_at = json.loads(os.environ.get(ADDRESSES, "[null, null]"))
    with Programs(environment(), quick_at) as quick, Programs(environment(), slow_at) as slow:
        yield quick, slow


@functools.cache
def ray_folder() -> tempfile.TemporaryDirectory:
    """Where Ray notes its cluster: pages side by side must not join each other's. Sockets want it short."""
    return tempfile.TemporaryDirectory(prefix="el", dir="/tmp", ignore_cleanup_errors=True)


def environment() -> dict[str, str]:
    """The environment of pages' programs."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "RAY_TMPDIR": ray_folder().name,
        "NO_COLOR": "1",
        "COLUMNS": "110",
        "PYTHONWARNINGS": "error",
    }
