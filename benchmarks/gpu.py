"""Measure all of evenload on one GPU, within so many minutes, and keep what was measured whatever happens.

    python benchmarks/gpu.py --minutes 9 --out FOLDER [--wheels FOLDER] [--only moe,executor] [--skip wgsl]
    python benchmarks/gpu.py --pretend --out FOLDER        # tiny, without a GPU: is every part whole?
    python benchmarks/gpu.py --list

Nothing is installed and no network is needed: the source tree is used as it is. Parts run one by one,
the most important first, each in a process of its own with a share of the time; one that fails or hangs is
noted, and the next goes on. FOLDER holds results.json, written anew after each part, log.txt, and two
reports. Exit code: 0 if all ran, 1 with a list of those that did not.
"""

import argparse
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_parts.bounded_process import Ended, run_bounded
from gpu_parts.gpu_results import Results, keep_reports, page_of, put_aside, version_of

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "gpu_parts"
MOST_SAID = 300  # characters of why a wheel was refused
TOLD = 0.9  # of its time a part is told of; the rest is to write and to end
LEAST_S = 5.0  # a part that would have less is not begun
LAST_S = 5.0  # of the whole time, for the end


@dataclass(frozen=True)
class Measured:
    """A part: its file in ``gpu_parts``, its share of the time, and modules without which it is not begun."""

    name: str
    share: float
    says: str
    needs: tuple[str, ...] = ("torch",)


PARTS = (  # in order of importance
    Measured("machine", 2, "devices, memory, clocks and load, beside what NVML and torch say", ("psutil",)),
    Measured(
        "executor", 4, "a torch module over the GPU and CPUs, out of memory, a worker killed in a kernel",
        ("torch", "cloudpickle", "psutil"),
    ),
    Measured(
        "moe", 5, "experts routed, mapped and cloned by Triton in CUDA graphs",
        ("torch", "triton", "psutil", "click"),
    ),
    Measured(
        "clients", 6, "small trainings: serial, fused, compiled, streams, processes",
        ("torch", "psutil", "click"),
    ),
    Measured(
        "pipelines", 5, "edit and score with models of several GB: memory and time predicted and measured",
        ("torch", "transformers", "safetensors", "PIL", "pydantic", "yaml", "cloudpickle", "psutil", "click"),
    ),
    Measured(
        "adapters", 3, "LoRAs of one frozen base: fused beside in turn",
        ("torch", "transformers", "psutil", "click"),
    ),
    Measured("training", 3, "two throttled ranks on one GPU, step over bound"),
    Measured(
        "wgsl", 4, "trees, sums, transforms and proofs through Vulkan, beside the CPU",
        ("wgpu", "llvmlite", "psutil", "click"),
    ),
)  # fmt: skip


def chosen(only: Sequence[str], skip: Sequence[str]) -> list[Measured]:
    """The parts that were asked for. Raises SystemExit for a name that there is not, or if none is left."""
    known = [part.name for part in PARTS]
    if unknown := sorted({*only, *skip} - {*known}):
        raise SystemExit(f"no part is called {', '.join(unknown)[:200]!r}; there are {', '.join(known)}")
    found = [part for part in PARTS if (not only or part.name in only) and part.name not in skip]
    if not found:
        raise SystemExit("no part is left: --skip names all that --only asks for")
    return found


def share_of_time(left_s: float, parts: Sequence[Measured]) -> float:
    """Seconds for the first of the parts that are left: what earlier ones left over goes to all that come."""
    return left_s * parts[0].share / sum(part.share for part in parts)


def missing(modules: Iterable[str]) -> list[str]:
    return [name for name in modules if importlib.util.find_spec(name) is None]


def unpack_wheels(wheels: Path, out: Path) -> list[str]:
    """Have pip unpack wheels of what is not installed, each into its own folder; say what it refused."""
    paths = sorted(wheels.glob("*.whl"))
    refused = [] if paths else [f"no wheel is in {wheels}"]
    for path in paths:
        if version_of(path.name.partition("-")[0].replace("_", "-")) is None:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
            command += ["--disable-pip-version-check", "--target", str(out / path.stem), str(path.absolute())]
            done = subprocess.run(command, capture_output=True, text=True)
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            refused += [f"{path.name}: {said[0]}"[:MOST_SAID]] if done.returncode else []
    return refused


def environment(packages: Path) -> dict[str, str]:
    """For the parts: the source tree, what was on the path before, then what came out of wheels."""
    before = os.environ.get("PYTHONPATH", "")
    path = [str(HERE.parent / "src"), str(HERE), *filter(None, [before]), *map(str, packages.iterdir())]
    usual = {"HF_HUB_OFFLINE": "1"}  # nothing is fetched: to ask would wait for a network that is not there
    return {**usual, **os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


class Run:
    """One run: its parts, how long it may take, and where what it measures goes.

    Parts write into a folder that ends with the run, so that few files have to be brought home.
    """

    def __init__(self, given: argparse.Namespace, parts: Sequence[Measured], scratch: Path) -> None:
        self._until = time.monotonic() + 60 * given.minutes - LAST_S
        self._out, self._pretend, self._parts, self._scratch = (
            given.out.absolute(),
            given.pretend,
            parts,
            scratch,
        )
        self._out.mkdir(parents=True, exist_ok=True)
        said = put_aside(self._out)
        self._results = Results(self._out, given.minutes, given.pretend)
        if said:
            self._results.note(said)
        self._packages = scratch / "packages"
        self._packages.mkdir()

    def prepare(self, wheels: Path | None) -> None:
        """Unpack what wheels there are of what is missing, and say what is missing still."""
        if wheels is not None:
            for refused in unpack_wheels(wheels, self._packages):
                self._results.note(refused)
            sys.path += map(str, self._packages.iterdir())
            importlib.invalidate_caches()
        absent = missing(dict.fromkeys(name for part in self._parts for name in part.needs))
        if absent:
            self._results.note(f"this machine lacks {', '.join(absent)}: --wheels FOLDER takes their wheels")

    def go(self) -> int:
        """Run part after part; returns the exit code."""
        names = [part.name for part in self._parts]
        for at, part in enumerate(self._parts):
            seconds = share_of_time(self._until - time.monotonic(), self._parts[at:])
            self._results.add(self._page_of(part, seconds))
            try:
                keep_reports(self._scratch, names, self._out)
            except OSError as error:
                self._results.note(f"reports are not kept: {error}")
        return self._results.ended(names)

    def _page_of(self, part: Measured, seconds: float) -> dict[str, Any]:
        page = {"part": part.name, "rows": [], "notes": []}
        if absent := missing(part.needs):
            return page | {"state": "not here", "notes": [f"missing: {', '.join(absent)}"]}
        if seconds < LEAST_S:
            return page | {"state": "not begun", "notes": ["no time was left"]}
        print(f"{part.name}, for {seconds:.0f} s at most", flush=True)
        path, log = self._scratch / f"{part.name}.json", self._out / "log.txt"
        command = [sys.executable, str(FOLDER / f"{part.name}.py"), "--out", str(path)]
        command += ["--seconds", f"{TOLD * seconds:.1f}", *(["--pretend"] if self._pretend else [])]
        with contextlib.suppress(OSError), log.open("a") as file:
            file.write(f"\n=== {part.name}, for {seconds:.0f} s at most\n")
        began = time.monotonic()
        try:
            ended = run_bounded(command, environment(self._packages), seconds, log)
        except KeyboardInterrupt:  # what the part had measured is kept, as if its time was over
            self._results.add(page_of(path, part.name, Ended(None, time.monotonic() - began)))
            raise
        return page_of(path, part.name, ended)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="that all parts take together")
    parser.add_argument("--out", type=Path, help="a folder for results.json, log.txt and reports")
    parser.add_argument("--wheels", type=Path, help="a folder with wheels of what this machine lacks")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--skip", default="", help="names, separated by commas")
    parser.add_argument("--pretend", action="store_true", help="tiny, on the CPU: no figure counts")
    parser.add_argument("--list", action="store_true", help="name the parts")
    given = parser.parse_args(arguments)
    if not given.list and given.out is None:
        parser.error("--out FOLDER is missing: where shall results.json go?")
    if not 0 < given.minutes <= 24 * 60:
        parser.error(f"--minutes {given.minutes} is not a time: give more than 0 and at most 1440")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    parts = chosen(
        *(list(filter(None, map(str.strip, names.split(",")))) for names in (given.only, given.skip))
    )
    if given.list:
        for part in parts:
            print(f"{part.name:10} {100 * part.share / sum(one.share for one in parts):3.0f} %  {part.says}")
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that parts end with this program, or its terminal
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, signal.default_int_handler)
    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
    ):
        try:
            run = Run(given, parts, Path(scratch))
        except OSError as error:
            raise SystemExit(f"--out {str(given.out)[:200]!r} cannot hold results: {error}") from error
        run.prepare(given.wheels)
        return run.go()
    print("interrupted: what was measured is in results.json", file=sys.stderr)
    return 130


if __name__ == "__main__":
    sys.exit(main())
