"""What ``benchmarks/gpu.py`` writes: one file with all parts, whole at any time, whatever the parts did."""

import datetime
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpu_parts.bounded_process import Ended

FORMAT, VERSION = "evenload-gpu", 1
MOST_BYTES = 1_000_000  # of a part's page
MOST_ROWS, MOST_NOTES, MOST_TEXT = 2000, 200, 2000
PACKAGES = ("torch", "triton", "numpy", "numba", "llvmlite", "transformers", "diffusers", "jax", "wgpu")
GOOD = ("ran", "not here")
Page = dict[str, Any]


class Results:
    """The pages of all parts so far, in ``out/results.json``."""

    def __init__(self, out: Path, minutes: float, pretended: bool) -> None:
        self._path = out / "results.json"
        self._page: Page = {
            "format": FORMAT,
            "version": VERSION,
            "pretended": pretended,
            "minutes": minutes,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": said_by("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
            "gpu": said_by("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
            "machine": {"system": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()},
            "versions": {name: found for name in PACKAGES if (found := version_of(name))},
            "notes": [],
            "parts": {},
        }
        self._write()

    def note(self, text: str) -> None:
        if text:
            self._page["notes"].append(text[:MOST_TEXT])
            self._write()
            print(text, file=sys.stderr, flush=True)

    def add(self, page: Page) -> None:
        """Take a part's page, as ``page_of`` returns it."""
        self._page["parts"][page["part"]] = page
        self._write()

    def ended(self, names: list[str]) -> int:
        """Say what did not run; returns the exit code."""
        states = {name: self._page["parts"].get(name, {}).get("state", "not begun") for name in names}
        wrong = [f"{name}: {state}" for name, state in states.items() if state not in GOOD]
        for name, state in states.items():
            n_rows = len(self._page["parts"].get(name, {}).get("rows", []))
            print(f"{name:10} {state}, {n_rows} rows")
        if wrong:
            print(f"did not run: {'; '.join(wrong)}", file=sys.stderr)
        return 1 if wrong else 0

    def _write(self) -> None:
        draft = self._path.with_name("results.json.draft")
        draft.write_text(json.dumps(self._page, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, self._path)


def page_of(path: Path, name: str, ended: Ended) -> Page:
    """A part's page as it is on disk, bounded; of one that did not end by itself, what it had written."""
    page: Page = {"part": name, "state": "failed", "rows": [], "notes": [], "seconds": round(ended.seconds, 1)}
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it wrote more than {MOST_BYTES} bytes")
        found = json.loads(content)
        rows = [row for row in found["rows"] if isinstance(row, dict)][:MOST_ROWS]
        notes = [str(note)[:MOST_TEXT] for note in found["notes"]][:MOST_NOTES]
        state = found["state"] if found["state"] in (*GOOD, "failed") else "cut short"
        page |= {"rows": rows, "notes": notes, "state": state, "pretended": bool(found.get("pretended"))}
        page["failed"] = [str(one)[:MOST_TEXT] for one in found.get("failed", [])][:MOST_NOTES]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        page["notes"].append(f"its page is not whole: {type(error).__name__}: {error}"[:MOST_TEXT])
    if ended.why:
        page["notes"].append(ended.why)
        page["state"] = "cut short" if ended.code is None or ended.code < 0 else "failed"
    return page


def said_by(*command: str) -> str | None:
    """The first lines that a program prints, None if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip()[:MOST_TEXT] or None if done.returncode == 0 else None


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
