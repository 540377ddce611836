"""One part of ``benchmarks/gpu.py``: a program of its own that measures one thing and writes row after row.

    python benchmarks/gpu_parts/NAME.py --out FILE.json --seconds 60 [--pretend]

Every row is on disk before the next is measured, so a part that hangs or is killed keeps what it had.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

MOST_WORDS = 2000  # characters of an error that are kept
PR_SET_PDEATHSIG = 1


class NotHere(Exception):
    """What a part needs and this machine does not have: said, and no failure."""


class Part:
    """What a part has measured so far, on which device, and how long it may go on.

    pretend  tiny sizes, on the CPU or in Triton's interpreter, to see that all is whole: no figure counts
    device   "cuda:0", or "cpu" if it only pretends
    """

    def __init__(self, name: str, out: Path, seconds: float, pretend: bool) -> None:
        self.name, self.out, self.pretend = name, out, pretend
        self.device = "cpu" if pretend else "cuda:0"
        self._began, self._until = time.monotonic(), time.monotonic() + seconds
        self._page: dict[str, Any] = {
            "part": name,
            "pretended": pretend,
            "state": "began",
            "rows": [],
            "notes": [],
        }
        self._write()

    @property
    def report(self) -> Path:
        """Where a part may write the report of a run, as a page; two of all parts' are kept."""
        return self.out.with_suffix(".html")

    @property
    def left_s(self) -> float:
        """Seconds until the part should be done; the runner kills it some seconds later."""
        return self._until - time.monotonic()

    def row(self, what: str, **columns: Any) -> None:
        """Add a measured row: what was measured, its figures, and those of its peer or limit beside them."""
        self._page["rows"].append({"what": what, **columns})
        self._write()
        print(f"{self.name}: {what}: {columns}", flush=True)

    def note(self, text: str) -> None:
        """Add a sentence that belongs to the rows: what could not be tried, and why."""
        self._page["notes"].append(text[:MOST_WORDS])
        self._write()
        print(f"{self.name}: {text}", flush=True)

    def tried(self, what: str, measure: Callable[[], None]) -> None:
        """Measure one piece; if it raises, say so and go on with the next."""
        if self.left_s <= 0:
            self.note(f"{what}: no time left")
            return
        try:
            measure()
        except NotHere as error:
            self.note(f"{what}: not here: {error}")
        except Exception as error:
            self._page.setdefault("failed", []).append(what)
            self.note(f"{what}: {type(error).__name__}: {error}")
            traceback.print_exc()

    def ended(self, state: str) -> None:
        """Write how the part ended: "ran", "not here" or "failed"."""
        self._page |= {"state": state, "seconds": round(time.monotonic() - self._began, 3)}
        self._write()

    @property
    def has_failed(self) -> bool:
        return bool(self._page.get("failed"))

    def _write(self) -> None:
        draft = self.out.with_name(f"{self.out.name}.draft")
        draft.write_text(json.dumps(self._page, indent=1, default=str) + "\n", encoding="utf-8")
        os.replace(draft, self.out)


def sharing(part: Part, n_workers: int) -> list[Any]:
    """The GPU as so many devices, each with its part of the memory; CPU slots where this only pretends."""
    from evenload.devices import DevicePool

    if part.pretend:
        return list(DevicePool.find(f"cpu*{n_workers}"))
    with DevicePool.find("cuda:0") as pool:
        (gpu,) = pool
    memory = None if gpu.memory_bytes is None else gpu.memory_bytes // n_workers
    return [replace(gpu, id=f"cuda:{number}", memory_bytes=memory) for number in range(n_workers)]


def main(measure: Callable[[Part], None]) -> None:
    """Run a part as a program. Exit code: 0 if it ran or what it needs is not here, 1 if something failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pretend", action="store_true")
    given = parser.parse_args()
    with contextlib.suppress(OSError, AttributeError):  # a runner that is killed takes the part with it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    part = Part(Path(sys.argv[0]).stem, given.out, given.seconds, given.pretend)
    try:
        measure(part)
        state = "failed" if part.has_failed else "ran"
    except NotHere as error:
        part.note(f"not here: {error}")
        state = "not here"
    except Exception as error:
        part.note(f"{type(error).__name__}: {error}")
        traceback.print_exc()
        state = "failed"
    part.ended(state)
    sys.exit(1 if state == "failed" else 0)
