"""What it costs to start: CPU milliseconds of ``import evenload`` and of ``evenload devices --json``.

    python benchmarks/startup.py [--runs 21]

Measured in a fresh environment that holds evenload and its core dependencies only, so that torch cannot be
imported; then with nvidia-ml-py and wgpu added. CPU time is user + system of a process and its children: what
else the machine does hardly counts. Each figure is the median of interleaved runs, beside bare Python's in
the same rounds. Exit code 1 if a limit is broken.
"""

import argparse
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from record import record

CORE = ("evenload", "click", "psutil", "cloudpickle", "numpy", "numpy.libs")
DRIVERS = ("pynvml", "wgpu", "rendercanvas", "cffi", "_cffi_backend", "pycparser")
LIMIT_MS = {
    "import evenload": 60,
    "evenload devices --json": 200,
    "the same, with wgpu and nvidia-ml-py": 200,
}


def environment(folder: Path, packages: tuple[str, ...]) -> Path:
    """A Python that can import ``packages`` and nothing else, by links to those of this interpreter."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in packages:
        for source in sources(package):
            (site / source.name).symlink_to(source)
    return folder / "bin" / "python"


def sources(package: str) -> list[Path]:
    """The folder or file of a package; ``x.libs`` are the libraries that lie beside x."""
    if package.endswith(".libs"):
        beside = sources(package.removesuffix(".libs"))[0].with_name(package)
        return [beside] if beside.exists() else []
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return []
    origin = Path(found.origin)
    return [origin.parent if origin.name == "__init__.py" else origin]


def cpu_ms(command: list[str | Path], cache: Path) -> float:
    """CPU milliseconds that ``command`` and its children took."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(cache), "XDG_CACHE_HOME": str(cache)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(folder: Path, n_runs: int) -> dict[str, list[float]]:
    core, full = environment(folder / "core", CORE), environment(folder / "full", CORE + DRIVERS)
    devices = ["-m", "evenload", "devices", "--json"]
    commands = {
        "bare python": [core, "-c", "pass"],
        "import evenload": [core, "-c", "import evenload"],
        "evenload --help": [core, "-m", "evenload", "--help"],
        "evenload devices --json": [core, *devices],
        "the same, with wgpu and nvidia-ml-py": [full, *devices],
        "the same, first time after a boot": [full, *devices],
    }
    assert subprocess.run([core, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode, (
        "torch must be absent"
    )
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(n_runs + 1):
        for name, command in commands.items():
            cache = folder / (f"cold{turn}" if "first time" in name else "cache")
            cache.mkdir(exist_ok=True)
            spent = cpu_ms(command, cache)
            if turn:  # the first round fills caches
                taken[name].append(spent)
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=21)
    n_runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        taken = measure(Path(folder), n_runs)
    bare = statistics.median(taken["bare python"])
    rows = [
        {
            "what": name,
            "cpu_ms": round(statistics.median(values), 1),
            "least_ms": round(min(values), 1),
            "times_bare_python": round(statistics.median(values) / bare, 1),
            "limit_ms": LIMIT_MS.get(name),
        }
        for name, values in taken.items()
    ]
    record("startup", rows, runs=n_runs)
    broken = [row["what"] for row in rows if row["limit_ms"] and row["cpu_ms"] > row["limit_ms"]]
    if broken:
        print("over the limit:", ", ".join(broken), file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
