"""Running a slow or unsafe probe in a child process, with a cache of its answer.

Loading a graphics driver takes a third of a second and may print, hang or crash.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from evenload._private_files import read_own, write_own
from evenload._user_folders import user_cache
from evenload.devices.interpreter_flags import isolation_flags

MAX_AGE_S = 24 * 3600
TIMEOUT_S = 60
MOST_BYTES = 1 << 20
BOOT = "import sys; sys.path[:] = {path!a}; import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
# What can make the same script answer differently.
ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_ADD_DRIVER_FILES",
    "LD_LIBRARY_PATH",
    "DISPLAY",
    "WAYLAND_DISPLAY",
)
PREFIXES = ("WGPU_", "MESA_", "LIBGL_", "LP_", "GALLIUM_")


class ChildFailed(Exception):
    """A child process died, hung, or did not print JSON on its last line."""


def ask_child(script: Path, *, depends_on: Iterable[Path] = (), refresh: bool = False) -> Any:
    """Return the JSON value that ``script`` prints last, from the cache if it is valid.

    The cache is valid for one boot, one environment, and a day at most. ``depends_on``: files and folders,
    such as the package asked, whose path and time of change count. Raises ChildFailed with the child's last
    line of output.
    """
    key = _key(script, depends_on)
    cached = user_cache() / f"{script.stem}-{key}.json"
    if not refresh:
        answer = _recall(cached)
        if answer is not None:
            return answer
    answer = _run(script)
    _remember(cached, answer)
    return answer


def _run(script: Path) -> Any:
    # Not as a script: its own folder holds files named like the packages that it imports.
    boot = BOOT.format(path=[entry for entry in sys.path if isinstance(entry, str) and entry])
    try:
        done = subprocess.run(
            [sys.executable, *isolation_flags(), "-c", boot, str(script)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ChildFailed(f"no answer in {TIMEOUT_S} s: a driver hangs") from error
    if done.returncode:
        last_words = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise ChildFailed(": ".join([f"the probe's process ended with {how}", *last_words]))
    try:
        return json.loads(done.stdout.decode().strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise ChildFailed("the probe's process said nothing that could be read") from error


def _key(script: Path, depends_on: Iterable[Path]) -> str:
    facts = [_boot(), *(f"{path}@{_changed(path)}" for path in (script, *depends_on))]
    facts += [f"{n}={v}" for n, v in sorted(os.environ.items()) if n in ENVIRONMENT or n.startswith(PREFIXES)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil

        return str(round(psutil.boot_time(), -1))


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _recall(cached: Path) -> Any:
    try:
        row = json.loads(read_own(cached, "devices that were found", MOST_BYTES))
        return row["answer"] if _is_fresh(row["unix_s"]) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # no cache, or a damaged one: the child is asked again


def _remember(cached: Path, answer: Any) -> None:
    try:
        cached.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in cached.parent.glob("*_child-*.json"):
            if not _is_fresh(old.stat().st_mtime):
                old.unlink(missing_ok=True)
        write_own(cached, json.dumps({"unix_s": time.time(), "answer": answer}).encode())
    except OSError:
        return  # without a cache the child is asked each time


def _is_fresh(unix_s: float) -> bool:
    return 0 <= time.time() - unix_s < MAX_AGE_S
