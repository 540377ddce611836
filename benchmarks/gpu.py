"""Measure every part of evenload on one GPU, within so many minutes, and keep what was measured whatever happens.

    python benchmarks/gpu.py --minutes 9 --out FOLDER [--wheels FOLDER] [--only moe,executor] [--skip wgsl]
    python benchmarks/gpu.py --pretend --out FOLDER        # tiny, without a GPU: is every part whole?
    python benchmarks/gpu.py --list

Nothing is installed and no network is needed: the source tree is used as it is. Parts run one after the other, the most
important first, each in a process of its own with a share of the time; one that fails or hangs is noted, and the next
goes on. FOLDER/results.json is written anew after each part. Exit code: 0 if all ran, 1 with a list of those that did not.
"""

import argparse
import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_parts.bounded_process import run_bounded
from gpu_parts.gpu_results import Results, page_of

HERE = Path(__file__).resolve().parent
CORE = ("numpy", "click", "cloudpickle", "psutil")  # what evenload itself needs
TOLD = 0.9  # of its time a part is told of; the rest is to write and to end
LEAST_S = 5.0  # a part that would have less is not begun
WHEELS_S = 60.0
COMES_WITH = {"wgpu": ("cffi", "pycparser", "rubicon-objc"), "jax": ("jaxlib", "ml-dtypes", "opt-einsum")}


@dataclass(frozen=True)
class Measured:
    """A part: its file in ``gpu_parts``, its share of the time, and the modules without which it is not begun."""

    name: str
    share: float
    says: str
    needs: tuple[str, ...] = ("torch",)


PARTS = (  # in order of importance
    Measured("machine", 1, "devices, memory, clocks and load, beside what NVML and torch say"),
    Measured("executor", 4, "a torch module over the GPU and CPUs, out of memory, a worker killed in a kernel"),
    Measured("training", 3, "two throttled ranks on one GPU, step over bound"),
)


def chosen(only: Sequence[str], skip: Sequence[str]) -> list[Measured]:
    """The parts that were asked for. Raises SystemExit for a name that there is not."""
    known = [part.name for part in PARTS]
    if unknown := sorted({*only, *skip} - {*known}):
        raise SystemExit(f"no part is called {', '.join(unknown)[:200]}; there are {', '.join(known)}")
    return [part for part in PARTS if (not only or part.name in only) and part.name not in skip]


def share_of_time(left_s: float, parts: Sequence[Measured]) -> float:
    """Seconds for the first of the parts that are left: what earlier ones left over goes to all that come."""
    return left_s * parts[0].share / sum(part.share for part in parts)


def missing(modules: Iterable[str]) -> list[str]:
    return [name for name in modules if importlib.util.find_spec(name) is None]


def unpack_wheels(wheels: Path, names: Sequence[str], out: Path) -> str:
    """Put wheels of missing modules into ``out``, by pip without its index; returns what went wrong, "" if nothing."""
    wanted = [one for name in names for one in (name, *COMES_WITH.get(name, ()))]
    wrong = []
    for name in wanted:  # one by one: what is not in the folder must not keep the others out
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--find-links"]
        try:
            done = subprocess.run(
                [*command, str(wheels), "--target", str(out), name], capture_output=True, text=True, timeout=WHEELS_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{type(error).__name__}: {error}"[:500]
        if done.returncode and name in names:
            wrong.append(f"{name}: {done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else 'failed'}")
    return "; ".join(wrong)


def environment(packages: Path) -> dict[str, str]:
    """For the parts: the source tree, then what the machine has, then what came out of wheels."""
    before = os.environ.get("PYTHONPATH", "")
    path = [str(HERE.parent / "src"), str(HERE), *filter(None, [before]), str(packages)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def run_part(part: Measured, seconds: float, pretend: bool, out: Path, env: dict[str, str]) -> dict:
    """Run one part for so long at most; returns its page, with how it ended."""
    absent = missing(part.needs)
    if absent:
        return {"part": part.name, "state": "not here", "rows": [], "notes": [f"missing: {', '.join(absent)}"]}
    page = out / f"{part.name}.json"
    page.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / "gpu_parts" / f"{part.name}.py"), "--out", str(page)]
    command += ["--seconds", f"{TOLD * seconds:.1f}", *(["--pretend"] if pretend else [])]
    ended = run_bounded(command, env, seconds, out / f"{part.name}.log")
    return page_of(page, part.name, ended)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="that all parts take together")
    parser.add_argument("--out", type=Path, help="a folder for results.json, logs and reports")
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
    split = [[name for name in names.split(",") if name] for names in (given.only, given.skip)]
    parts = chosen(*split)
    if given.list:
        for part in parts:
            print(f"{part.name:10} {100 * part.share / sum(one.share for one in parts):3.0f} %  {part.says}")
        return 0
    began = time.monotonic()
    out = given.out.absolute()
    packages = out / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    sys.path.append(str(packages))
    results = Results(out, given.minutes, given.pretend)
    absent = missing(dict.fromkeys([*CORE, *(name for part in parts for name in part.needs)]))
    if absent and given.wheels:
        results.note(unpack_wheels(given.wheels.absolute(), absent, packages))
        importlib.invalidate_caches()
        absent = missing(absent)
    if absent:
        results.note(f"this machine lacks {', '.join(absent)}: --wheels FOLDER takes their wheels")
    env = environment(packages)
    with contextlib.suppress(KeyboardInterrupt):
        for at, part in enumerate(parts):
            seconds = share_of_time(60 * given.minutes - (time.monotonic() - began), parts[at:])
            if seconds < LEAST_S:
                results.add({"part": part.name, "state": "not begun", "rows": [], "notes": ["no time left"]})
                continue
            print(f"\n=== {part.name}, for {seconds:.0f} s at most", flush=True)
            results.add(run_part(part, seconds, given.pretend, out, env))
    return results.ended([part.name for part in parts])


if __name__ == "__main__":
    sys.exit(main())
