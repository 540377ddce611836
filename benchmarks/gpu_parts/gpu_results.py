"""What ``benchmarks/gpu.py`` writes: one file with all parts, whole at any time, whatever the parts did."""

import datetime
import itertools
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpu_parts.bounded_process import Ended

FORMAT, VERSION = "evenload-gpu", 1
MOST_BYTES = 1_000_000  # of a part's page
MOST_ROWS, MOST_NOTES, MOST_TEXT = 2000, 200, 2000
MOST_COLUMNS, MOST_NAME, MOST_NESTED = 60, 60, 50
MOST_REPORTS, MOST_REPORT = 2, 8_000_000  # and bytes of one
PACKAGES = (
    "torch", "triton", "numpy", "numba", "llvmlite", "transformers", "diffusers", "accelerate", "safetensors",
    "jax", "wgpu", "cloudpickle", "psutil",
)  # fmt: skip
GPU_FIELDS = "name,driver_version,memory.total,compute_cap,mig.mode.current,clocks.max.sm,power.limit"
GOOD = ("ran", "not here")
Page = dict[str, Any]
_NAME = re.compile(r"[A-Za-z][\w .%/+-]*")


def keep_reports(written: Path, names: Iterable[str], out: Path) -> None:
    """Copy the reports of the first parts that wrote one, ``NAME.html``, into ``out``."""
    reports = [path for name in names if (path := written / f"{name}.html").is_file()]
    for path in reports[:MOST_REPORTS]:
        if path.stat().st_size <= MOST_REPORT:
            shutil.copyfile(path, out / path.name)


def put_aside(out: Path) -> str:
    """Move what an earlier run left in ``out`` into a folder there; says so, "" if there was nothing."""
    found = (out / "results.json", out / "log.txt", *out.glob("*.html"))
    left = [path for path in found if path.is_file()]
    if not left:
        return ""
    folder = next(one for at in itertools.count(1) if not (one := out / f"earlier-{at}").exists())
    folder.mkdir()
    for path in left:
        path.rename(folder / path.name)
    return f"what an earlier run left in {out} is in {folder.name}"


class Results:
    """The pages of all parts so far, in ``out/results.json``.

    OSError is raised if nothing can be written there at first. A disk that is full later is said, and tried
    again with each part.
    """

    def __init__(self, out: Path, minutes: float, pretended: bool) -> None:
        self._path = out / "results.json"
        self._page: Page = {
            "format": FORMAT,
            "version": VERSION,
            "pretended": pretended,
            "minutes": minutes,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": said_by("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
            "gpu": said_by("nvidia-smi", f"--query-gpu={GPU_FIELDS}", "--format=csv"),
            "machine": {
                "system": platform.platform(),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
            },
            "versions": {name: found for name in PACKAGES if (found := version_of(name))},
            "notes": [],
            "parts": {},
        }
        self._draft()

    def note(self, text: str) -> None:
        """Keep a sentence about the run as a whole, and say it."""
        self._page["notes"].append(text[:MOST_TEXT])
        self._write()
        print(text, file=sys.stderr, flush=True)

    def add(self, page: Page) -> None:
        """Take a part's page, as ``page_of`` returns it."""
        self._page["parts"][page["part"]] = page
        self._write()

    def ended(self, names: list[str]) -> int:
        """Say what did not run; returns the exit code."""
        pages = {name: self._page["parts"].get(name, {"state": "not begun", "rows": []}) for name in names}
        for name, page in pages.items():
            print(f"{name:10} {page['state']}, {len(page['rows'])} rows")
        wrong = [f"{name}: {page['state']}" for name, page in pages.items() if page["state"] not in GOOD]
        if wrong:
            print(f"did not run: {'; '.join(wrong)}", file=sys.stderr)
        return 1 if wrong or not self._write() else 0

    def _write(self) -> bool:
        try:
            self._draft()
        except OSError as error:
            print(f"{self._path} could not be written: {error}", file=sys.stderr, flush=True)
            return False
        return True

    def _draft(self) -> None:
        draft = self._path.with_name("results.json.draft")
        draft.write_text(json.dumps(self._page, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, self._path)


def page_of(path: Path, name: str, ended: Ended) -> Page:
    """A part's page as it is on disk, bounded; of one that did not end by itself, what it had written."""
    page: Page = {
        "part": name,
        "state": "failed",
        "rows": [],
        "notes": [],
        "seconds": round(ended.seconds, 1),
    }
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it wrote more than {MOST_BYTES} bytes")
        page |= fields_of(json.loads(content))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        page["notes"].append(f"its page is not whole: {type(error).__name__}: {error}"[:MOST_TEXT])
    if ended.why:
        page["notes"].append(ended.why)
        page["state"] = "cut short" if ended.code is None or ended.code < 0 else "failed"
    return page


def fields_of(found: Page) -> Page:
    """Those fields of a page that a part may write, each of its kind and bounded. Raises if it is no page."""
    return {
        "state": found["state"] if found["state"] in (*GOOD, "failed") else "cut short",
        "pretended": bool(found.get("pretended")),
        "rows": [value_of(row) for row in found["rows"] if is_row(row)][:MOST_ROWS],
        "notes": [text_of(note) for note in found["notes"]][:MOST_NOTES],
        "failed": [text_of(one) for one in found.get("failed", [])][:MOST_NOTES],
    }


def is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("what"), str)
        and len(row) <= MOST_COLUMNS
        and all(len(key) <= MOST_NAME and _NAME.fullmatch(key) for key in row)
    )


def value_of(value: Any, depth: int = 0) -> Any:
    """A figure, a text, or a row or a list of them; all else becomes None."""
    if isinstance(value, list) and depth < 3:
        return [value_of(one, depth + 1) for one in value[:MOST_NESTED]]
    if isinstance(value, dict) and depth < 3:
        some = [(k, v) for k, v in value.items() if len(k) <= MOST_NAME and _NAME.fullmatch(k)]
        return {key: value_of(one, depth + 1) for key, one in some[: MOST_NESTED if depth else MOST_COLUMNS]}
    return text_of(value) if isinstance(value, str) else number_of(value)


def number_of(value: Any) -> Any:
    """A finite number or a truth; None for all else."""
    if isinstance(value, bool):
        return value
    is_usual = isinstance(value, int | float) and abs(value) < 1e30 and math.isfinite(value)
    return value if is_usual else None


def text_of(value: Any) -> str:
    """``value`` as text that can be written: halves of characters become question marks."""
    return value.strip()[:MOST_TEXT].encode(errors="replace").decode() if isinstance(value, str) else ""


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
