"""Import the code of a job's stages as its workers would, in a process of its own, to see what fails."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from traceback import format_exception

from evenload.pipeline.dispatch.strand import ItemFailure
from evenload.pipeline.target import CodeTarget, load_target

MOST_S = 300.0
_PROGRAM = "from evenload.pipeline.worker.import_check import serve; serve()"


def import_faults(targets: Sequence[CodeTarget]) -> list[str]:
    """Return for each target why it cannot be imported, with file and line; "" where it can."""
    asked = json.dumps([[one.module, one.name, one.file, one.path] for one in targets], default=str)
    command = [sys.executable, "-c", _PROGRAM]
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, text=True, timeout=MOST_S, check=False
        )
        told, end = done.stdout, f"ended the process with exit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        told, end = (error.stdout or b"").decode(), f"takes more than {MOST_S:.0f} s"
    faults: list[str] = [json.loads(line) for line in told.splitlines()]
    if len(faults) < len(targets):
        faults += [f"importing it {end}", *[""] * len(targets)]
    return faults[: len(targets)]


def serve() -> None:
    """Import what stdin names, and answer with a line of JSON for each: the side of the other process."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the code prints goes to stderr
    for module, name, file, path in json.load(sys.stdin):
        fault = _fault_of(CodeTarget(module, name, Path(file) if file else None, tuple(map(Path, path))))
        with contextlib.suppress(OSError):
            answers.write(json.dumps(fault) + "\n")
            answers.flush()


def _fault_of(target: CodeTarget) -> str:
    try:
        load_target(target)
    except BaseException as error:  # an exit, too
        failure = ItemFailure("", type(error).__name__, str(error), "".join(format_exception(error)))
        return f"importing it raises {failure.text}"
    return ""
