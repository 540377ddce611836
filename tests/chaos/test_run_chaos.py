"""The script that runs programs: whoever ends it, by whatever signal, leaves no driver behind."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from chaos.evidence import RUNNER

SCRIPT = Path(__file__).parents[2] / "scripts" / "run_chaos.py"


def processes_of(runner: int) -> list[int]:
    """Living processes that a program of this runner has started."""
    mark, found = f"{RUNNER}={runner}".encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_driver_is_left_when_its_runner_is_ended(
    number: int, tmp_path: Path, until: Callable[[Callable[[], object], str], None]
) -> None:
    runner = subprocess.Popen(
        [sys.executable, str(SCRIPT), "--first", "40", "--faults", "99999", "--jobs", "2", "--go-on"],
        cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(lambda: processes_of(runner.pid), "a driver has begun")
        until(lambda: list(tmp_path.glob("evenload-chaos-*/evidence")), "and is at work")
        runner.send_signal(number)
        told, _ = runner.communicate(timeout=500)
    finally:
        runner.kill()
    until(lambda: not processes_of(runner.pid), "its drivers and their workers have ended")
    if number != signal.SIGKILL:
        assert runner.returncode == 130
        assert told.splitlines()[-1].endswith("programs with violations")
        assert not list(tmp_path.glob("evenload-chaos-*"))
